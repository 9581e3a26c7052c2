"""Take the pictures of the docs from a report, and from the terminal while the demo runs.

    python scripts/take_pictures.py results/report.html docs
    python scripts/take_pictures.py --demo docs

The first writes `report.png`, the report's first screen, and, of a report with a range of sizes,
`range.png` into the folder; Chromium is the one that `scripts/system-packages browser` installs.
The second runs `tuner demo` and writes `demo.svg`, what it prints on a terminal of 150 columns, and
`example_report.html`, its report.
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

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

CHROMIUM = "/usr/bin/chromium"
#: The part of the report that the README shows, in pixels.
_WIDTH, _HEIGHT = 1200, 1640
_COLUMNS = 150


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path, nargs="?")
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    if given.demo:
        show_demo(given.folder)
    if given.report is not None:
        show_report(given.report, given.folder)


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
