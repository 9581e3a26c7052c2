"""Which nodes of a cluster may have workers: those with the driver's Python, torch and Triton.

A task on each node answers before a worker starts there. Other versions would build and time other
code; a package that is missing would end each worker at its start.
"""

from __future__ import annotations

import logging
import platform
import re
from collections.abc import Callable, Sequence
from typing import Any

from search_spaces.errors import TunerError
from workers.pools import ray_nodes
from workers.pools.ray_cluster import ray
from workers.processes.worker_lost import one_line
from workers.toolchain import triton_toolchain

_log = logging.getLogger(__name__)
#: Seconds for all nodes that are asked together.
_ANSWER_S = 60.0


class Admission:
    """Asks nodes for their versions, each once. runtime_env: that of the workers."""

    def __init__(self, runtime_env: dict[str, Any]) -> None:
        self._runtime_env = runtime_env
        tools = triton_toolchain()
        self._here = {
            "python": platform.python_version(), "torch": tools.torch, "triton": tools.triton
        }  # fmt: skip
        self._asked: dict[str, Any] = {}
        self._nodes: dict[str, ray_nodes.Node] = {}
        #: Why a node that has answered gets no work, by Ray's id; empty where it does.
        self._answers: dict[str, str] = {}

    @property
    def elsewhere(self) -> dict[str, str]:
        """Ray's label selector of nodes that are not refused; empty where none is."""
        refused = [node_id for node_id, why in self._answers.items() if why]
        return {"ray.io/node-id": f"!in({','.join(refused)})"} if refused else {}

    def refuses(self, node_id: str) -> bool:
        """Whether a node, which is asked now if it is new, must not have workers."""
        if node_id not in self._answers:
            self.admit([node for node in ray_nodes.alive() if node.node_id == node_id], _ANSWER_S)
        return bool(self._answers.get(node_id))

    def admit(
        self, nodes: Sequence[ray_nodes.Node], timeout_s: float = 0.0
    ) -> list[ray_nodes.Node]:
        """Those of the nodes that may have workers; others are asked again by a later call.

        timeout_s: how long to wait for answers.
        """
        for node in nodes:
            self._nodes[node.node_id] = node
            if node.node_id not in self._answers and node.node_id not in self._asked:
                self._asked[node.node_id] = self._ask(node)
        if calls := [self._asked[n.node_id] for n in nodes if n.node_id in self._asked]:
            done, _ = ray.wait(calls, num_returns=len(calls), timeout=timeout_s)
            for node in nodes:
                if self._asked.get(node.node_id) in done:
                    self._take(node, self._asked.pop(node.node_id))
        return [node for node in nodes if self._answers.get(node.node_id) == ""]

    def start(self, nodes: Sequence[ray_nodes.Node]) -> list[ray_nodes.Node]:
        """As `admit`, with a wait for all; `TunerError` where all with processors are refused."""
        admitted = self.admit(nodes, _ANSWER_S)
        refused = [f"{n.name}: {self._answers[n.node_id]}" for n in nodes if self._why(n)]
        if refused and not any(node.cpus for node in admitted):
            raise TunerError(
                f"no host of the cluster can take work: {'; '.join(refused)}",
                "install the driver's versions on every host",
            )
        return admitted

    def find_host(self, error: Exception, node_id: str) -> str:
        """`host NAME: ` of a failed call; empty where it is not known.

        node_id: where its actor was last. One that Ray has restarted may be elsewhere.
        """
        names = {node.name for node in self._nodes.values() if node.node_id == node_id}
        if isinstance(error, ray.exceptions.RayTaskError):
            address = re.search(r"\(pid=\d+, ip=([^,)]+)", f"{error}")
            here = address[1] if address else ""
            names = {each.name for each in self._nodes.values() if each.address == here}
        return f"host {names.pop()}: " if len(names) == 1 else ""

    def _why(self, node: ray_nodes.Node) -> str:
        return self._answers.get(node.node_id, "")

    def _ask(self, node: ray_nodes.Node) -> Any:
        options = {"num_cpus": 0, "max_retries": 0, "runtime_env": self._runtime_env}
        question = ray.remote(_make_question()).options(
            scheduling_strategy=ray_nodes.on(node.node_id), **options
        )
        return question.remote()

    def _take(self, node: ray_nodes.Node, call: Any) -> None:
        try:
            versions, missing = ray.get(call)
        except ray.exceptions.RayError as error:  # its node has died, or cannot start a process
            _log.info("%s does not answer: %s", node.name, one_line(f"{error}"))
            return
        why = one_line(missing) or ", ".join(
            f"{name} {versions[name] or 'is missing'}, the driver has {own}"
            for name, own in self._here.items()
            if own and _release(name, versions[name]) != _release(name, own)
        )
        self._answers[node.node_id] = why
        if why:
            _log.warning("host %s (%s) gets no work: %s", node.name, node.address, why)


def _release(name: str, version: str) -> str:
    """The part of a version that must agree: without torch's `+cpu`, and Python's minor one."""
    release = version.partition("+")[0]
    return release.rpartition(".")[0] if name == "python" else release


def _make_question() -> Callable[[], tuple[dict[str, str], str]]:
    """What runs on a node. A local function travels as code, so it needs no package there."""

    def find_versions() -> tuple[dict[str, str], str]:
        import importlib

        try:
            importlib.import_module("workers.pools.ray_actors")
            tools = importlib.import_module("workers.toolchain").triton_toolchain()
        except Exception as error:
            return {}, f"its workers cannot start: {type(error).__name__}: {error}"
        return {name: getattr(tools, name) or "" for name in ("python", "torch", "triton")}, ""

    return find_versions
