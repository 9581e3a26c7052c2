"""Take the pictures of the docs from a report, and from the terminal while the demo runs.

    python scripts/take_pictures.py results/report.html docs
    python scripts/take_pictures.py --demo docs
    python scripts/take_pictures.py results/report.html new --served http://127.0.0.1:8321
    python scripts/take_pictures.py --before old new

The first writes `report.png`, the report's first screen, and, of a report with a range of sizes,
`range.png` into the folder; Chromium is the one that `scripts/system-packages browser` installs.
The second runs `tuner demo` and writes `demo.svg`, what it prints on a terminal of 150 columns, and
`example_report.html`, its report.

The third writes the whole report and the pages of `tuner serve` at three widths, and the report as
PDF, and prints what can be counted of each: height, what a page is too wide, broken words, what axe
finds and what the console says. The fourth composes the first screens of two such folders, with the
heights of the pages, to `before_after.png` in the second.
"""

import argparse
import fcntl
import io
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.text import Text

CHROMIUM = "/usr/bin/chromium"
#: The part of the report that the README shows, in pixels.
_WIDTH, _HEIGHT = 1200, 1640
_COLUMNS = 150
_WIDTHS = (390, 1024, 1440)
#: The height in pixels that a comparison of two versions shows of each page, and its scale.
_BESIDE_HEIGHTS = {"report": 1800, "runs": 500, "run": 1100, "compare": 900, "history": 900}
_SCALE = 0.3
_BESIDE = """<style>
  body { margin: 0; padding: 8px; width: max-content; font: 11px sans-serif; background: #ccc; }
  div { display: flex; gap: 8px; margin-bottom: 8px; }
  figure { margin: 0; }
  figure:nth-child(4) { margin-left: 24px; }
  img { display: block; object-fit: cover; object-position: top; }
</style>"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path, nargs="?")
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--served", metavar="ADDRESS", help="of `tuner serve`, with two runs")
    parser.add_argument(
        "--before", type=Path, help="compose these pictures and those of the folder"
    )
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    if given.demo:
        show_demo(given.folder)
    if given.served is not None:
        show_pages(given.report, given.served, given.folder)
    elif given.report is not None:
        show_report(given.report, given.folder)
    if given.before is not None:
        compose(given.before, given.folder)


def show_report(report: Path, folder: Path) -> None:
    """Take the report's pictures."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
        page.goto(report.resolve().as_uri())
        page.screenshot(path=folder / "report.png")
        curve = page.locator("#figure-ranges-range-0")
        if curve.count():
            curve.scroll_into_view_if_needed()
            curve.locator("svg.main-svg").first.wait_for()
            curve.screenshot(path=folder / "range.png")
        browser.close()


def show_pages(report: Path, address: str, folder: Path) -> None:
    """Take whole pages at three widths, and print what can be counted of them."""
    sys.path.append(f"{Path(__file__).parents[1] / 'tests'}")
    from page_checks import list_broken_words, list_violations

    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        found = {"report": report.resolve().as_uri(), **_find_pages(page, address)}
        for name, url in found.items():
            trouble: list[str] = []
            for width in _WIDTHS:
                page.close()
                page = browser.new_page(viewport={"width": width, "height": 900})
                page.on("console", lambda message, kept=trouble: kept.append(message.text))
                page.on("pageerror", lambda error, kept=trouble: kept.append(f"{error}"))
                page.goto(url)
                _draw(page)
                page.screenshot(path=folder / f"{name}-{width}.png", full_page=True)
                height, wide = page.evaluate(
                    "[document.documentElement].flatMap("
                    "(node) => [node.scrollHeight, node.scrollWidth - innerWidth])"
                )
                broken = list_broken_words(page)
                facts = f"{height} px high, {wide} px too wide, {len(broken)} broken words"
                print(f"{name} at {width}: {facts} {broken[:3]}")
            print(f"{name}: axe: {list_violations(page)}, console: {trouble}")
        page.goto(found["report"])
        page.pdf(path=folder / "report.pdf")
        browser.close()
    facts = subprocess.run(["pdfinfo", folder / "report.pdf"], check=True, capture_output=True)
    print(f"report.pdf: {int(facts.stdout.partition(b'Pages:')[2].split()[0])} pages")


def _draw(page: Page) -> None:
    """Have every figure drawn that can be seen, which each is when it comes into view."""
    for plot in page.locator(".plot:visible").all():
        plot.scroll_into_view_if_needed()
        plot.locator("svg.main-svg").first.wait_for()
    page.evaluate("scrollTo({ top: 0, behavior: 'instant' })")


def _find_pages(page: Page, address: str) -> dict[str, str]:
    """The addresses of the served pages: the runs, one, its comparison, a history, a task."""
    page.goto(address)
    links = page.locator("table.listing td:first-child a").evaluate_all(
        "all => all.map(a => a.href)"
    )
    new, old = (link.rpartition("/")[2] for link in links[:2])
    paths = {"runs": "", "run": f"runs/{new}", "compare": f"compare?a={old}&b={new}"}
    found = {name: f"{address.rstrip('/')}/{path}" for name, path in paths.items()}
    for name, path in {"tasks": f"runs/{new}", "history": "history"}.items():
        page.goto(f"{address.rstrip('/')}/{path}")
        link = page.locator(f'tbody a[href*="/{name}/"]').first
        found[name] = link.evaluate("node => node.href")
    return found


def compose(before: Path, after: Path) -> None:
    """Write the first screens of both folders' pictures, before left, to `before_after.png`."""
    sides = {"before": before, "after": after}
    rows = [
        f"<div>{''.join(_lay_out(folder, name, side) for side, folder in sides.items())}</div>"
        for name in _BESIDE_HEIGHTS
    ]
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as scratch:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        path = Path(scratch) / "before_after.html"
        path.write_text(f"<meta charset=utf-8>{_BESIDE}{''.join(rows)}")
        page.goto(path.as_uri())
        whole = page.locator("body").screenshot()
        browser.close()
    small = Image.open(io.BytesIO(whole)).convert("RGB").quantize(64, dither=Image.Dither.NONE)
    small.save(after / "before_after.png", optimize=True)


def _lay_out(folder: Path, name: str, side: str) -> str:
    """A page's first screens of a folder, each with the height of the whole."""
    figures = ""
    for width in _WIDTHS:
        path = folder.resolve() / f"{name}-{width}.png"
        with Image.open(path) as picture:
            text = f"{name} {side}<br>{width} px wide,<br>{picture.height:,} high"
        size = f"width: {width * _SCALE}px; height: {_BESIDE_HEIGHTS[name] * _SCALE}px"
        figures += f'<figure>{text}<img src="{path.as_uri()}" style="{size}"></figure>'
    return figures


def show_demo(folder: Path) -> None:
    """Run the demo; draw what it prints and keep its report."""
    command = [sys.executable, "-m", "tuner", "demo"]
    with tempfile.TemporaryDirectory() as scratch:
        text = run_on_terminal(command, Path(scratch)).replace(f"{Path(scratch).resolve()}/", "")
        shutil.copyfile(
            Path(scratch) / "tuner-demo/results/report.html", folder / "example_report.html"
        )
    console = Console(record=True, width=_COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(f"$ tuner demo\n{text}"))
    console.save_svg(f"{folder / 'demo.svg'}", title="tuner demo", unique_id="demo")


def run_on_terminal(command: list[str], folder: Path) -> str:
    """What a command writes to stdout where that is a terminal; progress on stderr is dropped."""
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, _COLUMNS, 0, 0))
    shown = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment = {**shown, "TERM": "xterm-256color", "COLUMNS": f"{_COLUMNS}"}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=terminal, stderr=subprocess.DEVNULL
    ) as child:
        os.close(terminal)
        read = b""
        try:
            while part := os.read(main, 65536):
                read += part
        except OSError:  # Linux: the last end of the terminal is closed
            pass
        if child.wait():
            raise SystemExit(f"{' '.join(command)} has failed")
    return read.decode().replace("\r\n", "\n")


if __name__ == "__main__":
    main()
