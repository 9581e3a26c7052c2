"""The real command line, in this process: arguments in, exit code and both streams out."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from bench_samples import recording
from virtual_pool import VirtualPool

from search_spaces.recorded.recorded_kernel import RecordedSpace
from tuner.cli import invoke
from workers import pools

# The helper that forks.
sys.path.append(str(Path(__file__).parents[1] / "spaces"))


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one error line of a failed command."""
        lines = self.err.splitlines()
        found = [line for line in lines if line.startswith("error: ")]
        assert len(found) == 1, self.err
        assert lines.index(found[0]) + 1 == len(lines) or lines[-1].startswith("hint: ")
        assert "Traceback" not in self.err
        return found[0].removeprefix("error: ")

    @property
    def hint(self) -> str:
        return self.err.splitlines()[-1].removeprefix("hint: ")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("TUNER_CONFIG", raising=False)
    return tmp_path


@pytest.fixture
def tuner(folder, capsys) -> Callable[..., Result]:
    def call(*arguments: object) -> Result:
        capsys.readouterr()
        code = invoke([str(argument) for argument in arguments])
        streams = capsys.readouterr()
        return Result(code, streams.out, streams.err)

    return call


@pytest.fixture
def virtual(monkeypatch) -> None:
    """All pools are in virtual time, those too that are local whatever config.yaml says."""
    monkeypatch.setattr(pools, "create", VirtualPool)


@pytest.fixture
def replay(folder, virtual) -> Callable[..., RecordedSpace]:
    """Writes the kernel `RECORDED`, which all commands replay without processes."""
    return partial(recording, folder)


@pytest.fixture
def url(folder) -> str:
    """The database of the folder's campaigns."""
    return f"sqlite:///{folder / 'results' / 'tuner.db'}"


@pytest.fixture
def webhook():
    """A local server: the texts it was sent, and the status that it answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            texts.append(json.loads(body)["text"])
            self.send_response(status[0])
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    texts, status = [], [200]
    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.texts, server.status = texts, status
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
