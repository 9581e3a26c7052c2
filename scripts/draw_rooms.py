"""Draw packages and their imports into docs/rooms.svg: `python scripts/draw_rooms.py [--check]`.

A box is a package. A package stands above all packages that it imports. An arrow from A to B means
that a module of A imports one of B when it is loaded; arrows that follow from others are left out
(transitive reduction). `--check` writes nothing and exits with 1 where the picture is out of date.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "rooms.svg"
PACKAGES = ("search_spaces", "workers", "results_db", "reports", "tuner")
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 196, 40, 18, 46, 20


def modules() -> dict[str, Path]:
    """Our modules by name; `__init__` files under their package's name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if "migrations" not in parts:
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def module_imports() -> dict[str, set[str]]:
    """The modules of ours that each module imports when it is loaded."""
    found = modules()
    edges = {}
    for name, path in found.items():
        names = set()
        for module in imported(ast.parse(path.read_text())):
            parent = module.rpartition(".")[0]
            names.add(module if module in found else parent)
        edges[name] = (names & set(found)) - {name}
    return edges


def rooms(edges: dict[str, set[str]]) -> dict[str, str]:
    """The room of each module: its package of the second level.

    Modules directly in a package form two rooms: `base` holds those that import no other room of
    the package but its folder `base`.
    """
    found = modules()
    homes = {}
    for name, path in found.items():
        parts = path.relative_to(ROOT).parts
        homes[name] = ".".join(parts[:2]) if len(parts) > 2 else parts[0]
    for name, home in list(homes.items()):
        below = {homes[low] for low in reachable(edges, name)} - {f"{home}.base"}
        inner = [each for each in below if each.startswith(f"{home}.")]
        if home in PACKAGES and not inner:
            homes[name] = f"{home} (base)"
    whole = set(PACKAGES) - set(homes.values())
    return {
        name: home.split(" ")[0] if home.split(" ")[0] in whole else home
        for name, home in homes.items()
    }


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules imported when a module is loaded: not inside functions, not for type checking."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from imported(node)


def arrows() -> dict[str, set[str]]:
    """The rooms that each room imports."""
    edges = module_imports()
    homes = rooms(edges)
    found: dict[str, set[str]] = {home: set() for home in homes.values()}
    for name, below in edges.items():
        found[homes[name]] |= {homes[low] for low in below} - {homes[name]}
    return found


def reachable(edges: dict[str, set[str]], start: str) -> set[str]:
    """All rooms below one."""
    seen: set[str] = set()
    waiting = list(edges[start])
    while waiting:
        room = waiting.pop()
        if room not in seen:
            seen.add(room)
            waiting += edges[room]
    return seen


def reduced(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Without the arrows that follow from others."""
    return {
        room: {
            low for low in below if not any(low in reachable(edges, o) for o in below if o != low)
        }
        for room, below in edges.items()
    }


def layers(edges: dict[str, set[str]]) -> dict[str, int]:
    """The longest way down from each room. Raises where imports form a circle."""
    heights: dict[str, int] = {}

    def height(room: str, above: tuple[str, ...]) -> int:
        if room in above:
            raise SystemExit(f"imports form a circle: {' -> '.join((*above, room))}")
        if room not in heights:
            below = [height(each, (*above, room)) for each in sorted(edges[room])]
            heights[room] = 1 + max(below, default=-1)
        return heights[room]

    for room in sorted(edges):
        height(room, ())
    return heights


def places(heights: dict[str, int], edges: dict[str, set[str]]) -> dict[str, tuple[int, int]]:
    """The left upper corner of every box; boxes of a layer stand above what they import."""
    rows = [
        sorted(room for room, each in heights.items() if each == layer)
        for layer in range(max(heights.values()) + 1)
    ]
    widest = max(len(row) for row in rows)
    corners: dict[str, tuple[int, int]] = {}
    for layer, row in enumerate(rows):
        ordered = sorted(row, key=lambda room: (_middle(room, edges, corners), room))
        offset = (widest - len(row)) * (WIDTH + GAP_X) // 2
        y = MARGIN + (len(rows) - 1 - layer) * (HEIGHT + GAP_Y)
        for place, room in enumerate(ordered):
            corners[room] = MARGIN + offset + place * (WIDTH + GAP_X), y
    return corners


def _middle(room: str, edges: dict[str, set[str]], corners: dict[str, tuple[int, int]]) -> float:
    below = [corners[each][0] for each in edges[room] if each in corners]
    return sum(below) / len(below) if below else 0.0


def picture() -> str:
    """The SVG document."""
    edges = arrows()
    heights = layers(edges)
    shown = reduced(edges)
    corners = places(heights, shown)
    width = max(x for x, _ in corners.values()) + WIDTH + MARGIN
    height = max(y for _, y in corners.values()) + HEIGHT + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-labelledby="t d" font-family="system-ui, sans-serif" font-size="13">',
        '<title id="t">Packages and their imports</title>',
        f'<desc id="d">{_description(shown)}</desc>',
        _STYLE,
    ]
    for room in sorted(shown):
        lines += [_arrow(corners[room], corners[low]) for low in sorted(shown[room])]
    for room, (x, y) in sorted(corners.items()):
        package = room.split(".")[0].split(" ")[0]
        lines.append(
            f'<rect class="{package}" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
            f'<text x="{x + WIDTH // 2}" y="{y + HEIGHT // 2 + 5}">{room}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


def _description(edges: dict[str, set[str]]) -> str:
    return " ".join(
        f"{room} imports {', '.join(sorted(below))}."
        for room, below in sorted(edges.items())
        if below
    )


def _arrow(high: tuple[int, int], low: tuple[int, int]) -> str:
    x1, y1 = high[0] + WIDTH // 2, high[1] + HEIGHT
    x2, y2 = low[0] + WIDTH // 2, low[1] - 5
    bend = (y2 - y1) // 2
    return f'<path d="M{x1} {y1}C{x1} {y1 + bend} {x2} {y2 - bend} {x2} {y2}"/>'


_STYLE = """<style>
rect{stroke:#4a5b6c;stroke-width:1.2}
text{text-anchor:middle;fill:#1d2733}
path{fill:none;stroke:#7a8996;stroke-width:1.1;marker-end:url(#tip)}
.search_spaces{fill:#e3f0e4}.workers{fill:#e2ecf7}.results_db{fill:#f6ead9}
.reports{fill:#f3e3ef}.tuner{fill:#f4f1d8}
</style>
<rect width="100%" height="100%" style="fill:#fff;stroke:none"/>
<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7"
 orient="auto"><path d="M0 0L8 4L0 8z" style="fill:#7a8996;stroke:none"/></marker></defs>"""


def main() -> None:
    drawn = picture()
    if "--check" in sys.argv[1:]:
        if not PICTURE.exists() or PICTURE.read_text() != drawn:
            raise SystemExit("docs/rooms.svg is out of date: run `python scripts/draw_rooms.py`")
        return
    PICTURE.write_text(drawn)


if __name__ == "__main__":
    main()
