"""Results and gradients of calls of operators, tables for them, and a block of several."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from search_spaces.kernel import Kernel
from search_spaces.records import Workload
from tuner import ops, runtime
from tuner.tables.text import document_of
from workers.device import offline

#: The config of entries of softmax, and a card that no other table is for.
CONFIG = {"num_warps": 4, "rows_per_step": 1, "steps": 1, "stream": False}
DEVICE = "NVIDIA Test"


def write_defaults(
    folder: Path,
    kernel: Kernel,
    workloads: Iterable[Workload],
    device: str = "NVIDIA H200",
    **fields: Any,
) -> None:
    """A table of a kernel's default configs, each for all sizes, which the kernel checks."""
    entries = []
    for workload in workloads:
        key = workload.as_dict()
        sizes = {name: runtime.Span(1, 2**20) for name, size in key.items()
                 if type(size) is int and size}  # fmt: skip
        config = kernel.default_config(workload, offline("cuda:90"))
        entries.append(runtime.Entry(key, config, sizes=sizes))
    write_table(folder, kernel.name, entries, device, **fields)


def write_table(
    folder: Path, kernel: str, entries: Iterable[runtime.Entry], device: str, **fields: Any
) -> None:
    """A table of a kernel. fields: of its first entry."""
    facts = runtime.DeviceFacts(device, "cuda", "cuda:90", 132, shared_bytes=232448)
    table = runtime.Table(
        kernel, "ab", facts, {}, launch_hash="aa",
        entries=tuple(entries), rule=runtime.Rule("sizes"),
    )  # fmt: skip
    document = document_of(table)
    document["entries"][0] |= fields
    (folder / f"{kernel}.json").write_text(json.dumps(document))
    runtime.clear()


def results_of(found: Any) -> list[torch.Tensor]:
    """A tensor or several as a list."""
    return [found] if isinstance(found, torch.Tensor) else list(found)


Close: TypeAlias = Callable[[torch.Tensor, torch.Tensor], None]


def check_gradients(
    found: Any,
    expected: Any,
    given: Iterable[torch.Tensor],
    of: Iterable[torch.Tensor] | None = None,
    close: Close = torch.testing.assert_close,
) -> None:
    """The gradients of results by the given tensors are those of the expected results by `of`.

    close: compares two gradients. `of` are the given tensors, unless they are others.
    """
    given = list(given)
    ours, others = results_of(found), results_of(expected)
    pulls = [torch.randn_like(each) for each in ours]
    wide = [pull.to(each.dtype) for pull, each in zip(pulls, others, strict=True)]
    gradients = torch.autograd.grad(ours, given, pulls)
    wanted = torch.autograd.grad(others, given if of is None else list(of), wide)
    for one, other in zip(gradients, wanted, strict=True):
        close(one, other)


def block(x: torch.Tensor, w: torch.Tensor, m: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Several operators one after the other: x[rows, n], w[n], m[n, n], b[n]."""
    y = ops.rms_norm(x, w.shape, w, 1e-5)
    y = ops.linear(y, m, b, "gelu")
    y, total = ops.add_rms_norm(y, x, w, 1e-5)
    return ops.softmax(y) + total


def plain_block(x: torch.Tensor, w: torch.Tensor, m: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same by torch's functions."""
    y = functional.rms_norm(x, x.shape[-1:], w, 1e-5)
    total = functional.gelu(functional.linear(y, m, b)) + x
    return functional.rms_norm(total, x.shape[-1:], w, 1e-5).softmax(-1) + total


def operators_in(graph: torch.fx.Graph) -> list[str]:
    """Our operators in a graph."""
    return [f"{node.target}" for node in graph.nodes if f"{node.target}".startswith("tuner.")]
