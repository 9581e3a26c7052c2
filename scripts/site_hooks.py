"""Hooks of the documentation site: pages that are generated, and links that leave `docs/`.

The line `<!-- generated: NAME -->` or `<!-- generated: NAME ARGUMENT -->` of a page is replaced by
the output of the generator NAME, and `<!-- file: PATH -->` by the text of that Python file of the
repository.
Links to files of the repository outside `docs/` point to the source repository's browser.
"""

from __future__ import annotations

import csv
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_MARK = re.compile(r"^<!-- generated: (\w+)(?: (\w+))? -->$", re.MULTILINE)
_FILE = re.compile(r"^<!-- file: (\S+) -->$", re.MULTILINE)
_OUTSIDE = re.compile(
    r"\[([^\]]*)\]\((?:\.\./)+(?!tutorials/|reference/|decisions/)([^)#]*)[^)]*\)"
)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """mkdocs calls this with the text of every page."""
    markdown = _MARK.sub(lambda match: GENERATORS[match[1]](*filter(None, [match[2]])), markdown)
    markdown = _FILE.sub(lambda match: f"```python\n{(ROOT / match[1]).read_text()}```", markdown)
    depth = page.file.src_uri.count("/")
    return _OUTSIDE.sub(lambda match: _outside(match, depth), markdown)


def _outside(match: re.Match[str], depth: int) -> str:
    """A link that leaves `docs/` becomes the path in the repository; other links stay."""
    climbs = match[0].count("../")
    if climbs <= depth:
        return match[0]
    return f"{match[1]} (`{match[2]}` in the repository)"


def commands() -> str:
    """The help of every command, as Markdown."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "typer",
            "scripts/every_command.py",
            "utils",
            "docs",
            "--name",
            "tuner",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    return text.split("\n", 1)[1]


def configuration() -> str:
    """Every key of config.yaml with type, default and meaning, from its JSON schema."""
    schema = json.loads((ROOT / "docs" / "config.schema.json").read_text())
    sections = [("config.yaml", schema)]
    for name, part in schema["$defs"].items():
        objects = [each for each in (part, *part.get("anyOf", ())) if "properties" in each]
        sections += [
            (name, {**each, "description": part.get("description", "")}) for each in objects
        ]
    return "\n\n".join(_section(name, part) for name, part in sections)


def keywords() -> str:
    """The keywords of `tune` with types and defaults, from its signature."""
    sys.path.insert(0, f"{ROOT}")
    import tuner

    rows = ["| keyword | type | default |", "|---|---|---|"]
    for each in inspect.signature(tuner.tune).parameters.values():
        if each.kind is each.KEYWORD_ONLY:
            kind = re.sub(r"[a-z_]+\.", "", inspect.formatannotation(each.annotation))
            kind = kind.replace(" | ", "` or `")
            rows.append(f"| `{each.name}` | `{kind}` | `{each.default!r}` |")
    return "\n".join(rows)


def results(kernel: str) -> str:
    """The results of a kernel's workloads by device, from docs/kernels.csv."""
    with (ROOT / "docs" / "kernels.csv").open(newline="") as file:
        heads, *rows = csv.reader(file)
    parts = []
    for (device, measured), found in groupby(
        (row for row in rows if row[0] == kernel), lambda row: (row[1], row[2])
    ):
        cells = [[f"`{row[3]}`", *row[4:]] if device else [f"`{row[3]}`"] for row in found]
        shown = heads[3:] if device else heads[3:4]
        parts.append(f"{device}, {measured}:" if device else "No result is committed.")
        lines = [shown, ["---"] * len(shown), *cells]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts)


def _section(name: str, schema: dict[str, Any]) -> str:
    rows = [f"### {name}", "", schema.get("description", ""), ""]
    rows += ["| key | type | default | meaning |", "|---|---|---|---|"]
    required = schema.get("required", [])
    for key, part in schema["properties"].items():
        default = "required" if key in required else _default(part)
        meaning = " ".join(part.get("description", "").split())
        rows.append(f"| `{key}` | {_type(part)} | {default} | {_cell(meaning)} |")
    return "\n".join(rows)


def _default(part: dict[str, Any]) -> str:
    """The default of a key; empty for a section, whose keys have theirs, and for an empty one."""
    return "" if "$ref" in part or "default" not in part else f"`{json.dumps(part['default'])}`"


def _type(part: dict[str, Any]) -> str:
    if "$ref" in part:
        name = part["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    for group in ("anyOf", "oneOf"):
        if group in part:
            return " or ".join(dict.fromkeys(_type(each) for each in part[group]))
    if "const" in part:
        return f"`{part['const']}`"
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"])
    kind = part.get("type", "any")
    if kind == "array" and isinstance(part.get("items"), dict):
        return f"list of {_type(part['items'])}"
    if kind == "object" and isinstance(part.get("additionalProperties"), dict):
        return f"mapping to {_type(part['additionalProperties'])}"
    return str(kind)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


GENERATORS: dict[str, Callable[..., str]] = {
    "commands": commands,
    "configuration": configuration,
    "keywords": keywords,
    "results": results,
}
