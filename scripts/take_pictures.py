"""Take the pictures of the docs from a report: its first screen, and the curve of its first range.

    python scripts/take_pictures.py results/report.html docs

writes `report.png` and, of a report with a range of sizes, `range.png` into the folder. Chromium is
the one that `scripts/system-packages browser` installs.
"""

import argparse
from pathlib import Path

from playwright.sync_api import sync_playwright

CHROMIUM = "/usr/bin/chromium"
#: The part of the report that the README shows, in pixels.
_WIDTH, _HEIGHT = 1200, 1080


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
        page.goto(given.report.resolve().as_uri())
        page.screenshot(path=given.folder / "report.png")
        curve = page.locator("#figure-ranges-range-0")
        if curve.count():
            curve.scroll_into_view_if_needed()
            curve.locator("svg.main-svg").first.wait_for()
            curve.screenshot(path=given.folder / "range.png")
        browser.close()


if __name__ == "__main__":
    main()
