"""What the recurrent kernels share: cells, their inputs, one step by plain torch, cuDNN.

Gates and weights are in torch's order: input, forget, cell, output of an LSTM; reset, update, new
of a GRU. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

from search_spaces.dims import tolerance_of
from search_spaces.kernel import Tolerance
from search_spaces.kernels.dtypes import ROUNDING
from search_spaces.records import Workload
from search_spaces.tensors import Tensors, generator, named, random_tensor

if TYPE_CHECKING:
    import torch

CELLS = ("lstm", "gru")
_GATES = {"lstm": 4, "gru": 3}
#: Standard deviations of biases and states, and of recurrent weights times sqrt(hidden). As with
#: torch's own initial weights, whose factor is 0.58, an error fades from step to step.
_BIAS, _STATE, _RECURRENT = 0.2, 0.5, 0.5
#: Copies of the weights in cuDNN's layout that are kept.
_MOST_COPIES = 64


def gates(workload: Workload) -> int:
    """Gates of the cell."""
    return _GATES[workload.text("cell")]


def has_cell_state(workload: Workload) -> bool:
    """Whether the cell has a state c as well as the hidden state."""
    return workload.text("cell") == "lstm"


def names(workload: Workload) -> tuple[str, ...]:
    """The inputs, in the order in which the functions here take them."""
    usual = ("x", "h", "w_ih", "w_hh", "b_ih", "b_hh")
    return (*usual, "c") if has_cell_state(workload) else usual


def make_inputs(
    workload: Workload, seed: int, device: str, leading: Sequence[int] = ()
) -> dict[str, torch.Tensor]:
    """x[*leading, batch, input], states [batch, hidden], and weights as torch has them."""
    batch, inner, hidden = workload.sizes("batch", "input", "hidden")
    rows = gates(workload) * hidden
    specs: dict[str, tuple[tuple[int, ...], float]] = {
        "x": ((*leading, batch, inner), 1.0),
        "h": ((batch, hidden), _STATE),
        "w_ih": ((rows, inner), 1 / sqrt(inner)),
        "w_hh": ((rows, hidden), _RECURRENT / sqrt(hidden)),
        "b_ih": ((rows,), _BIAS),
        "b_hh": ((rows,), _BIAS),
        "c": ((batch, hidden), _STATE),
    }
    source = generator(seed, device)
    return {
        name: random_tensor(workload.spec(*specs[name][0]), source, device, specs[name][1])
        for name in names(workload)
    }


def rounding(workload: Workload, factor: float = 1.0) -> Tolerance:
    """The workload's own tolerance, else `factor` times the rounding error of an output.

    The gates pass an error of their sums on by at most its size.
    """
    usual = ROUNDING[workload.text("dtype")]
    if workload["dtype"] == "float32":
        terms = workload.size("input") + workload.size("hidden")
        usual = max(1e-6 * sqrt(terms), usual)
    relative = tolerance_of(workload, factor * usual)
    return Tolerance(relative, 8 * relative)


def step(
    x: torch.Tensor,
    h: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
    c: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """The next h and, of an LSTM, c, as users of torch write it; a GRU has no c."""
    import torch

    of_x, of_h = x @ w_ih.T + b_ih, h @ w_hh.T + b_hh
    if c is None:
        reset, update = (of_x + of_h)[:, : 2 * h.shape[1]].sigmoid().chunk(2, 1)
        new = torch.tanh(of_x.chunk(3, 1)[2] + reset * of_h.chunk(3, 1)[2])
        return ((1 - update) * new + update * h,)
    enter, forget, cell, leave = (of_x + of_h).chunk(4, 1)
    c = forget.sigmoid() * c + enter.sigmoid() * cell.tanh()
    return leave.sigmoid() * c.tanh(), c


class Cudnn:
    """cuDNN's recurrent network by `torch.nn.LSTM` and `torch.nn.GRU`.

    cuDNN wants all weights in one buffer; they are copied there when they are seen first.
    """

    def __init__(self, workload: Workload, precision: str) -> None:
        self._workload = workload
        self._precision = precision
        self._modules: dict[tuple[int, ...], tuple[Any, object]] = {}

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """out[steps, batch, hidden] and, of an LSTM, the last c, of x[steps, batch, input].

        Raises `RuntimeError` where there is no CUDA tensor or no cuDNN.
        """
        import torch

        x, h, *weights = inputs[:6]
        if x.device.type != "cuda":
            raise RuntimeError(f"cuDNN needs CUDA tensors, got one on {x.device.type}")
        cudnn: Any = torch.backends.cudnn
        if torch.version.hip or not cudnn.is_available():
            raise RuntimeError("cuDNN needs a torch that is built with it")
        before = cudnn.rnn.fp32_precision
        cudnn.rnn.fp32_precision = self._precision
        try:
            module = self._module(weights)
            if len(inputs) == 6:
                return (module(x, h[None])[0],)
            out, (_, c) = module(x, (h[None], inputs[6][None]))
            return out, c[0]
        finally:
            cudnn.rnn.fp32_precision = before

    def _module(self, weights: Sequence[torch.Tensor]) -> Any:
        import torch

        key = tuple(number for w in weights for number in (w.data_ptr(), w._version))
        if key not in self._modules:
            if len(self._modules) >= _MOST_COPIES:
                self._modules.clear()
            kind = torch.nn.LSTM if has_cell_state(self._workload) else torch.nn.GRU
            sizes = (self._workload.size("input"), self._workload.size("hidden"))
            module = kind(*sizes, device=weights[0].device, dtype=weights[0].dtype).eval()
            with torch.no_grad():
                for parameter, weight in zip(module.parameters(), weights, strict=True):
                    parameter.copy_(weight)
            # The weights are kept, so that no others have their addresses.
            self._modules[key] = (module, weights)
        return self._modules[key][0]


def vendors(
    workload: Workload, outputs: tuple[str, ...], adapt: Callable[[Cudnn], Callable[..., Any]]
) -> dict[str, Callable[[Tensors], Tensors]]:
    """cuDNN as baselines: in float32 with exact products and with TF32."""
    arguments = names(workload)
    found = {"vendor": named(outputs, adapt(Cudnn(workload, "ieee")), *arguments)}
    if workload["dtype"] == "float32":
        found["vendor_tf32"] = named(outputs, adapt(Cudnn(workload, "tf32")), *arguments)
    return found
