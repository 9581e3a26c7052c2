"""A backend of an installed package: one file adds a kind of device, and a campaign runs on it."""

from __future__ import annotations

import html
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from installed_plugins import install_plugins

PLUGIN = '''
"""An abacus: a device that adds numbers by hand, and a kernel for it."""

import math
import statistics

from search_spaces.kernel import Cost, Kernel, Tolerance
from search_spaces.params import Choice
from search_spaces.records import Device, Status, TensorSpec, Toolchain, Workload
from search_spaces.records import config_key, digest
from search_spaces.registry import load
from search_spaces.space import SearchSpace
from tuner.base.statistics import compare_pairs
from workers.backend_kinds import BackendSpec
from workers.job_records import Artifact, Failure, Measurement, Mode, Timing
from workers.roles import Backend


class AbacusSpec(BackendSpec):
    kind = "abacus"

    def find_devices(self):
        return [self.detect(0), self.detect(1)]

    def detect(self, index):
        return Device("abacus", "Abacus of ten rods", "abacus", sm_count=10, uuid=f"A-{index}")

    def toolchain(self):
        return Toolchain(compiler="abacus 1.0")

    def compile(self, kernel, job, cache_dir):
        if job.config["beads"] > 10:
            raise ValueError("a rod has ten beads")
        code = digest([kernel.name, dict(job.config)])
        return Artifact(dict(job.config), job.device.target, self.toolchain(), code)

    def create(self, *, index, cache_dir, **options):
        return Abacus(self, index, **options)


class Abacus(Backend):
    kind, poisoned = "abacus", False

    def __init__(self, spec, index, us_per_move=1.0):
        self.device, self.tools = spec.detect(index), spec.toolchain()
        self.us_per_move = us_per_move

    def info(self):
        return self.device, self.tools

    def measure(self, job):
        kernel = load(job.kernel.spec, job.kernel.paths)
        inputs = kernel.make_inputs(job.workload, 1, "abacus")
        reference = kernel.reference(job.workload, inputs)
        found = [self.run(kernel, job, one.config, inputs, reference) for one in job.candidates]
        baselines = {}
        if job.mode is not Mode.VERIFY:
            timed = [one for one in found if isinstance(one, Timing)]
            if timed:
                reference = timed[-1 if job.mode is Mode.SCREENING and job.incumbent else 0]
                found = [self.against(reference, one) for one in found]
                fingers = Timing("", 0, self.samples(1000.0))
                baselines = {name: self.against(reference, fingers) for name in job.baselines}
        return Measurement(
            self.device, self.tools, tuple(found), baselines, method="beads", device_s=0.01
        )

    def run(self, kernel, job, config, inputs, reference):
        if kernel.cpu_callable(job.workload, config)(inputs) != reference:
            return Failure(Status.CORRECTNESS, "the sum is wrong")
        n, beads = job.workload.size("n"), config["beads"]
        moves = math.ceil(n / beads) + 2 * beads
        samples = () if job.mode is Mode.VERIFY else self.samples(moves)
        return Timing(config_key(config), 0.0, samples, error=0.0)

    def samples(self, moves):
        return tuple(self.us_per_move * moves * (1 + 1e-4 * (i % 3)) for i in range(48))

    def against(self, reference, one):
        if isinstance(one, Failure):
            return one
        ratio = compare_pairs(one.samples_us, reference.samples_us)
        return Timing(
            one.name, statistics.median(one.samples_us), one.samples_us,
            ratio, one.error,
        )

    def close(self):
        pass


class Sum(Kernel):
    name = "sum"
    kinds = ("abacus",)

    def workloads(self): return [Workload.of(n=60)]
    def check_workload(self, workload): pass
    def make_inputs(self, workload, seed, device): return {"x": list(range(workload.size("n")))}
    def outputs(self, workload): return {"out": TensorSpec((1,), "int64")}
    def reference(self, workload, inputs): return {"out": sum(inputs["x"])}
    def tolerance(self, workload): return Tolerance(0.0, 0.0)
    def cost(self, workload): return Cost(workload.size("n"), 8 * workload.size("n"))
    def space(self, workload): return SearchSpace([Choice("beads", (1, 2, 3, 5, 7, 10, 12))])
    def default_config(self, workload, device): return {"beads": 1}
    def baselines(self, workload): return {"fingers": lambda inputs: {"out": sum(inputs["x"])}}

    def cpu_callable(self, workload, config):
        def added(inputs):
            whole = len(inputs["x"]) // config["beads"] * config["beads"]  # loses the rest
            return {"out": sum(inputs["x"][:whole])}
        return added
'''
CONFIG = """version: 1
pool:
  kind: {pool}
  builders: 1
  devices:
    abacus: {{runners: {runners}, options: {{us_per_move: 2.0}}}}
campaigns:
  counting:
    targets: [abacus]
    strategy: exhaustive
    tasks:
      - kernel: abacus_plugin:Sum
"""


class Farm:
    """A folder with a configuration, and the command line of an installation with the plug-in."""

    def __init__(self, folder: Path, pool: str, runners: str) -> None:
        self.folder, self.installed = folder / "farm", folder / "installed"
        self.folder.mkdir()
        places = {"abacus": "abacus_plugin:AbacusSpec"}
        install_plugins(self.installed, "abacus-for-tuner", "tuner.backends", places)
        (self.installed / "abacus_plugin.py").write_text(PLUGIN)
        (self.folder / "config.yaml").write_text(CONFIG.format(pool=pool, runners=runners))

    def tuner(self, *arguments: str, code: int = 0, plugin: bool = True) -> str:
        """Standard output; errors are part of the failure's message."""
        path = os.environ.get("PYTHONPATH", "")
        search = f"{self.installed}{os.pathsep}{path}" if plugin else path
        done = subprocess.run(
            [sys.executable, "-m", "tuner", *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": search, "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr


@pytest.mark.parametrize(
    ("pool", "runners"),
    [
        pytest.param("local", "null", id="local"),
        pytest.param("ray", "1", id="ray", marks=[pytest.mark.full, pytest.mark.ray]),
    ],
)
def test_a_campaign_runs_on_a_backend_of_a_plugin(tmp_path, pool, runners):
    farm = Farm(tmp_path, pool, runners)
    devices = json.loads(farm.tuner("workers", "list", "--format", "json"))
    assert [row["uuid"] for row in devices if row["kind"] == "abacus"] == ["A-0", "A-1"]

    farm.tuner("run", "counting")
    (task,) = json.loads(farm.tuner("status", "--format", "json"))
    # Seven beads lose the rest of sixty numbers, and twelve do not fit on a rod.
    assert (task["trials"], task["failed"], task["verdict"]) == (7, 2, "faster")

    farm.tuner("export", "-o", "tables")
    (table,) = (farm.folder / "tables").iterdir()
    content = json.loads(table.read_text())
    assert content["device"]["kind"] == "abacus"
    (entry,) = content["entries"]
    assert entry["config"] == {"beads": 5}
    # 22 moves of 2 us each, as the option says.
    assert entry["median_us"] == pytest.approx(44.0, rel=1e-3)
    page = html.unescape((farm.folder / "results" / "report.html").read_text())
    assert "Abacus of ten rods" in page
    assert "a rod has ten beads" in page
    assert "the sum is wrong" in page

    # The results can be read where the plug-in is not installed.
    (farm.folder / "config.yaml").write_text("version: 1\n")
    assert json.loads(farm.tuner("status", "--format", "json", plugin=False)) == [task]
    farm.tuner("report", plugin=False)
    assert "Abacus of ten rods" in (farm.folder / "results" / "report.html").read_text()


def test_a_kind_that_is_not_installed_is_one_line(tmp_path):
    farm = Farm(tmp_path, "local", "1")
    message = farm.tuner("run", "counting", code=2, plugin=False)
    assert "pool.devices.abacus: unknown backend 'abacus'" in message
    assert "Traceback" not in message


def no_role(source: str) -> str:
    return source.replace("class Abacus(Backend):", "class Abacus:", 1)


def former_preload(source: str, method: str = "preload") -> str:
    former = f'kind = "abacus"\n\n    def {method}(self):\n        return ("math",)\n'
    return source.replace('kind = "abacus"\n', former, 1)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (
            lambda source: "AbacusSpec = dict\n",
            ("is dict, which is no BackendSpec", "abacus-for-tuner", "tuner.backends"),
        ),
        (former_preload, ("defines preload", "preload(role, *, torch_free)")),
        (
            lambda source: former_preload(source, "builder_preload"),
            ("defines builder_preload", "preload(role, *, torch_free)"),
        ),
        (
            no_role,
            (
                "the backend of kind 'abacus', Abacus, has no calibration()",
                "derive its class from workers.roles.Backend",
            ),
        ),
    ],
    ids=["no spec", "former preload", "former builder_preload", "no role"],
)
def test_a_backend_that_cannot_be_used_is_told_what_it_lacks(tmp_path, spoil, told):
    farm = Farm(tmp_path, "local", "1")
    plugin = farm.installed / "abacus_plugin.py"
    plugin.write_text(spoil(plugin.read_text()))
    message = farm.tuner("run", "counting", code=2)
    assert "backend" in message
    for words in told:
        assert words in message
