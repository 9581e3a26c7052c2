"""`tuner report` and `tuner serve`: runs as one HTML file, or as live pages."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

import typer

from search_spaces.errors import TunerError
from tuner.base.inert_text import inert
from tuner.cli.command_context import (
    ConfigOption,
    RunArgument,
    flag,
    settings_of,
    store_of,
)
from tuner.cli.console import note
from tuner.views.runs import pick_run

if TYPE_CHECKING:
    from tuner.settings.sections import Settings


def report(
    run: RunArgument = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The HTML file to write; with --all, the folder."),
    ] = None,
    every: Annotated[
        bool, flag("--all", help="Write the missing reports of all runs, and an index of them.")
    ] = False,
    show: Annotated[bool, flag("--open", help="Open it in the browser.")] = False,
    config: ConfigOption = None,
) -> None:
    """Write the HTML report of a run, or those of all runs into a folder."""
    if every and run is not None:
        raise TunerError("--all takes no run", "leave one of them out")
    settings, _ = settings_of(config)
    with store_of(settings) as store:
        import reports
        from reports.folder import write_reports

        results = Path(settings.paths.results)
        if every:
            path = write_reports(store, output or results / "reports")
        else:
            path = reports.write(
                store, pick_run(store, run).run_id, output or results / "report.html"
            )
    print(inert(path))
    if show:
        import webbrowser

        if not webbrowser.open(path.resolve().as_uri()):
            note("no browser could be started")


_ADDRESS = "127.0.0.1"
_POLL_S = 0.2
#: As many waiting connections as the system lets a server have by default.
_BACKLOG = 128


def serve(
    host: Annotated[
        str,
        typer.Option(help="The address to listen at; any but a loopback address needs a token."),
    ] = _ADDRESS,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8321,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="TUNER_SERVE_TOKEN",
            help="Ask for this token; beyond loopback a random one by default.",
            show_default=False,
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A further name under which browsers reach the pages; may be repeated.",
            show_default=False,
        ),
    ] = None,
    show: Annotated[bool, flag("--open", help="Open the pages in the browser.")] = False,
    config: ConfigOption = None,
) -> None:
    """Serve runs, reports, comparisons and history as pages that follow running campaigns.

    The pages only read the database. Ctrl-C ends it.
    """
    import uvicorn

    from tuner.cli.export import own_kernels
    from tuner.schedule.ticker import list_lags
    from tuner.serving.app import create_app
    from tuner.serving.guard import LOOPBACK

    settings, base = settings_of(config)
    bound = _bind(host, port)
    address, port = bound.getsockname()[:2]
    own = address in LOOPBACK
    token = token or (None if own else secrets.token_urlsafe(24))
    names = {*LOOPBACK, host.lower(), address, *(allow_host or ())}
    if not own:
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    with suppress(KeyboardInterrupt), bound, store_of(settings) as store:
        kernels = partial(own_kernels, settings, base, store)
        app = create_app(store, kernels, names, token, partial(list_lags, settings, store))
        name = f"[{address}]" if ":" in address else address
        url = f"http://{name}:{port}/" + (f"?{urlencode({'token': token})}" if token else "")
        print(url, flush=True)
        note("serving; Ctrl-C ends it")
        if show:
            # A browser may only return when it has the page.
            threading.Thread(target=_open, args=(url,), daemon=True).start()
        options = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        uvicorn.Server(options).run([bound])


def _open(url: str) -> None:
    import webbrowser

    if not webbrowser.open(url):
        note("no browser could be started")


@contextmanager
def show_pages(settings: Settings) -> Iterator[None]:
    """Serve the database's pages and open them in the browser, for the length of the block.

    On a terminal they stay until Ctrl-C. The server is a process of its own, so that it takes no
    time of a run's driver, and of its own session, so that no signal from the terminal ends it
    before the run.
    """
    with store_of(settings, create=True):
        environment = {**os.environ, "TUNER__DATABASE__URL": settings.database.url}
    command = [sys.executable, "-m", "tuner", "serve", "--port", "0", "--open"]
    with subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            yield
            if sys.stdin.isatty() and (url := server.stdout.readline().strip()):
                with suppress(KeyboardInterrupt):
                    note(f"the pages stay at {url} until Ctrl-C")
                    # A signal just before a wait without an end would be noticed after it.
                    while server.poll() is None:
                        time.sleep(_POLL_S)
        finally:
            server.terminate()


def _bind(host: str, port: int) -> socket.socket:
    """A socket at the address. Raises `TunerError` where it is taken or not of this machine."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = error.strerror or f"{error}"
        raise TunerError(
            f"serve: cannot listen at {host} port {port} ({reason})",
            "give another --port, 0 for a free one, or another --host",
        ) from None
    return bound
