"""The whole command line as one application, for the documentation of its commands."""

from __future__ import annotations

from tuner.cli import make_app

app = make_app()
