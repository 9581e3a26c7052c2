"""Real clusters; killing processes is what `pools` does too, and whole farms what `farm` does."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

for _folder in ("pools", "farm"):
    sys.path.append(str(Path(__file__).parents[1] / _folder))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """A head without processors, and two nodes; Ray is told that one of them has two GPUs.

    The nodes see nothing of what a test has in its temporary folder, only `cluster.shared`.
    """
    from clusters import Cluster

    blind = [tmp_path_factory.getbasetemp()]
    with Cluster() as made:
        made.head(cpus=0)
        with ThreadPoolExecutor() as threads:
            started = [
                threads.submit(made.add, "plain", cpus=3, blind=blind),
                threads.submit(made.add, "gpus", cpus=4, gpus=2, blind=blind),
            ]
        for each in started:
            each.result()
        yield made
