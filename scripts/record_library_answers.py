"""Record what the code of vLLM or SGLang answers, as facts that the tests of its adapters compare.

    python scripts/record_library_answers.py SITE/vllm > tests/integrations/data/vllm.json

SITE is a folder into which a wheel was unpacked (`pip download --no-deps`, `unzip`). The functions
that name files, choose rows and make default configs are taken out of the library's source by name
and run with stand-ins for its settings and devices, so the library itself is not imported.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "tests" / "integrations" / "data"
DEVICES = ("NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X")
SIZES = (1, 2, 3, 4, 5, 8, 9, 16, 17, 20, 32, 33, 40, 64, 65, 96, 97, 128, 129, 300, 512, 513)
SIZES = (*SIZES, 1025, 1280, 2000, 4096, 16385, 100_000)
#: The order of a config's values in the recorded facts.
PARAMETERS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps")
PARAMETERS = (*PARAMETERS, "num_stages", "SPLIT_K", "USE_TMA", "SWAP_AB")
EXPERTS = (8, 64, 256)
KINDS = (("", None), ("fp8_w8a8", None), ("fp8_w8a8", [128, 128]), ("fp8_w8a8", [32, 32]))
VLLM_PRODUCTS = ((4096, 7168, (128, 128)),)
SGLANG_PRODUCTS = ((3072, 1536, (128, 128)), (5120, 2048, (32, 32)))
#: The folder of the package that is read.
PACKAGES: list[Path] = []
KINDS = (*KINDS, ("int8_w8a16", None), ("int8_w8a8", None), ("int8_w8a8", [128, 128]))


def functions(path: Path, names: tuple[str, ...], scope: dict[str, Any]) -> types.SimpleNamespace:
    """Functions of a source file, run in a scope of stand-ins."""
    tree = ast.parse(path.read_text())
    tree.body = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in names]
    for node in tree.body:
        node.returns, node.decorator_list = None, []
        for argument in [*node.args.args, *node.args.kwonlyargs]:
            argument.annotation = None
    scope["__file__"] = str(path)
    exec(compile(tree, str(path), "exec"), scope)
    return types.SimpleNamespace(**{name: scope[name] for name in names})


class Silent:
    """Takes all calls of a logger."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **options: None


def stand_ins(device: list[str]) -> dict[str, Any]:
    settings = types.SimpleNamespace(VLLM_BATCH_INVARIANT=False, VLLM_TUNED_CONFIG_FOLDER=None)
    execution = types.SimpleNamespace(
        deterministic=types.SimpleNamespace(enable_deterministic_inference=False)
    )
    dynamo = types.SimpleNamespace(is_compiling=lambda: False)
    platform = types.SimpleNamespace(is_rocm=lambda: False, is_cuda=lambda: True)
    logger = Silent()
    return {
        "current_platform": platform,
        "envs": settings,
        "functools": functools,
        "get_device_name": lambda: device[0],
        "get_exec": lambda: execution,
        "json": json,
        "log_info_on_rank0": lambda *args: None,
        "logger": logger,
        "os": os,
        "torch": types.SimpleNamespace(_dynamo=dynamo),
        "triton": types.SimpleNamespace(__version__="3.5.1"),
        "_is_cuda": True,
        "_is_hip": False,
        "_use_low_smem_fp8_default": lambda: False,
    }


def names_of(name: Callable[..., str], device: list[str], flags: bool) -> Iterator[list[Any]]:
    for one in DEVICES:
        device[0] = one
        for dtype, block in KINDS:
            for extra in ({}, {"per_channel_quant": True}, {"down_moe": True}) if flags else ({},):
                marks = sorted(key.removesuffix("_moe") for key in extra)
                yield [one, dtype, block, marks, name(128, 768, dtype or None, block, **extra)]


def values(config: dict[str, Any]) -> list[Any]:
    """A config's values in the order of PARAMETERS; None for one that it lacks."""
    if unknown := set(config) - set(PARAMETERS):
        raise SystemExit(f"PARAMETERS lacks {sorted(unknown)}")
    found = [config.get(name) for name in PARAMETERS]
    while found[-1] is None:
        found.pop()
    return found


def defaults_of(default: Callable[..., dict[str, int]]) -> Iterator[list[Any]]:
    for dtype, block in KINDS:
        for experts in EXPERTS:
            for size in SIZES:
                config = default(size, experts, dtype or None, block)
                yield [experts, dtype, block, size, values(config)]


def choices_of(rows: Callable[[], dict[int, Any]]) -> Iterator[list[Any]]:
    found = rows()
    for size in SIZES:
        yield [size, values(found[min(found.keys(), key=lambda one: abs(one - size))])]


def vllm(package: Path) -> dict[str, Any]:
    device = [""]
    scope = stand_ins(device)
    word = functions(
        package / "utils/platform_utils.py",
        ("get_device_name_as_file_name",),
        {
            "re": __import__("re"),
            "cache": lambda one: one,
        },
    ).get_device_name_as_file_name
    platforms = types.ModuleType("vllm.platforms")
    platforms.current_platform = types.SimpleNamespace(get_device_name=lambda _: device[0])  # type: ignore[attr-defined]
    sys.modules |= {"vllm": types.ModuleType("vllm"), "vllm.platforms": platforms}
    scope["get_device_name_as_file_name"] = word
    fused = package / "model_executor/layers/fused_moe/fused_moe.py"
    moe = functions(fused, ("get_config_file_name", "get_moe_configs", "get_default_config"), scope)
    scope["envs"].VLLM_TUNED_CONFIG_FOLDER = str(
        DATA / "vllm/model_executor/layers/fused_moe/configs"
    )
    keys = [("NVIDIA H200", 128, 768, "", ()), ("NVIDIA H200", 128, 512, "", ())]
    keys += [("NVIDIA H200 NVL", 256, 512, "fp8_w8a8", (128, 128))]
    keys += [("NVIDIA H100 80GB HBM3", 16, 800, "fp8_w8a8", ())]
    default = moe.get_default_config
    product = package / "model_executor/layers/quantization/utils/fp8_utils.py"
    return {
        "vllm-moe": {
            "names": list(names_of(moe.get_config_file_name, device, flags=False)),
            "defaults": list(defaults_of(lambda m, e, d, b: default(m, e, 768, 2048, 8, d, b))),
            "choices": moe_choices(moe.get_moe_configs, device, keys),
        },
        "vllm-block-fp8": block_fp8(
            product, "w8a8_triton_block_scaled_mm", scope, device, VLLM_PRODUCTS, DATA / "vllm"
        ),
    }


def sglang(package: Path) -> dict[str, Any]:
    device = [""]
    scope = stand_ins(device)
    folder = "srt/layers/moe/moe_runner/triton_utils"
    names = ("get_config_file_name", "get_moe_configs", "get_default_config")
    moe = functions(package / folder / "fused_moe_triton_config.py", names, scope)
    os.environ["SGLANG_MOE_CONFIG_DIR"] = str(DATA / "sglang" / folder)
    keys = [("NVIDIA H200", 128, 768, "", (0, 0)), ("NVIDIA H200", 128, 704, "", (0, 0))]
    default = moe.get_default_config
    product = package / "kernels/ops/gemm/fp8_kernel.py"
    return {
        "sglang-moe": {
            "names": list(names_of(moe.get_config_file_name, device, flags=True)),
            "defaults": list(
                defaults_of(lambda m, e, d, b: default(m, e, 768, 2048, 8, d, False, b))
            ),
            "choices": moe_choices(moe.get_moe_configs, device, keys),
        },
        "sglang-block-fp8": block_fp8(
            product,
            "w8a8_block_fp8_matmul_triton",
            scope,
            device,
            SGLANG_PRODUCTS,
            DATA / "sglang",
        ),
    }


def moe_choices(
    configs: Callable[..., dict[int, Any]], device: list[str], keys: list[tuple[Any, ...]]
) -> list[Any]:
    tables = []
    for one, experts, inner, dtype, block in keys:
        device[0] = one
        rows = functools.partial(configs, experts, inner, dtype or None, *block)
        tables.append([one, experts, inner, dtype, sides(block), list(choices_of(rows))])
    return tables


def sides(block: tuple[int, ...]) -> list[int] | None:
    return list(block) if any(block) else None


def block_fp8(
    path: Path,
    launcher: str,
    scope: dict[str, Any],
    device: list[str],
    products: tuple[tuple[int, int, tuple[int, int]], ...],
    data: Path,
) -> dict[str, Any]:
    """Facts of the block-scaled product; its default config is a literal in the launching code."""
    name = "get_w8a8_block_fp8_configs"
    tree = ast.parse(path.read_text())
    (body,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == launcher]
    literal = next(
        node.value
        for node in ast.walk(body)
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "config"
        and isinstance(node.value, ast.Dict)
        and "BLOCK_SIZE_M" in ast.unparse(node.value)
    )
    asked: list[str] = []
    paths = types.SimpleNamespace(
        path=types.SimpleNamespace(
            **{k: getattr(os.path, k) for k in ("join", "dirname", "realpath")},
            exists=lambda one: asked.append(os.path.basename(one)) or os.path.exists(one),
        )
    )
    found = functions(path, (name,), {**scope, "os": paths})
    configs = getattr(found, name)
    facts: dict[str, Any] = {"names": [], "defaults": [], "choices": []}
    for one in DEVICES:
        device[0] = one
        configs(128, 768, 32, 32)
        facts["names"].append([one, "fp8_w8a8", [32, 32], [], asked[-1]])
    for size in (1, 100, 4096):
        config = eval(ast.unparse(literal), {"block_size": (128, 64)})
        facts["defaults"].append([128, "fp8_w8a8", [128, 64], size, values(config)])
    configs.__globals__["__file__"] = str(data / path.relative_to(PACKAGES[0]))
    device[0] = "NVIDIA H200"
    for cols, depth, block in products:
        rows = functools.partial(configs, cols, depth, *block)
        row = [device[0], cols, depth, "fp8_w8a8", list(block), list(choices_of(rows))]
        facts["choices"].append(row)
    return facts


def text_of(document: dict[str, Any]) -> str:
    """JSON with one fact a line."""
    parts = []
    for adapter, kinds in document.items():
        lists = (
            f'  "{kind}": [\n   '
            + ",\n   ".join(json.dumps(fact, separators=(",", ":")) for fact in facts)
            + "\n  ]"
            for kind, facts in kinds.items()
        )
        parts.append(f' "{adapter}": {{\n' + ",\n".join(lists) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path)
    package = parser.parse_args().package
    PACKAGES.append(package)
    sys.stdout.write(text_of({"vllm": vllm, "sglang": sglang}[package.name](package)))


if __name__ == "__main__":
    main()
