"""What may be tuned: kernels, their workloads and their search spaces. Importing needs no torch.

Users import its names from `tuner`.
"""

from __future__ import annotations

from tuner.base.import_names import lazy_names

# Names the module of a user that has this import name.
__getattr__ = lazy_names(__name__, {})
