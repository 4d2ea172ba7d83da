"""HTML pages of one file: no script, nothing fetched, legible on a phone and in the dark."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from .. import __version__
from .canvas import Picture

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --quiet: #5b5b5b; --line: #d8d8d8;
  --tint: #f3f5f7; --good: #00598c; --bad: #a34700; --warn: #fff2d6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #141414; --quiet: #a8a8a8;
  --line: #3a3a3a; --tint: #1f2226; --good: #6ebff0; --bad: #ff9d5c; --warn: #46360f; }
  figure img { filter: invert(0.92) hue-rotate(180deg); } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0.5rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; }
p { margin: 0.4rem 0; } .quiet { color: var(--quiet); }
.banner { background: var(--warn); border-left: 0.3rem solid var(--bad); padding: 0.6rem 0.8rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.7rem 0.25rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--quiet); font-weight: 600; vertical-align: bottom; }
td.figure, th.figure { text-align: right; }
td.text { white-space: normal; overflow-wrap: break-word; max-width: 40rem; }
tr.group td { font-weight: 700; background: var(--tint); padding-left: 0.3rem; }
.good { color: var(--good); font-weight: 700; } .bad { color: var(--bad); font-weight: 700; }
figure { margin: 1rem 0; overflow-x: auto; }
figure img { display: block; width: 100%; min-width: 34rem; height: auto; }
"""

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

Row = Sequence[str]


def html_page(title: str, parts: Iterable[str]) -> str:
    """A whole document.

    Args:
        title: text, which is also the first heading.
        parts: HTML.
    """
    head = (
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
    )
    foot = f'<p class="quiet">Made by outrider {escape(__version__)}.</p>'
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en">',
            *("<head>", *head, "</head>"),
            *("<body>", f"<h1>{escape(title)}</h1>", *parts, foot, "</body>"),
            "</html>\n",
        )
    )


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of text."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def section(heading: str, *parts: str) -> str:
    """HTML under a heading."""
    return "\n".join((f"<section><h2>{escape(heading)}</h2>", *parts, "</section>"))


def cell(text: str, kind: str = "") -> str:
    """A cell of text: `kind` is "figure" for numbers, "text" for what may wrap."""
    return f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"


def group(text: str, columns: int) -> Row:
    """A row that is the heading of those below."""
    return (f'<td colspan="{columns}">{escape(text)}</td>',)


def table(headings: Sequence[tuple[str, str]], rows: Iterable[Row]) -> str:
    """A table that scrolls sideways where it is too wide.

    Args:
        headings: text and kind of each column, as for `cell`.
        rows: cells as HTML; one alone among several columns is a group's heading.
    """
    head = "".join(f'<th class="{kind}" scope="col">{escape(text)}</th>' for text, kind in headings)
    body = "\n".join(
        f'<tr class="group">{row[0]}</tr>'
        if len(row) == 1 < len(headings)
        else f"<tr>{''.join(row)}</tr>"
        for row in rows
    )
    return f'<div class="wide"><table>\n<tr>{head}</tr>\n{body}\n</table></div>'


def pairs(found: Iterable[tuple[str, str]]) -> str:
    """Names and what they stand for."""
    rows = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th>{cell(text, "text")}</tr>' for name, text in found
    )
    return f'<div class="wide"><table>\n{rows}\n</table></div>'


def listed(texts: Iterable[str]) -> str:
    """A list of texts."""
    return "<ul>\n" + "\n".join(f"<li>{escape(text)}</li>" for text in texts) + "\n</ul>"


def plots(pictures: Iterable[Picture]) -> str:
    """Pictures, each inside the page."""
    return "\n".join(
        f'<figure><img alt="{escape(name.replace("-", " "))}" '
        f'src="data:image/png;base64,{b64encode(data).decode()}"></figure>'
        for name, data in pictures
    )


def flat(values: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    """Nested settings as names with dots and texts; what is None is left out."""
    found: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += flat(value, f"{above}{name}.")
        elif isinstance(value, list | tuple):
            found.append((f"{above}{name}", ", ".join(map(str, value)) or "none"))
        elif value is not None:
            found.append((f"{above}{name}", str(value)))
    return found
