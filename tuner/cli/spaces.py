"""`tuner spaces`: list kernels, show their search spaces, check their declarations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from search_spaces.declaration import guarded_calls
from search_spaces.errors import TunerError, WorkloadError
from tuner.base.inert_text import inert
from tuner.cli.command_context import ConfigOption, complete_kernels, flag, settings_of
from tuner.cli.console import Format, FormatOption, emit, note
from tuner.views.column import Column

if TYPE_CHECKING:
    from search_spaces.declaration.check import DeclarationCheck
    from search_spaces.kernel import Kernel
    from search_spaces.records import Device, Workload

app = typer.Typer(
    help="The kernels that can be tuned, and their search spaces.", no_args_is_help=True
)
_KERNELS = ("kernel", "from", "place")
_SIZES = ("kernel", "from", "workloads", "configs", "feasible", "share")
_WORKLOADS = ("workload", "configs", "feasible", "default", "gflops", "mib")
_PARAMETERS: tuple[Column[Mapping[str, object]] | str, ...] = (
    *("parameter", "values", "when"),
    # As the other values are written.
    Column("default", show=lambda row: f"{row['default']}"),
)


TargetOption = Annotated[
    str | None,
    typer.Option(help="The target to bind to, as cuda:90; by default a device of this machine."),
]


@app.command("list")
def list_spaces(
    sizes: Annotated[
        bool,
        flag(
            "--sizes",
            help="Load the kernels, and count their workloads and the configs of their spaces.",
        ),
    ] = False,
    target: TargetOption = None,
    config: ConfigOption = None,
    style: FormatOption = Format.TABLE,
) -> None:
    """List the kernels known by name and those of config.yaml.

    Without --sizes, none of them is imported. With it, `configs` and `feasible` are sums over all
    workloads of a kernel, and `share` is their quotient.
    """
    from search_spaces import registry

    settings, base = settings_of(config)
    rows: list[dict[str, object]] = [
        {"kernel": name, "from": _origin(place), "place": place}
        for name, place in registry.available().items()
    ]
    rows += [{"kernel": spec, "from": "config.yaml", "place": spec} for spec in settings.kernels]
    if sizes:
        for row in rows:
            spec = f"{row['kernel']}"
            row |= _counts(*_bound_to(spec, f"{base}", _fitting(spec, target)))
    emit(rows, _SIZES if sizes else _KERNELS, style)


@app.command()
def show(
    kernel: Annotated[
        str,
        typer.Argument(
            help="A name, module:object or file.py:object.",
            metavar="KERNEL",
            autocompletion=complete_kernels,
        ),
    ],
    workload: Annotated[
        str | None,
        typer.Option(help="Show the parameters for the workload with these dims, as 'M=32 N=64'."),
    ] = None,
    target: TargetOption = None,
    validate: Annotated[
        bool, flag("--validate", help="Check every workload; exit with 1 on a finding.")
    ] = False,
    config: ConfigOption = None,
    style: FormatOption = Format.TABLE,
) -> None:
    """Show a kernel's workloads with the sizes of their spaces, or one workload's parameters."""
    _, base = settings_of(config)
    found, device = _bound_to(kernel, f"{base}", target)
    chosen = _choose_workloads(found, workload)
    if validate:
        _validate(found, chosen, device)
    elif workload is None:
        rows = [_workload_row(found, item, device) for item in chosen]
        emit(rows, _WORKLOADS, style)
        note(f"on {_name_device(device)}")
    else:
        emit(_parameter_rows(found, chosen[0], device), _PARAMETERS, style)
        bound = guarded_calls.bind(found, chosen[0], device)
        note(f"{chosen[0].key}: {bound.size()} of {bound.cardinality()} configs are feasible "
             f"on {_name_device(device)}")  # fmt: skip


def _bound_to(spec: str, folder: str, target: str | None) -> tuple[Kernel, Device]:
    """The kernel, and the device of the target, or of this machine, that its spaces are for."""
    from search_spaces import registry
    from tuner.campaign.declaration_check import stand_in
    from tuner.compare.targets import check_target
    from workers import device as devices

    check_target(target)
    found = registry.load_undecided(
        spec, (folder,), devices.assume_device([target] if target else [])
    )
    device = stand_in(found, target)
    return registry.for_device(found, device), device


def _fitting(spec: str, target: str | None) -> str | None:
    """The target, if the kernel may run there as far as its name tells."""
    from search_spaces import registry

    return target if registry.may_run_on(spec, target) else None


def _counts(kernel: Kernel, device: Device) -> dict[str, object]:
    """The workloads of a kernel, and the configs of all their spaces."""
    workloads = guarded_calls.workloads(kernel)
    bound = [guarded_calls.bind(kernel, workload, device) for workload in workloads]
    configs, feasible = (
        sum(space.cardinality() for space in bound),
        sum(space.size() for space in bound),
    )
    return {
        "workloads": len(workloads),
        "configs": configs,
        "feasible": feasible,
        "share": feasible / configs,
    }


def _origin(place: str) -> str:
    return "built in" if place.startswith("search_spaces.") else "entry point"


def _name_device(device: Device) -> str:
    known = device.target in device.name
    return device.name if known else f"{device.name} ({device.target})"


def _choose_workloads(kernel: Kernel, text: str | None) -> Sequence[Workload]:
    workloads = guarded_calls.workloads(kernel)
    words = (text or "").replace(",", " ").split()
    kept = [item for item in workloads if all(word in item.key.split() for word in words)]
    if kept:
        return kept
    raise WorkloadError(
        f"{kernel.name} lists no workload with {text!r}",
        f"its first is {workloads[0].key!r}; `tuner spaces show {kernel.spec}` lists all",
    )


def _workload_row(kernel: Kernel, workload: Workload, device: Device) -> dict[str, object]:
    guarded_calls.check(kernel, workload)
    bound, cost = guarded_calls.bind(kernel, workload, device), kernel.cost(workload)
    return {
        "workload": workload.key,
        "configs": bound.cardinality(),
        "feasible": bound.size(),
        "default": dict(sorted(guarded_calls.default_config(kernel, workload, device).items())),
        "gflops": cost.flops / 1e9,
        "mib": cost.bytes / 2**20,
    }


def _parameter_rows(kernel: Kernel, workload: Workload, device: Device) -> list[dict[str, object]]:
    default = guarded_calls.default_config(kernel, workload, device)
    return [
        {
            "parameter": parameter.name,
            "values": ", ".join(f"{value}" for value in parameter.values()),
            "when": " and ".join(
                f"{name} in {list(values)}" for name, values in (parameter.when or {}).items()
            ),
            "default": default.get(parameter.name),
        }
        for parameter in guarded_calls.bind(kernel, workload, device).parameters
    ]


def _validate(kernel: Kernel, workloads: Sequence[Workload], device: Device) -> None:
    from search_spaces.declaration.check import DeclarationCheck

    trial = DeclarationCheck()
    findings = [line for item in workloads for line in _problems(kernel, item, device, trial)]
    for line in findings:
        print(inert(line))
    if findings:
        raise typer.Exit(1)
    note(f"{kernel.name}: {len(workloads)} workloads are fine on {_name_device(device)}")


def _problems(
    kernel: Kernel, workload: Workload, device: Device, declaration_check: DeclarationCheck
) -> Iterator[str]:
    """Findings about one workload's space or declaration, one line each."""
    place = f"{kernel.name} {workload.key}"
    try:
        guarded_calls.check(kernel, workload)
        bound = guarded_calls.bind(kernel, workload, device)
        bound.require_feasible()
        default = guarded_calls.default_config(kernel, workload, device)
        reason = bound.why_not(default)
        if reason is not None:
            yield f"{place}: the default config is not feasible: {reason}"
        if kernel.cost(workload).bytes <= 0:
            yield f"{place}: the cost model counts no bytes"
        if not kernel.outputs(workload) and not _is_recording(kernel):
            yield f"{place}: there are no outputs to verify"
        declaration_check.check(kernel, workload, default, device)
    except TunerError as error:
        yield f"{place}: {error.message}"


def _is_recording(kernel: Kernel) -> bool:
    from workers import backend_kinds

    return all(backend_kinds.spec_of_stored(kind).replayed for kind in kernel.kinds)
