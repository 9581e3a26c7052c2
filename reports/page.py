"""Assemble sections, styles, scripts and plotly.js into one self-contained page."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from reports import plotly_bundle
from reports.figures.theme import DARK_OF, template
from reports.parts.view import script_json
from reports.quantity import NOTHING, clean, count
from reports.run_data import RunData
from reports.sections import build_sections

_HERE = Path(str(files("reports")))


def render_page(data: RunData) -> str:
    """The whole page as text.

    The page's Content-Security-Policy admits its own scripts only, each by its hash.
    """
    sections = build_sections(data)
    run = data.run
    scripts = {name: _asset(name) for name in ("theme.js", "report.js")}
    plotly = Markup(plotly_bundle.script())
    moment = run.finished_at or run.started_at
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=f"{run.campaign}, run {run.run_id}",
            run=run,
            moment=moment,
            sections=sections,
            styles=_asset("report.css"),
            scripts=scripts,
            plotly=plotly,
            policy=_policy([*scripts.values(), plotly]),
            themes=script_json(
                {"light": template(dark=False), "dark": template(dark=True), "dark_of": DARK_OF}
            ),
        )
    )


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters["count"] = count
    environment.globals["nothing"] = NOTHING
    return environment


def _finalize(value: object) -> object:
    """Filter of every template expression: removes control characters, shows None as a dash."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return clean(value)
    return NOTHING if value is None else value


def _asset(name: str) -> Markup:
    return Markup((_HERE / "assets" / name).read_text(encoding="utf-8"))


def _policy(scripts: list[Markup]) -> str:
    """A Content-Security-Policy that forbids all network access and all scripts but these."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )
