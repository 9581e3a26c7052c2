"""The application of `tuner serve`: addresses, and what answers them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from functools import partial
from http import HTTPStatus
from typing import TypeAlias

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from results_db import Store
from results_db.errors import NothingStoredError, UnknownError
from search_spaces.errors import TunerError
from tuner.base.inert_text import inert
from tuner.serving.guard import Guard
from tuner.serving.metrics import FarmFigures, Lags
from tuner.serving.pages import FRESH_S, FindKernels, Pages
from tuner.views.runs import LARGEST

#: Pages that are kept until what they show has changed, and for how many seconds at most: trials of
#: a run that is over may be deleted.
_KEPT, _KEPT_S = 16, 60.0
_Endpoint: TypeAlias = Callable[[Request], Response]


def create_app(
    store: Store,
    find_kernels: FindKernels,
    hosts: Collection[str],
    token: str | None = None,
    lags: Lags = lambda now: {},
) -> Starlette:
    """The application over an open store, which it only reads.

    find_kernels: for the exported tables. hosts: the names that the Host header may have. token:
    what every request must carry, if any. lags: of schedules, for /metrics.
    """
    server = _Server(Pages(store, find_kernels))
    figures = FarmFigures(store, lags)
    routes: dict[str, _Endpoint] = {
        "/": server.show_runs,
        "/runs": server.show_runs,
        "/live": server.tell_runs,
        "/runs/{run:int}": server.show_run,
        "/runs/{run:int}/live": server.tell_run,
        "/runs/{run:int}/report": server.show_report,
        "/runs/{run:int}/tasks/{task:int}": server.show_task,
        "/runs/{run:int}/files/{kind}": server.send_files,
        "/compare": server.show_comparison,
        "/metrics": lambda request: Response(
            generate_latest(figures), media_type=CONTENT_TYPE_LATEST
        ),
        "/note": server.show_note,
        "/history": server.show_kernels,
        "/history/{kernel:path}": server.show_history,
    }
    return Starlette(
        routes=[
            Route(path, _answer(endpoint), methods=["GET"]) for path, endpoint in routes.items()
        ],
        middleware=[Middleware(Guard, hosts=hosts, token=token)],
    )


def _answer(endpoint: _Endpoint) -> _Endpoint:
    """The endpoint, with one line of text for what cannot be answered."""

    def answer(request: Request) -> Response:
        try:
            return endpoint(request)
        except TunerError as error:
            text = "\n".join(filter(None, map(inert, (error.message, error.hint))))
            unknown = isinstance(error, NothingStoredError | UnknownError)
            code = HTTPStatus.NOT_FOUND if unknown else HTTPStatus.BAD_REQUEST
            return PlainTextResponse(f"{text}\n", code)

    return answer


class _Server:
    """Answers requests, and keeps the last pages while nothing in them has changed."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._kept: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}

    def show_runs(self, request: Request) -> Response:
        before = _number(request, "before")
        mark = self._pages.mark_runs()
        return self._page(f"runs {before}", mark, lambda: self._pages.render_runs(mark, before))

    def tell_runs(self, request: Request) -> Response:
        mark = self._pages.mark_runs()
        return JSONResponse({"mark": mark, "running": True})

    def show_run(self, request: Request) -> Response:
        run = _part(request, "run")
        mark = self._pages.mark_run(run)
        return self._page(f"run {run}", mark, lambda: self._pages.render_run(run, mark))

    def tell_run(self, request: Request) -> Response:
        run = _part(request, "run")
        return JSONResponse(
            {"mark": self._pages.mark_run(run), "running": self._pages.is_running(run)}
        )

    def show_report(self, request: Request) -> Response:
        run = _part(request, "run")
        mark = self._pages.mark_run(run)
        return self._page(f"report {run}", mark, lambda: self._pages.render_report(run))

    def show_task(self, request: Request) -> Response:
        run, task = _part(request, "run"), _part(request, "task")
        mark = self._pages.mark_run(run, task)
        return self._page(f"task {run}/{task}", mark, lambda: self._pages.render_task(run, task))

    def show_comparison(self, request: Request) -> Response:
        a, b = (request.query_params.get(side, "") for side in "ab")
        render = partial(self._pages.render_comparison, a, b)
        return self._page(f"compare {a!r} {b!r}", _mark_time(), render)

    def show_note(self, request: Request) -> Response:
        return self._page("note", _mark_time(), self._pages.render_note)

    def show_kernels(self, request: Request) -> Response:
        return self._page("kernels", _mark_time(), self._pages.render_kernels)

    def show_history(self, request: Request) -> Response:
        kernel = request.path_params["kernel"]
        mark = self._pages.mark_runs()
        return self._page(f"of {kernel}", mark, lambda: self._pages.render_history(kernel))

    def send_files(self, request: Request) -> Response:
        run, kind = _part(request, "run"), request.path_params["kind"]
        name, content = self._pages.make_files(run, kind)
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(content, headers=headers, media_type="application/octet-stream")

    def _page(self, name: str, mark: str, render: Callable[[], str]) -> Response:
        """The page as it was made, or made by one thread for all that wait for it."""
        mark = f"{mark} {time.monotonic() // _KEPT_S}"
        with self._lock:
            making = self._making.setdefault(name, threading.Lock())
        with making:
            with self._lock:
                text = self._kept.get((name, mark))
            if text is None:
                text = render()
            with self._lock:
                self._kept[name, mark] = text
                self._kept.move_to_end((name, mark))
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
                self._making.pop(name, None)
        return HTMLResponse(text)


def _mark_time() -> str:
    """A text that changes every second, for pages that follow more than runs."""
    return f"{time.monotonic() // FRESH_S}"


def _part(request: Request, name: str) -> int:
    """A number of the path."""
    number: int = request.path_params[name]
    return min(number, LARGEST)


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
