"""Write docs/kernels.md, its data docs/kernels.csv, and its pictures.

    python scripts/write_kernels_page.py [--check]

The page lists the built-in kernels with the docstrings of their classes, their workloads and the
sizes of their search spaces, and the figures of the campaigns that `benchmarks/campaign.py` has
written to benchmarks/results/<device>. Of two results of a workload on a device, the newer one
counts. The site shows the rows of the data below each kernel (`scripts/site_hooks.py`). `--check`
writes nothing and exits with 1 where a file is out of date.
"""

from __future__ import annotations

import csv
import inspect
import io
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_goals import rows as goal_rows
from roofline_picture import Point, picture

from reports.task_data import peak_of, roofline_us
from search_spaces import registry
from search_spaces.kernel import Kernel
from search_spaces.records import Device, Workload
from workers.backend_kinds import Peak
from workers.device import offline

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks" / "results"
#: The devices whose search spaces are counted.
GPU = offline("cuda:90")
CPU = Device("cpu", "", "cpu:x86-64-avx512", sm_count=16, memory_bytes=64 << 30)
#: The H200's calibration in benchmarks/results/h200/families_rows.json.
COPY_BYTES_PER_US = 4_303_264.0
#: Names that results of before November 2026 have.
FORMER_NAMES = {
    "nearest_centre": "nearest_center",
    "centres": "centers",
    "quantise": "quantize",
    "dequantise": "dequantize",
    "quantised": "quantized",
    "standardise": "standardize",
}
#: The files of campaigns over workloads of the kernel library.
CAMPAIGNS = ("*families*", "ops_rows", "ops_products", "ops_tokens")
HEAD = """# Kernel library

The built-in kernels: what they compute, the workloads that a campaign tunes if it names none, and
what tuning gained. `python scripts/write_kernels_page.py` writes this page, and the results of all
workloads in [`kernels.csv`](kernels.csv), from the classes and committed results; CI checks both.

`tuner spaces show NAME` lists the parameters of a kernel's search space. `tuner verify NAME
--sample 20` checks random configs, on a machine without a GPU in Triton's interpreter;
`tuner verify --all` does so for all kernels.
"""
COLUMNS = """## By family

*Time* is the median of the confirmation. *Over default* and *over baselines* are the times of the
default config and of each baseline divided by the time of the winner. *Roofline* is the bound by
the peak rates of the device's data sheet, divided by the time.
"""
#: The columns of the data; a row without a device is a workload without a result.
HEADS = ("kernel", "device", "measured", "workload", "time, us", "over default", "verdict",
         "over baselines", "fastest", "roofline")  # fmt: skip
#: The kernels by what they do.
GROUPS = {
    "element-wise": "elementwise elementwise_chain activation activation_backward rotary",
    "moved elements": "transpose permute embedding index_add",
    "rows and sums": "reduction cumulative_sum pooling adaptive_pooling softmax online_softmax"
    " softmax_backward",
    "normalization": "layer_norm rms_norm add_norm group_norm norm_backward",
    "matrix products": "matmul linear gemv batched_matmul stream_k_matmul matrix_chain moe_matmul"
    " topk_routing",
    "low precision": "fp8_matmul int8_matmul int4_matmul quantize dequantize amax",
    "attention": "attention grouped_attention varlen_attention paged_decode attention_backward",
    "images and sequences": "convolution depthwise_convolution causal_convolution recurrent_cell"
    " recurrent_sequence",
    "losses and distances": "cross_entropy cross_entropy_backward linear_cross_entropy"
    " linear_cross_entropy_backward nearest_center rbf_kernel",
    "CPU": "cpu_pointwise cpu_activation cpu_softmax cpu_layer_norm cpu_rms_norm cpu_reduction"
    " cpu_matmul cpu_matrix_chain cpu_linear_int8 cpu_linear_activation cpu_transpose cpu_attention"
    " cpu_cross_entropy",
}


@dataclass(frozen=True, slots=True)
class Figures:
    """The confirmed result of one workload on one device."""

    #: The folder below benchmarks/results.
    place: str
    device: Device
    date: str
    kernel: str
    workload: Workload
    median_us: float
    over_default: float | None
    verdict: str
    #: The time of each baseline over the winner's, the fastest baseline first.
    over_baselines: Mapping[str, float]
    flops: float
    bytes: float
    bound_us: float | None

    @property
    def over_fastest(self) -> float | None:
        """The time of the fastest baseline over the winner's; None without a baseline."""
        return next(iter(self.over_baselines.values()), None)

    @property
    def fastest(self) -> str:
        """The name of the kernel, or of the baseline that is faster than its winner."""
        name, over = next(iter(self.over_baselines.items()), ("", 1.0))
        return name if over < 1 else self.kernel


def main() -> int:
    """Write the page and the pictures, or compare them with the committed ones."""
    kernels = [registry.load(name) for name in registry.BUILT_IN]
    found = list(newest(figures(kernels)))
    files = {DOCS / "kernels.md": page(kernels, found), DOCS / "kernels.csv": data(kernels, found)}
    for place in places(found):
        files[DOCS / f"roofline_{place}.svg"] = roofline(found, place)
    stale = [file for file, text in files.items() if not file.exists() or file.read_text() != text]
    if "--check" in sys.argv[1:]:
        for file in stale:
            print(f"{file.relative_to(ROOT)} is out of date: run scripts/write_kernels_page.py")
        return int(bool(stale))
    for file in stale:
        file.write_text(files[file])
        print(f"{file.relative_to(ROOT)} is written")
    return 0


# -- results ---------------------------------------------------------------------------------------
def _read_results(path: Path) -> Any:
    """The results of a campaign, with the present names of kernels and dims."""
    text = path.read_text()
    for former, name in FORMER_NAMES.items():
        text = text.replace(f'"{former}"', f'"{name}"')
    return json.loads(text)


def figures(kernels: Iterable[Kernel]) -> Iterator[Figures]:
    """The results of these kernels, oldest first."""
    known = {kernel.name: kernel for kernel in kernels}
    paths = [path for name in CAMPAIGNS for path in RESULTS.glob(f"*/{name}.json")]
    read = [(path, _read_results(path)) for path in paths]
    for path, document in sorted(read, key=_order):
        for task in document["tasks"]:
            if task["kernel"] in known and task.get("median_us"):
                yield figures_of(known[task["kernel"]], task, document, path.parent.name)


def _order(read: tuple[Path, Mapping[str, str]]) -> tuple[str, str]:
    """By the end of the run; before files recorded that, by its day."""
    path, document = read
    return document.get("finished") or document["date"], path.name


def figures_of(
    kernel: Kernel,
    task: Mapping[str, object],
    document: Mapping[str, object],
    place: str,
) -> Figures:
    """The figures of one task of a campaign's document."""
    workload = Workload.from_mapping(
        {name: task["workload"][name] for name in _list_dims(kernel, task["workload"])}
    )
    kind = "cpu" if "cpu" in kernel.kinds else "cuda"
    device = Device(kind, document["devices"][0], "")
    over = {name: value for name, value in task["speedup_over"].items() if value}
    cost = kernel.cost(workload)
    return Figures(
        place=place,
        device=device,
        date=document["date"],
        kernel=kernel.name,
        workload=workload,
        median_us=task["median_us"],
        over_default=task["speedup_over_default"],
        verdict=task["verdict_against_default"],
        over_baselines=dict(sorted(over.items(), key=lambda pair: pair[1])),
        flops=cost.flops,
        bytes=cost.bytes,
        bound_us=roofline_us(device, workload, task["winner"], cost.flops, cost.bytes),
    )


def _list_dims(kernel: Kernel, dims: Iterable[str]) -> list[str]:
    """The dims in the order of the kernel's own workloads; results have them in any order."""
    first = [*kernel.workloads()[0].as_dict()]
    return sorted(dims, key=lambda name: first.index(name) if name in first else len(first))


def newest(found: Iterable[Figures]) -> Iterable[Figures]:
    """The last of the results of each workload on each device."""
    return {(item.place, item.kernel, item.workload): item for item in found}.values()


def places(found: Iterable[Figures]) -> list[str]:
    """The folders of the results, sorted."""
    return sorted({item.place for item in found})


# -- the page --------------------------------------------------------------------------------------
def page(kernels: Sequence[Kernel], found: Sequence[Figures]) -> str:
    """The text of docs/kernels.md."""
    parts = [HEAD, groups(), overview(kernels, found)]
    for place in places(found):
        device = next(item.device for item in found if item.place == place)
        what = "Roofline" if peak_of(device) else "Rates"
        parts.append(f"![{what} of the workloads on {device.name}](roofline_{place}.svg)\n")
    parts += [against_goals(found), COLUMNS]
    known = {kernel.name: kernel for kernel in kernels}
    parts += [
        family(group, [known[name] for name in names.split()]) for group, names in GROUPS.items()
    ]
    return "\n".join(parts)


def groups() -> str:
    """One row per group of kernels, with links to their sections."""
    rows = [
        (group, ", ".join(f"[`{name}`](#{name})" for name in names.split()))
        for group, names in GROUPS.items()
    ]
    return table(("", "kernels"), rows)


def overview(kernels: Sequence[Kernel], found: Sequence[Figures]) -> str:
    """One row per kernel: what it is, its space, its baselines, and means of the ratios."""
    rows = []
    for kernel in kernels:
        device = CPU if "cpu" in kernel.kinds else GPU
        bound = [kernel.space(item).bind(item, device) for item in kernel.workloads()]
        configs, feasible = (
            sum(space.cardinality() for space in bound),
            sum(space.size() for space in bound),
        )
        baselines = sorted({name for item in kernel.workloads() for name in kernel.baselines(item)})
        own = [item for item in found if item.kernel == kernel.name]
        rows.append(
            (
                f"[`{kernel.name}`](#{kernel.name})",
                f"{len(bound)}",
                f"{len(own)}",
                f"{feasible:,}",
                f"{feasible / configs:.0%}" if feasible >= configs / 100 else "below 1%",
                ", ".join(baselines),
                mean(item.over_default for item in own),
                mean(item.over_fastest for item in own),
            )
        )
    heads = ("kernel", "workloads", "results", "feasible configs", "of all", "baselines",
             "over default", "over fastest baseline")  # fmt: skip
    target = f"The spaces are counted for {GPU.target} and, for CPU kernels, {CPU.target}"
    text = f"{target} with {CPU.sm_count} processors. Ratios are geometric means over workloads.\n"
    return f"{text}\n{table(heads, rows)}"


def against_goals(found: Sequence[Figures]) -> str:
    """What the results on an H200 show against the goals of the library."""
    own = [item for item in found if item.place == "h200"]
    heads = ("geometric mean", "goal", "reached", "workloads", "met")
    text = f"""## Against the goals

On an {own[0].device.name}, whose copies move {COPY_BYTES_PER_US / 1e3:,.0f} GB/s, read and written.
"""
    return f"{text}\n{table(heads, goal_rows(own, COPY_BYTES_PER_US))}"


def family(group: str, kernels: Sequence[Kernel]) -> str:
    """The folded section of a group: the docstring of each kernel, and the mark of its results."""
    names = ", ".join(f"<code>{kernel.name}</code>" for kernel in kernels)
    head = f'<details markdown="1">\n<summary>{group}: {names}</summary>\n'
    return "\n".join([head, *(section(kernel) for kernel in kernels), "</details>\n"])


def section(kernel: Kernel) -> str:
    """The docstring of a kernel, and the mark that the site replaces by its results."""
    text = inspect.getdoc(type(kernel)) or ""
    return f"### {kernel.name}\n\n{text}\n\n<!-- generated: results {kernel.name} -->\n"


def data(kernels: Sequence[Kernel], found: Sequence[Figures]) -> str:
    """The results of all workloads, a row each, as CSV with the columns `HEADS`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADS)
    for kernel in kernels:
        writer.writerows(data_rows(kernel, [one for one in found if one.kernel == kernel.name]))
    return text.getvalue()


def data_rows(kernel: Kernel, own: Sequence[Figures]) -> Iterator[tuple[str, ...]]:
    """The rows of a kernel: those of each device, or its workloads alone."""
    if not own:
        yield from ((kernel.name, "", "", item.key, *[""] * 6) for item in kernel.workloads())
    for place in places(own):
        items = {item.workload: item for item in own if item.place == place}
        device = next(iter(items.values())).device.name
        days = " and ".join(sorted({item.date for item in items.values()}))
        for item in dict.fromkeys([*kernel.workloads(), *items]):
            yield (kernel.name, device, days, *row(item, items.get(item)))


def row(workload: Workload, item: Figures | None) -> tuple[str, ...]:
    """The figures of one workload."""
    if item is None:
        return (workload.key, *[""] * 6)
    bound = f"{item.bound_us / item.median_us:.0%}" if item.bound_us else ""
    return (
        workload.key,
        f"{item.median_us:.4g}",
        ratio(item.over_default),
        item.verdict,
        ", ".join(f"{name} {ratio(over)}" for name, over in item.over_baselines.items()),
        item.fastest,
        bound,
    )


def ratio(value: float | None) -> str:
    """A ratio with two decimals; empty where there is none."""
    return "" if value is None else f"{value:.2f}"


def mean(ratios: Iterable[float | None]) -> str:
    """The geometric mean of the known ratios; empty without any."""
    logs = [math.log(value) for value in ratios if value]
    return ratio(math.exp(sum(logs) / len(logs))) if logs else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# -- the picture -----------------------------------------------------------------------------------
def roofline(found: Iterable[Figures], place: str) -> str:
    """The picture of one device."""
    own = [item for item in found if item.place == place]
    points = [
        Point(
            item.kernel,
            f"{item.kernel} {item.workload.key}",
            item.flops / item.bytes,
            item.flops / item.median_us / 1e6,
        )
        for item in own
        if item.flops > 0 and item.bytes > 0
    ]
    device = own[0].device
    return picture(f"{device.name}", points, ceilings(peak_of(device)))


def ceilings(peak: Peak | None) -> tuple[float | None, Mapping[str, float]]:
    """The bandwidth in TB/s and the peak rates in TFLOP/s by name."""
    if peak is None:
        return None, {}
    rates = {
        "8 bit": peak.eight_bit,
        "16 bit": peak.half,
        "TF32": peak.tf32,
        "float32": peak.fp32,
    }
    return peak.memory_gb_s / 1e3, {name: rate for name, rate in rates.items() if rate}


if __name__ == "__main__":
    sys.exit(main())
