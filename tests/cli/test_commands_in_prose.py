"""Every command line of `tuner` in README and docs is one that the program accepts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from tuner.cli import make_app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands() -> Iterator[tuple[str, str]]:
    """The commands in code blocks, without comments, redirections and what follows a pipe.

    Lines with `...`, or with options in brackets, are outlines.
    """
    for page in PAGES:
        for block in re.findall(r"```\w*\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                found = re.match(r"^\s*(?:\$ )?(?:\w+=\S+ )*tuner (.*)$", line)
                if found and "..." not in found[1] and "[-" not in found[1]:
                    text = re.split(r"\s[#>|&]|;", found[1])[0]
                    yield page.name, text.strip()


COMMANDS = sorted(set(commands()))


def test_there_are_commands():
    assert len(COMMANDS) > 50


@pytest.mark.parametrize(("page", "text"), COMMANDS, ids=[text for _, text in COMMANDS])
def test_a_command_is_parsed_with_its_values(page, text):
    words = shlex.split(text)
    command = typer.main.get_command(make_app())
    context = command.make_context("tuner", list(words), resilient_parsing=True)
    rest = words
    while hasattr(command, "commands"):
        at = next(i for i, word in enumerate(rest) if word in command.commands)
        name, rest = rest[at], rest[at + 1 :]
        command = command.commands[name]
        if not hasattr(command, "commands"):
            # Converts values, and refuses unknown options and words that are too many.
            command.make_context(name, list(rest), parent=context)
