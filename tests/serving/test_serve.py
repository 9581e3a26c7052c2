"""`tuner serve` as a process of its own: who may read, what the pages show, what they follow."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from made_up_spaces import synthesize
from page_checks import list_broken_words, list_violations
from serving_samples import CONFIG, HOSTILE, fill

from results_db import Store, TrialRecord
from results_db.stored_records import TaskKey
from search_spaces.records import Device, Status, Toolchain, Workload
from tuner.base.log_ratio import LogRatio
from tuner.serving.pages import Pages

ROOT = Path(__file__).parents[2]
#: Of processes that find the pool in virtual time.
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests/plugins"}


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[str]:
    """The address of a server over the folder's database."""
    command = [sys.executable, "-m", "tuner", "serve", "--port", "0", *arguments]
    with subprocess.Popen(
        command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.send_signal(signal.SIGINT)
            try:
                assert server.wait() == 0
            finally:
                server.kill()


def fetch(
    address: str, path: str = "/", method: str = "GET", **headers: str
) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection(urlsplit(address).netloc)
    with closing(connection):
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer, answer.read()


def ask(*request: str, **headers: str) -> tuple[HTTPResponse, str]:
    answer, content = fetch(*request, **headers)
    return answer, content.decode(errors="replace")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("serve")
    fill(made)
    return made


@pytest.fixture(scope="module")
def address(folder) -> Iterator[str]:
    with serving(folder) as found:
        yield found


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::1", "10.0.0.1"])
def test_a_foreign_host_name_is_refused(address, host):
    answer, text = ask(address, Host=host)
    # A header that is no host name at all may be refused before.
    assert answer.status in (421, 400)
    assert "run" not in text.lower() or "--allow-host" in text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:9"])
def test_the_names_of_this_machine_are_served(address, host):
    assert ask(address, Host=host)[0].status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/runs/1", "/runs/1/files/csv", "/compare", "/nowhere"])
def test_nothing_can_be_written(address, folder, method, path):
    answer, _ = ask(address, path, method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


def test_answers_forbid_what_other_sites_could_do(address):
    answer, _ = ask(address, "/runs/1")
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "Server" not in answer.headers


def test_a_token_is_asked_for_and_becomes_a_cookie(folder):
    with serving(folder, "--token", "se cret&1") as address:
        assert address.endswith("/?token=se+cret%261")
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "tuner-token=wrong"}):
            answer, text = ask(address, "/runs/1", **headers)
            assert answer.status == 401
            assert "token is missing or wrong" in text
        assert ask(address, "/", Authorization="Bearer se cret&1")[0].status == 200
        query = urlsplit(address).query
        answer, _ = ask(address, f"//evil.example/runs?a=1&{query}")
        assert (answer.status, answer.headers["Location"]) == (303, "/evil.example/runs?a=1")
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert ask(address, "/", Cookie=cookie.partition(";")[0])[0].status == 200


def test_beyond_loopback_a_token_is_made(folder):
    with serving(folder, "--host", "0.0.0.0") as address:
        assert len(urlsplit(address).query) > len("token=") + 20
        local = f"http://127.0.0.1:{urlsplit(address).port}"
        assert ask(local)[0].status == 401
        assert ask(local, f"/?{urlsplit(address).query}")[0].status == 303


def test_the_pages_lead_from_the_runs_to_a_trial(address):
    _, runs = ask(address, "/runs")
    assert runs == ask(address)[1]
    assert '<a href="/runs/2">2</a>' in runs
    assert "<td>1 faster</td>" in runs.replace(' class="short"', "")
    _, run = ask(address, "/runs/1")
    assert "softmax" in run
    assert 'href="/runs/1/tasks/1#' in run
    assert "plotly.js" not in run
    _, task = ask(address, "/runs/1/tasks/1")
    assert "BLOCK" in task
    assert "plotly.js" in task
    _, report = ask(address, "/runs/1/report")
    assert "Leaderboard" in report


def test_the_page_of_a_task_is_made_anew_for_its_own_trials_only(tmp_path):
    facts = {"flops": 0.0, "bytes": 0.0, "tolerance": None}
    with Store.open(f"sqlite:///{tmp_path}/tuner.db") as store:
        run = store.begin_run("c", "spec", 1, {}, {}).run_id
        tasks = []
        for name in ("softmax", "matmul"):
            key = TaskKey(name, "0", "0", Workload.of(M=1), Device("cpu", "", "cpu"), Toolchain())
            tasks.append(store.ensure_task(run, key, **facts).task_id)

        def marks() -> list[str]:
            pages = Pages(store, lambda tasks: {})
            return [pages.mark_run(run, task) for task in (*tasks, None)]

        before = marks()
        assert before == marks()
        store.record_trial(tasks[0], TrialRecord("a", 0, {"BLOCK": 1}, Status.CORRECT))
        changed = [old != new for old, new in zip(before, marks(), strict=True)]
        assert changed == [True, False, True]


def test_two_runs_are_compared(address):
    _, form = ask(address, "/compare")
    assert '<option value="1" selected>' in form
    assert form.count('<select name="') == 2
    _, found = ask(address, "/compare?a=1&b=2")
    assert "Run 2 against run 1: 1 faster, 0 slower" in found
    headings = re.findall("<th scope=.col.>(.*?)</th>", found)
    assert headings[:4] == ["Kernel", "Verdict", "Run 1", "Run 2"]
    assert '<a href="/runs/2/tasks/2">softmax</a><small>rows=8192 cols=8192' in found
    answer, text = ask(address, "/compare?a=nobody&b=2")
    assert answer.status == 400
    assert text.startswith("no run has the tag 'nobody'")
    # Unlike the command, the page reads no file.
    answer, text = ask(address, "/compare?a=config.json&b=2")
    assert (answer.status, text.splitlines()[0]) == (400, "no run has the tag 'config.json'")


def test_the_note_is_a_page(address):
    _, page = ask(address, "/")
    assert '<a href="/note">what happened lately</a>' in page
    answer, page = ask(address, "/note")
    assert answer.status == 200
    assert "<td>trials</td>" in page or ">trials<" in page


def test_a_kernel_has_a_history(address):
    _, kernels = ask(address, "/history")
    assert '<a href="/history/softmax">softmax</a>' in kernels
    _, page = ask(address, "/history/softmax")
    assert 'href="/runs/2"' in page
    assert "-9.5% [" in page  # exp(0.5 - 0.6) - 1
    assert 'id="figure-history-times"' in page


def test_regressions_of_all_kernels_are_listed(tmp_path):
    fill(tmp_path)
    with Store.open(f"sqlite:///{tmp_path / 'results' / 'tuner.db'}") as store:
        pages = Pages(store, lambda tasks: {})
        assert "Regressions" not in pages.render_kernels()
        store.raise_regression(2, 1, 2, LogRatio(0.03, 0.02, 0.04))
        page = pages.render_kernels()
    assert '<a href="/history/softmax">softmax</a><small>rows=8192 cols=8192' in page
    assert '<a href="/runs/2/tasks/2">run 2</a>' in page
    assert "+3.0% [+2.0%, +4.1%]" in page
    assert "candidate" in page


@pytest.mark.parametrize(
    ("path", "code"),
    [("/runs/99", 404), ("/history/sofmax", 404), ("/runs/99/report", 404),
     ("/runs/1/tasks/99", 404), ("/nowhere", 404),
     ("/runs/1/files/nothing", 400), ("/runs/99999999999999999999", 404), ("/?before=x", 200)],
)  # fmt: skip
def test_what_is_not_there_gets_a_line(address, path, code):
    answer, text = ask(address, path)
    assert answer.status == code
    assert "Traceback" not in text
    if code != 200:
        assert len(text.splitlines()) <= 2


def test_files_are_those_of_export(address, folder):
    command = [sys.executable, "-m", "tuner", "export", "1", "-f", "csv", "-o", "out"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    answer, content = fetch(address, "/runs/1/files/csv")
    names = sorted(path.name for path in (folder / "out").iterdir())
    if len(names) == 1:
        assert content == (folder / "out" / names[0]).read_bytes()
    else:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            assert sorted(archive.namelist()) == names
            for name in names:
                assert archive.read(name) == (folder / "out" / name).read_bytes()
    assert answer.headers["Content-Disposition"].startswith("attachment; ")


def test_fifty_clients_get_the_same_pages(address):
    paths = ["/", "/runs/1", "/runs/1/tasks/1", "/runs/1/report", "/live", "/history"]
    paths += ["/compare?a=1&b=2"]
    with ThreadPoolExecutor(50) as clients:
        found = list(clients.map(lambda at: ask(address, paths[at % len(paths)]), range(350)))
    assert {answer.status for answer, _ in found} == {200}
    for at in range(len(paths)):
        assert len({text for _, text in found[at :: len(paths)]}) == 1


def test_an_address_in_use_is_named(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "tuner", "serve", "--port", f"{port}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 2
    error, hint = done.stderr.splitlines()
    assert error.startswith(f"error: serve: cannot listen at 127.0.0.1 port {port} (")
    assert hint.startswith("hint: give another --port")


#: Where an element ends, in pixels from the left.
_END = "node => node.getBoundingClientRect().right"


def test_pages_follow_a_run_and_hostile_text_stays_inert(browser, tmp_path):
    synthesize(60, seed=1).save(tmp_path / "space.json.gz", columns=True)
    (tmp_path / "config.yaml").write_text(CONFIG)
    fill(tmp_path, config=False)
    trouble: list[str] = []
    with serving(tmp_path) as address:
        page = browser.new_page()
        page.set_default_timeout(300_000)
        page.on("console", lambda message: trouble.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (trouble.append("dialog"), dialog.dismiss()))
        page.goto(address)
        assert page.get_by_text(HOSTILE[:20]).count() >= 1
        command = [sys.executable, "-m", "tuner", "run", "c", "--no-report", "--quiet"]
        with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT) as run:
            # The list of runs follows without a reload, and then so does the run's own page.
            page.get_by_role("link", name="3", exact=True).click()
            page.get_by_text("run 3 of c: finished").wait_for()
            assert run.wait() == 0
        page.locator("#listing tbody tr").get_by_role("link").click()
        page.locator("details.task[open]").wait_for()
        page.goto(f"{address}compare")
        page.get_by_label("Run").select_option("2")
        page.get_by_label("against").select_option("1")
        page.get_by_role("button", name="Compare").click()
        page.get_by_text("Run 2 against run 1").wait_for()
        for path in ("", "runs/3", "compare?a=1&b=2", "history/softmax", "note"):
            page.set_viewport_size({"width": 390, "height": 900})
            page.goto(f"{address}{path}")
            assert set(list_broken_words(page)) <= {"script", "alert", "onerror"}
            assert page.evaluate("document.documentElement.scrollWidth") == 390
            assert list_violations(page) == []
            page.set_viewport_size({"width": 390, "height": 900})
            assert page.locator(".brand").bounding_box()["height"] < 30  # one line
            if path.startswith("compare"):
                assert page.locator(".verdict").first.evaluate(_END) < 390
        page.close()
    assert trouble == []


def test_a_run_shows_its_pages_until_they_are_closed(tmp_path):
    synthesize(60, seed=1).save(tmp_path / "space.json.gz", columns=True)
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "browser.py").write_text(
        "import sys, urllib.request\n"
        "page = urllib.request.urlopen(sys.argv[1]).read().decode()\n"
        "open('seen', 'w').write(sys.argv[1] + ' ' + str('</html>' in page))\n"
    )
    environment = {**ENVIRONMENT, "BROWSER": f"{sys.executable} browser.py %s"}
    os.mkfifo(tmp_path / "seen")
    main, terminal = pty.openpty()
    command = [sys.executable, "-m", "tuner", "run", "c", "--open", "--no-report"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdin=terminal, stderr=subprocess.PIPE, text=True
    ) as run:
        try:
            url, whole = (tmp_path / "seen").read_text().split()
            assert whole == "True"
            assert run.stderr is not None
            assert any(f"the pages stay at {url}" in line for line in run.stderr)
            run.send_signal(signal.SIGINT)
            assert run.wait() == 0
        finally:
            run.kill()
    for end in (main, terminal):
        os.close(end)
    with pytest.raises(OSError, match="refused"):
        ask(url)
