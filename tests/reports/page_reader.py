"""A page taken apart for the report's tests: elements with their attributes, text and ancestors."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "br", "input", "img", "link", "hr"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    parent: Element | None = field(default=None, repr=False)
    parts: list[Element | str] = field(default_factory=list, repr=False)

    @property
    def children(self) -> list[Element]:
        return [part for part in self.parts if isinstance(part, Element)]

    def walk(self):
        for child in self.children:
            yield child
            yield from child.walk()

    def all(self, tag: str, **expected: str) -> list[Element]:
        names = {name.rstrip("_").replace("_", "-"): value for name, value in expected.items()}
        return [
            element
            for element in self.walk()
            if element.tag == tag
            and all(element.attributes.get(name) == value for name, value in names.items())
        ]

    def one(self, tag: str, **expected: str) -> Element:
        (found,) = self.all(tag, **expected)
        return found

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    @property
    def raw(self) -> str:
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def text(self) -> str:
        """What a reader sees, in order, with blanks made one."""
        pieces = [
            part if isinstance(part, str) else "" if part.tag == "script" else part.text
            for part in self.parts
        ]
        return " ".join(" ".join(pieces).split())


class Reader(HTMLParser):
    """Builds the tree; raises where elements do not nest."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("#root", {})
        self.here = self.root

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} repeats an attribute: {names}"
        element = Element(tag, {name: value or "" for name, value in attrs}, self.here)
        self.here.parts.append(element)
        if tag not in VOID:
            self.here = element

    def handle_endtag(self, tag):
        assert tag == self.here.tag, f"</{tag}> closes <{self.here.tag}>"
        self.here = self.here.parent

    def handle_data(self, data):
        self.here.parts.append(data)


def read(html: str) -> Element:
    reader = Reader()
    reader.feed(html.replace("<wbr>", ""))  # where a word may break
    reader.close()
    assert reader.here is reader.root, f"<{reader.here.tag}> is never closed"
    return reader.root


def figures_of(element: Element) -> dict[str, Any]:
    """The data of the figures in an element, by their anchors."""
    return {
        figure.attributes["id"].removeprefix("figure-"): json.loads(figure.one("script").raw)
        for figure in element.all("figure")
    }
