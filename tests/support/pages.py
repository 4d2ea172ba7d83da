"""What a test reads out of an HTML page."""

from __future__ import annotations

from html.parser import HTMLParser


class Outline(HTMLParser):
    """Reads the heading and whatever points out of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.heading = ""
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a link, and whether the heading begins."""
        self._inside = tag == "h1"
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]

    def handle_data(self, data: str) -> None:
        """Keep the heading's text."""
        self.heading += data * self._inside
        self._inside = False


def outline(page: str) -> Outline:
    """Read a page."""
    found = Outline()
    found.feed(page)
    return found
