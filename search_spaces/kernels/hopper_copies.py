# mypy: ignore-errors
"""Copies between global and shared memory by Hopper's tensor memory accelerator, in Gluon.

Their names follow Triton 3.8. Triton 3.6 and 3.7 have them as `async_copy_global_to_shared` and
`async_copy_shared_to_global`, which Triton 3.9 refuses.
"""

from triton.experimental.gluon.language.nvidia.hopper import tma

async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
store_wait = tma.store_wait
