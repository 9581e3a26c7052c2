"""What every page must stand: words whole at the ends of lines, and no violation that axe finds."""

from __future__ import annotations

from importlib.resources import files

#: The words and numbers that are seen on two lines.
_BROKEN = r"""() => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  const broken = [];
  for (let text; (text = texts.nextNode());) {
    if (!text.parentElement.checkVisibility() || text.parentElement.closest("svg")) continue;
    for (const { 0: word, index } of text.data.matchAll(/[\p{L}\p{N}.]+/gu)) {
      range.setStart(text, index);
      range.setEnd(text, index + word.length);
      const lines = [...range.getClientRects()].filter((box) => box.width);
      if (new Set(lines.map((box) => Math.round(box.top))).size > 1) broken.push(word);
    }
  }
  return broken;
}"""


def list_broken_words(page) -> list[str]:
    """The words of a page in a browser that are broken inside."""
    return page.evaluate(_BROKEN)


def list_violations(page) -> list[tuple[str, str]]:
    """What axe finds in a page at three widths: the rule, and the element."""
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
    seen = []
    for width in (390, 1024, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        seen += [(each["id"], each["nodes"][0]["html"]) for each in found["violations"]]
    return seen
