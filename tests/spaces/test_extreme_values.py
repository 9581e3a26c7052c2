"""Infinities, NaN, the largest and the smallest numbers: kernels give what torch gives for them."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200
from spaces_values import differing, outputs

from search_spaces.kernels.codes import FLOAT8, LARGEST_CODE
from search_spaces.kernels.quantize.torch_groups import spread
from search_spaces.records import Config, Workload
from search_spaces.registry import load
from search_spaces.shape_tensor import torch_dtype

pytestmark = pytest.mark.family

DTYPES = ("float32", "float16", "bfloat16")
#: What rounding to the dtype, after float32, may cause.
ROUNDED = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1e-2}
INF, NAN = float("inf"), float("nan")


def extreme_rows(cols: int, dtype: str) -> torch.Tensor:
    """Rows with infinities, NaN and the largest numbers, in parts and wholly."""
    x = torch.randn(14, cols, generator=torch.Generator().manual_seed(3))
    largest, half = torch.finfo(torch_dtype(dtype)).max, cols // 2
    for row, value in enumerate((-largest, largest, -INF, INF, NAN), start=1):
        x[row] = value
        x[row + 5, :half] = value
    x[11, 3], x[12, -1], x[13, 0] = largest, NAN, INF
    x[13, half] = -INF
    return x.to(torch_dtype(dtype))


def row_configs(name: str, workload: Workload) -> list[Config]:
    """The default config and, of rows of any length, rows in blocks, alone and shared."""
    default = load(name).default_config(workload, H200)
    blocks = {"passes": 2, "num_warps": 4, "block_stages": 1, "stream": False, "BLOCK": 1024}
    return [default, *({**blocks, "splits": n} for n in (1, 2) if "passes" in default)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [64, 100, 2060])
def test_softmax_of_extreme_rows(dtype, cols):
    x, jobs, expected = extreme_rows(cols, dtype), [], []
    for name, more in (
        ("softmax", {}),
        ("online_softmax", {"log": False, "mask": "none"}),
        ("online_softmax", {"log": True, "mask": "none"}),
        ("online_softmax", {"log": False, "mask": "boolean"}),
    ):
        workload = Workload.of(rows=len(x), cols=cols, dtype=dtype, **more)
        inputs, seen = {"x": x}, x
        if more.get("mask") == "boolean":
            # Row 0 is finite and wholly hidden.
            inputs["mask"] = torch.ones(x.shape, dtype=torch.bool)
            inputs["mask"][0], inputs["mask"][:, 5] = False, False
            seen = x.masked_fill(~inputs["mask"], -INF)
        for config in row_configs(name, workload):
            jobs.append((name, workload, config, inputs))
            wide = seen.float()
            expected.append(wide.log_softmax(1) if more.get("log") else wide.softmax(1))
    for job, found, exact in zip(jobs, outputs(jobs), expected, strict=True):
        rounded = exact.to(torch_dtype(dtype))
        assert differing(found["out"], rounded, ROUNDED[dtype], 1e-7) == [], job[:3]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("log", [False, True])
def test_gradients_of_softmax_of_extreme_rows(dtype, log):
    jobs = []
    for cols in (100, 2060):
        x = extreme_rows(cols, dtype).float()
        y = (x.log_softmax(1) if log else x.softmax(1)).to(torch_dtype(dtype))
        dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(5)).to(y.dtype)
        dy[0, :3] = torch.tensor([INF, 1.0, -1.0])
        workload = Workload.of(rows=len(x), cols=cols, dtype=dtype, log=log)
        jobs += [
            ("softmax_backward", workload, config, {"y": y, "dy": dy})
            for config in row_configs("softmax_backward", workload)
        ]
    for job, found in zip(jobs, outputs(jobs), strict=True):
        y, dy = (job[3][name].float() for name in ("y", "dy"))
        of_log = dy - y.exp() * dy.sum(1, keepdim=True)
        exact = of_log if log else y * (dy - (y * dy).sum(1, keepdim=True))
        rounded = exact.to(torch_dtype(dtype))
        assert differing(found["dx"], rounded, ROUNDED[dtype], 1e-4) == [], job[:3]


@pytest.mark.parametrize("method", ["argmax", "packed", "sort"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_token_has_an_expert_twice(method, dtype):
    """Masked logits are minus infinity, and those of padding may be NaN: the largest in torch."""
    generator, jobs = torch.Generator().manual_seed(7), []
    for experts, renormalize in ((16, True), (20, False), (4, True)):
        x = torch.randn(8, experts, generator=generator).to(torch_dtype(dtype))
        x[1, 2:], x[2], x[3], x[4, 3], x[5, 1] = -INF, -INF, NAN, -NAN, INF
        x[6, 1:], x[7, ::2] = torch.finfo(x.dtype).min, torch.finfo(x.dtype).max
        sizes = {"tokens": len(x), "experts": experts, "top_k": 4}
        workload = Workload.of(**sizes, renormalize=renormalize, dtype=dtype)
        config = {**load("topk_routing").default_config(workload, H200), "method": method}
        jobs.append(("topk_routing", workload, config, {"logits": x}))
    for job, found in zip(jobs, outputs(jobs), strict=True):
        x, ids = job[3]["logits"].float(), found["ids"].long()
        assert all(len(set(row)) == 4 for row in ids.tolist())
        assert set(ids.flatten().tolist()) <= set(range(x.shape[1]))
        largest = x.topk(4).values
        assert differing(x.gather(1, ids).double(), largest, 0.0, 0.0) == []
        shares = x.gather(1, ids).softmax(1) if job[1]["renormalize"] else x.softmax(1)
        exact = shares if job[1]["renormalize"] else shares.gather(1, ids)
        assert differing(found["weights"], exact, 1e-5) == [], job[:3]


def _numbers() -> torch.Tensor:
    sizes = torch.cat([torch.logspace(-30, 4, 681), torch.linspace(0.4, 12.0, 311)])
    special = torch.tensor([0.0, -0.0, INF, -INF, NAN, 0.5, -0.5, 1e30, -1e30])
    return torch.cat([sizes, -sizes, special])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_activations_are_as_accurate_as_those_of_torch(dtype):
    """Each value, however small, is right to a few roundings, or as far off as torch's float32."""
    x, kernel = _numbers().to(torch_dtype(dtype)), load("activation")
    plain = ("relu", "relu1", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu")
    jobs = []
    for function in plain:
        workload = Workload.of(rows=1, cols=len(x), function=function, dtype=dtype)
        config = kernel.default_config(workload, H200)
        jobs.append(("activation", workload, config, {"x": x[None]}))
    for job, found in zip(jobs, outputs(jobs), strict=True):
        eager = kernel.eager(job[1])
        exact, narrow = eager(x.double()), eager(x.float()).double()
        bound = (narrow - exact).abs().nan_to_num(0.0, 0.0)
        relative = 1e-5 if dtype == "float32" else 4e-3
        value = found["out"].flatten()
        right = (value - exact).abs() <= 2 * bound + relative * exact.abs() + 1e-37
        # Where float32 alone has an infinity or NaN, so has the kernel.
        right |= torch.isclose(value, narrow, equal_nan=True) | (value == exact)
        assert x[~right].tolist() == [], job[1]["function"]


def ways(config: Config) -> list[Config]:
    """The config by instructions for float8 and by those for integers, where it has the choice."""
    if "convert" not in config:
        return [config]
    return [{**config, "convert": way} for way in ("hardware", "bits")]


@pytest.mark.parametrize("scales", ["row", "block128", "tensor"])
@pytest.mark.parametrize("to", list(LARGEST_CODE))
def test_quantized_nan_and_infinity_come_back(scales, to):
    """Codes times scales are NaN where they are by the reference; a scale of NaN is NaN."""
    x, jobs = extreme_rows(300, "float32"), []
    cases = [x] if scales != "tensor" else [x[row : row + 1] for row in (0, 8, 9, 12, 13)]
    for case in cases:
        sizes = {"rows": len(case), "cols": 300, "scales": scales}
        for name, more in (("quantize", {"to": to}), ("amax", {})):
            kernel, workload = load(name), Workload.of(**sizes, **more, dtype="float32")
            default = kernel.default_config(workload, H200)
            blocks = {"num_warps": 4, "BLOCK": 128, "stages": 1}
            if "convert" in default:
                blocks["convert"] = "hardware"
            configs = [*ways(default), *(ways(blocks) if scales == "row" else [])]
            jobs += [(name, workload, config, {"x": case}) for config in configs]
    for job, found in zip(jobs, outputs(jobs), strict=True):
        exact, values = load(job[0]).reference(job[1], dict(job[3])), found
        if job[0] == "quantize":
            assert differing(found["scale"], exact["scale"], 1e-6) == [], job[:3]
            shape = exact["q"].shape
            values, exact = (
                {"out": each["q"] * spread(each["scale"], shape, scales)} for each in (found, exact)
            )
        steps = 0.0 if job[0] == "amax" else 0.13
        assert differing(values["out"], exact["out"], steps, 0.1) == [], job[:3]


def test_every_code_of_float8_has_its_value():
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    workload = Workload.of(rows=1, cols=256, scales="row", codes=FLOAT8, dtype="float32")
    default = load("dequantize").default_config(workload, H200)
    inputs = {"q": codes[None], "scale": torch.ones(1)}
    for found in outputs([("dequantize", workload, each, inputs) for each in ways(default)]):
        assert differing(found["out"].T, codes.double()[:, None], 0.0, 0.0) == []


@pytest.mark.parametrize("to", list(LARGEST_CODE))
def test_a_norm_keeps_nan_in_its_scales(to):
    kernel = load("add_norm")
    workload = Workload.of(rows=3, cols=100, kind="rms_norm", to=to, dtype="float32")
    inputs = dict(kernel.make_inputs(workload, 1, "cpu"))
    inputs["x"][1, 7] = NAN
    job = ("add_norm", workload, kernel.default_config(workload, H200), inputs)
    assert outputs([job])[0]["scale"].isnan().tolist() == [False, True, False]
