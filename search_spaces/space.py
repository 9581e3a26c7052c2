"""A search space: parameters and constraints; `bind` applies it to a workload and a device."""

from __future__ import annotations

from collections.abc import Sequence

from search_spaces.bound import BoundSpace, Features
from search_spaces.constraints import Check, Constraint
from search_spaces.errors import SpaceError
from search_spaces.params import Parameter
from search_spaces.records import Device, Workload

__all__ = ["BoundSpace", "Check", "Constraint", "Features", "SearchSpace"]


class SearchSpace:
    """What may be tuned: parameters and the constraints among them.

    Parameters a condition names come before the parameter that has the condition. `kernel` only
    names the space in messages; `features` only help a search to learn.

    A search tries the parameters' values under all constraints. A launch with a config that was
    found for other sizes need not keep a `Preference`, and `admits` names the parameters whose
    values here are only those worth trying: a launch is right with any other value that the family
    gives them, and without one where the family leaves them out. A parameter in place of a name
    bounds these values. Raises `SpaceError` for a contradictory declaration.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        constraints: Sequence[Constraint] = (),
        *,
        kernel: str = "",
        features: Features | None = None,
        admits: Sequence[str | Parameter] = (),
    ) -> None:
        self.parameters = tuple(parameters)
        self.admits = tuple(admits)
        self.constraints = tuple(constraints)
        self.kernel = kernel
        self.features = features
        _check_names(self.parameters, self.constraints)
        _check_conditions(self.parameters)

    def describe(self) -> dict[str, object]:
        """What a search tries, as JSON: parameters, and constraints with digests of their code."""
        return {
            "parameters": [parameter.describe() for parameter in self.parameters],
            "constraints": [constraint.describe() for constraint in self.constraints],
        }

    def bind(self, workload: Workload, device: Device) -> BoundSpace:
        """The space of this workload on this device."""
        return BoundSpace(
            self.parameters,
            self.constraints,
            workload,
            device,
            kernel=self.kernel,
            features=self.features,
            admits=self.admits,
        )


def _check_names(parameters: Sequence[Parameter], constraints: Sequence[Constraint]) -> None:
    for kind, items in (("parameter", parameters), ("constraint", constraints)):
        seen: set[str] = set()
        for item in items:
            if not hasattr(item, "name"):
                raise SpaceError(f"{item!r:.60} is no {kind}", f"declare a {kind} with a name")
            if item.name in seen:
                raise SpaceError(f"{kind} {item.name} is declared twice", "rename or remove one")
            seen.add(item.name)


def _check_conditions(parameters: Sequence[Parameter]) -> None:
    earlier: dict[str, Parameter] = {}
    for parameter in parameters:
        for other, values in (parameter.when or {}).items():
            if other not in earlier:
                raise SpaceError(
                    f"parameter {parameter.name}: its condition names {other}, "
                    "which is not declared before it",
                    f"declare {other} first, or correct the name",
                )
            unknown = [value for value in values if not earlier[other].contains(value)]
            if unknown:
                raise SpaceError(
                    f"parameter {parameter.name}: {other} never is {unknown[0]!r}",
                    f"{other} has the values {list(earlier[other].values())}",
                )
        earlier[parameter.name] = parameter
