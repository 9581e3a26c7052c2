"""Hosts of their own that die, are cut off or slow: nothing is lost or doubled, the same wins."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import elftools
import pytest
import ray
import triton
from clusters import Cluster
from farms import assert_sound
from host_faults import FAULTS, follow, lose_head, make_farm, started_cluster
from hosts import may_make_hosts
from processes import forked

pytestmark = [pytest.mark.full, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def allowed():
    if not may_make_hosts() and not os.environ.get("CI"):
        pytest.skip("network namespaces need root and `ip`")


@pytest.fixture
def cluster(allowed):
    with started_cluster() as made:
        yield made


@pytest.fixture(scope="module")
def winner(allowed, tmp_path_factory):
    """What wins where nothing happens."""
    with started_cluster() as made:
        farm = make_farm(made, tmp_path_factory.mktemp("undisturbed") / "farm")
        farm.finish()
    return farm.task().selection.winner


@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "nothing"])
def test_a_campaign_outlives_what_happens_to_a_host(cluster, tmp_path, winner, fault):
    farm = make_farm(cluster, tmp_path / "farm")
    _, printed = follow(farm, FAULTS[fault])
    if fault == "the disk of a host is full":
        assert re.search(r"lost worker .*: host three: .* No space left on device", printed), (
            printed
        )
    assert_sound(farm)
    assert farm.task().selection.winner == winner


def test_the_same_command_resumes_on_a_new_head(cluster, tmp_path, winner):
    farm = make_farm(cluster, tmp_path / "farm")
    code, printed = lose_head(farm)
    assert code != 0, printed
    stored = farm.count()
    with started_cluster() as farm.cluster:
        farm.finish()
    assert farm.count() == farm.trials > stored
    assert_sound(farm)
    assert farm.task().selection.winner == winner


# -- hosts that differ -----------------------------------------------------------------------------
TRITON = Path(triton.__file__)
FACTS = next(TRITON.parents[1].glob("triton-*.dist-info")) / "METADATA"


def other_triton(folder: Path) -> dict[Path, Path]:
    """The real one, which says another version."""
    found = {TRITON: folder / "init.py", FACTS: folder / "METADATA"}
    for real, other in found.items():
        other.write_text(real.read_text().replace(triton.__version__, "3.0.9"))
    return found


def no_triton(folder: Path) -> dict[Path, Path]:
    return {TRITON.parent: folder, FACTS.parent: folder}


def no_reader_of_binaries(folder: Path) -> dict[Path, Path]:
    """Nothing but Triton is compared; this is one of the packages that workers import."""
    return {Path(elftools.__file__).parent: folder}


DIFFER = {
    other_triton: f"triton 3.0.9, the driver has {triton.__version__}",
    no_triton: f"triton is missing, the driver has {triton.__version__}",
    no_reader_of_binaries: "its workers cannot start: ModuleNotFoundError: No module named 'elft",
}


@pytest.mark.parametrize(("replace", "named"), DIFFER.items(), ids=lambda each: str(each)[:20])
def test_a_host_that_lacks_the_packages_of_the_driver_gets_no_work(
    allowed, tmp_path, winner, replace, named
):
    (tmp_path / "other").mkdir()
    with started_cluster(replaced=replace(tmp_path / "other")) as cluster:
        farm = make_farm(cluster, tmp_path / "farm")
        _, printed = follow(farm, lambda made: not forked(made.nodes["three"].process.pid) or 1 / 0)
        address = cluster.network.hosts["three"]
    assert printed.count(f"warning: host three ({address}) gets no work: {named}") == 1, printed
    assert_sound(farm)
    assert farm.task().selection.winner == winner


def test_a_cluster_with_no_other_host_is_refused_in_a_line(allowed, tmp_path):
    (tmp_path / "other").mkdir()
    with started_cluster((), replaced=other_triton(tmp_path / "other")) as cluster:
        farm = make_farm(cluster, tmp_path / "farm")
        with farm.driver() as driver:
            printed = farm.ended(driver, code=2)
    (line,) = [each for each in printed.splitlines() if each.startswith("error: ")]
    assert line == f"error: no host of the cluster can take work: three: {DIFFER[other_triton]}"
    assert farm.count() == 0


def test_a_cluster_of_another_python_is_refused_in_a_line(allowed, tmp_path):
    """Ray compares; its own code says another version here."""
    utils, other = Path(ray.__file__).with_name("_private") / "utils.py", tmp_path / "utils.py"
    other.write_text(utils.read_text().replace("sys.version_info[:3]", "(3, 99, 1)"))
    with Cluster() as cluster:
        cluster.head(cpus=1, replaced={utils: other})
        refused = cluster.tuner(tmp_path, "workers", "list", code=2)
        with pytest.raises(AssertionError, match=r"Python: 3\.99\.1"):
            cluster.add("three", cpus=1)
    (line,) = [each for each in refused.stderr.splitlines() if each.startswith("error: ")]
    assert "has other versions: The cluster was started with: Ray: " in line
    assert "Python: 3.99.1" in line
    assert platform.python_version() in line


@pytest.mark.parametrize("shift_s", [3600, -3600])
def test_the_clock_of_a_host_may_be_wrong(allowed, tmp_path, winner, shift_s):
    if shutil.which("g++") is None and not os.environ.get("CI"):
        pytest.skip("there is no compiler for the clock")
    library = tmp_path / "shifted_clock.so"
    source = Path(__file__).with_name("shifted_clock.cpp")
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    with started_cluster(LD_PRELOAD=f"{library}", SHIFT_S=f"{shift_s}") as cluster:
        farm = make_farm(cluster, tmp_path / "farm")

        def check(made):
            workers = forked(made.nodes["three"].process.pid)
            assert workers
            assert all(library.name in Path(f"/proc/{pid}/maps").read_text() for pid in workers)

        follow(farm, check)
    assert_sound(farm)
    assert farm.task().selection.winner == winner
    # No time that is stored is that of a host: the driver's clock is right.
    (run,) = farm.runs()
    times = [run.started_at, *(record.finished_at for record in farm.records()), run.finished_at]
    assert all(run.started_at <= each <= run.finished_at for each in times)
