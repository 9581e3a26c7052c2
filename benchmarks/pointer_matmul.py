"""The matmul kernel over the 336 configs of task `a` in matmul_tasks.py, for `tuner.tune`.

`tune` searches the space that a kernel declares. This kernel declares the part of matmul's space
that loads through plain pointers, which every tool of a comparison can search.
"""

from __future__ import annotations

from search_spaces.kernels.matmul.kernel import Matmul
from search_spaces.kernels.matmul.space import matmul_space
from search_spaces.params import Choice
from search_spaces.records import Workload
from search_spaces.space import SearchSpace


class PointerMatmul(Matmul):
    """Matmul without tensor descriptors and persistent programs."""

    name = "pointer_matmul"

    def space(self, workload: Workload) -> SearchSpace:
        whole = matmul_space(workload)
        pointer = Choice("loads", ("pointer",))
        parameters = [
            pointer if parameter.name == "loads" else parameter
            for parameter in whole.parameters
            if parameter.name != "persistent"
        ]
        return SearchSpace(parameters, whole.constraints, kernel=self.name, features=whole.features)
