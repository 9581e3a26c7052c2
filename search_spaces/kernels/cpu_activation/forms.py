"""Forms of activation functions: the library's, and equal or nearly equal formulas.

All formulas compute in the dtype of x; Inductor widens bfloat16 to float32 inside a loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from search_spaces.kernels.cpu_forms import Form

_SQRT_HALF = 0.7071067811865476
_GELU_SCALE, _GELU_CUBIC = 0.7978845608028654, 0.044715
#: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
_ERF_P = 0.3275911
_ERF_A = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


# -- what torch's users write ----------------------------------------------------------------------
def relu(x: torch.Tensor) -> torch.Tensor:
    return x.relu()


def relu1(x: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.hardtanh(x, 0.0, 1.0)


def relu1_clamp(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(0, 1)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    return x.sigmoid()


def tanh(x: torch.Tensor) -> torch.Tensor:
    return x.tanh()


def gelu(x: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.gelu(x)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.gelu(x, approximate="tanh")


def silu(x: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.silu(x)


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """The first half of each row is the gate."""
    gate, up = x.chunk(2, dim=-1)
    return silu(gate) * up


# -- formulas --------------------------------------------------------------------------------------
def relu_maximum(x: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.maximum(x, torch.zeros((), dtype=x.dtype))


def relu_where(x: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.where(x > 0, x, torch.zeros((), dtype=x.dtype))


def relu1_minimum(x: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.minimum(x.relu(), torch.ones((), dtype=x.dtype))


def sigmoid_exp(x: torch.Tensor) -> torch.Tensor:
    import torch

    return (1.0 / (1.0 + torch.exp(-x.float()))).to(x.dtype)


def sigmoid_tanh(x: torch.Tensor) -> torch.Tensor:
    import torch

    return (0.5 * torch.tanh(0.5 * x.float()) + 0.5).to(x.dtype)


def tanh_sigmoid(x: torch.Tensor) -> torch.Tensor:
    import torch

    return (2.0 * torch.sigmoid(2.0 * x.float()) - 1.0).to(x.dtype)


def tanh_exp(x: torch.Tensor) -> torch.Tensor:
    import torch

    return (1.0 - 2.0 / (1.0 + torch.exp(2.0 * x.float()))).to(x.dtype)


def gelu_erfc(x: torch.Tensor) -> torch.Tensor:
    import torch

    wide = x.float()
    return (0.5 * wide * torch.erfc(-_SQRT_HALF * wide)).to(x.dtype)


def gelu_rational(x: torch.Tensor) -> torch.Tensor:
    """The error function by a polynomial of 1 / (1 + p |z|); at most 1.5e-7 off."""
    import torch

    wide = x.float()
    z = _SQRT_HALF * wide.abs()
    t = 1.0 / (1.0 + _ERF_P * z)
    a1, a2, a3, a4, a5 = _ERF_A
    tail = t * (a1 + t * (a2 + t * (a3 + t * (a4 + t * a5)))) * torch.exp(-z * z)
    return (0.5 * (wide + wide.abs() * (1.0 - tail))).to(x.dtype)


def gelu_tanh_sigmoid(x: torch.Tensor) -> torch.Tensor:
    """(1 + tanh(z)) / 2 as sigmoid(2 z), by one exponential."""
    import torch

    wide = x.float()
    z = (-2.0 * _GELU_SCALE) * wide * (1.0 + _GELU_CUBIC * wide * wide)
    return (wide / (1.0 + torch.exp(z))).to(x.dtype)


def gelu_tanh_formula(x: torch.Tensor) -> torch.Tensor:
    import torch

    wide = x.float()
    z = _GELU_SCALE * wide * (1.0 + _GELU_CUBIC * wide * wide)
    return (0.5 * wide * (1.0 + torch.tanh(z))).to(x.dtype)


def silu_division(x: torch.Tensor) -> torch.Tensor:
    import torch

    wide = x.float()
    return (wide / (1.0 + torch.exp(-wide))).to(x.dtype)


def silu_tanh(x: torch.Tensor) -> torch.Tensor:
    import torch

    half = 0.5 * x.float()
    return (half * torch.tanh(half) + half).to(x.dtype)


def swiglu_division(x: torch.Tensor) -> torch.Tensor:
    import torch

    gate, up = x.float().chunk(2, dim=-1)
    return (gate * up / (1.0 + torch.exp(-gate))).to(x.dtype)


def swiglu_tanh(x: torch.Tensor) -> torch.Tensor:
    import torch

    gate, up = x.float().chunk(2, dim=-1)
    half = 0.5 * gate
    return ((half * torch.tanh(half) + half) * up).to(x.dtype)


#: By function and form. `aten` and what begins with it are run by torch's own kernels; `tanh` and
#: `aten_tanh` of gelu are nearly equal, all others equal.
FORMS: dict[str, dict[str, Form]] = {
    "relu": {"library": relu, "maximum": relu_maximum, "where": relu_where, "aten": relu},
    "relu1": {
        "library": relu1,
        "clamp": relu1_clamp,
        "minimum": relu1_minimum,
        "aten": relu1,
        "aten_clamp": relu1_clamp,
    },
    "sigmoid": {
        "library": sigmoid,
        "exp": sigmoid_exp,
        "tanh": sigmoid_tanh,
        "aten": sigmoid,
    },
    "tanh": {"library": tanh, "sigmoid": tanh_sigmoid, "exp": tanh_exp, "aten": tanh},
    "gelu": {
        "library": gelu,
        "erfc": gelu_erfc,
        "rational": gelu_rational,
        "aten": gelu,
        "tanh": gelu_tanh_sigmoid,
        "aten_tanh": gelu_tanh,
    },
    "gelu_tanh": {
        "library": gelu_tanh,
        "sigmoid": gelu_tanh_sigmoid,
        "tanh": gelu_tanh_formula,
        "aten": gelu_tanh,
    },
    "silu": {"library": silu, "division": silu_division, "tanh": silu_tanh, "aten": silu},
    "swiglu": {
        "library": swiglu,
        "division": swiglu_division,
        "tanh": swiglu_tanh,
        "aten": swiglu,
    },
}
#: The largest error of a form that is not equal to the function, relative to the whole output.
APPROXIMATE = {("gelu", "tanh"): 5e-4, ("gelu", "aten_tanh"): 5e-4}
