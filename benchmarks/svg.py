"""Horizontal bars with intervals as SVG text.

Colours are set by classes and follow the reader's light or dark scheme. Every bar has a title,
which browsers show when the pointer is over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

STYLE = """
.chart text{font:12px system-ui,sans-serif;fill:#24292f}
.chart .title{font-weight:600;font-size:14px}
.chart .quiet{fill:#57606a}
.chart .grid{stroke:#d0d7de;stroke-width:1}
.chart .mark{stroke:#24292f;stroke-width:1.5}
.chart .a{fill:#0969da}
@media (prefers-color-scheme:dark){
.chart text{fill:#e6edf3}.chart .quiet{fill:#9198a1}.chart .grid{stroke:#3d444d}
.chart .mark{stroke:#e6edf3}.chart .a{fill:#4493f8}
}
"""

_LEFT, _RIGHT, _TOP, _ROW, _WIDTH = 250, 60, 56, 22, 760


@dataclass(frozen=True, slots=True)
class Bar:
    """A horizontal bar: a value from 0, and its interval if known; one without is a heading."""

    label: str
    value: float | None = None
    low: float | None = None
    high: float | None = None


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Draw bars and headings from top to bottom, with a line at 1."""
    ends = [min(bar.high or bar.value, 2 * bar.value) for bar in rows if bar.value]
    ticks = _ticks(max([1.0, *ends]))
    scale = (_WIDTH - _LEFT - _RIGHT) / ticks[-1]
    bottom = _TOP + _ROW * len(rows)
    parts = []
    for tick in ticks:
        x = _LEFT + tick * scale
        parts.append(_line(x, _TOP - 8, x, bottom, "mark" if tick == 1 else "grid"))
        parts.append(_text(x, _TOP - 14, f"{tick:g}x", "quiet", "middle"))
    for y, bar in zip(range(_TOP, bottom, _ROW), rows, strict=True):
        if bar.value is None:
            parts.append(_text(0, y + 15, bar.label, "quiet"))
            continue
        shown, hint, marks = f"{bar.value:.2f}x", "", []
        if bar.low is not None and bar.high is not None:
            hint = f", 95% interval {bar.low:.2f} to {bar.high:.2f}"
            low, high = (_LEFT + min(each, ticks[-1]) * scale for each in (bar.low, bar.high))
            marks = [_line(low, y + 10, high, y + 10, "mark")]
            # An end beyond the axis has no cap.
            caps = [x for x, each in ((low, bar.low), (high, bar.high)) if each <= ticks[-1]]
            marks += [_line(x, y + 6, x, y + 14, "mark") for x in caps]
        parts += [
            _text(_LEFT - 8, y + 15, bar.label, anchor="end"),
            _rectangle(
                _LEFT, y + 3, bar.value * scale, _ROW - 7, "a", f"{bar.label}: {shown}{hint}"
            ),
            _text(_WIDTH, y + 15, shown, anchor="end"),
            *marks,
        ]
    return _picture(bottom + 8, title, parts)


def _ticks(most: float) -> list[float]:
    """Round numbers from 0 to at least `most`, four to nine of them."""
    size = 10 ** floor(log10(most)) if most > 0 else 1.0
    step = next(each for each in (size / 5, size / 4, size / 2, size, 2 * size) if most / each <= 6)
    return [round(step * index, 10) for index in range(ceil(most / step - 1e-9) + 1)]


def _picture(height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'role="img" aria-label="{escape(title)}"><style>{STYLE}</style>'
        f"{_text(0, 16, title, 'title')}{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _line(x: float, y: float, to_x: float, to_y: float, kind: str) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" class="{kind}"/>'


def _rectangle(x: float, y: float, width: float, height: float, kind: str, hint: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" class="{kind}">'
        f"<title>{escape(hint)}</title></rect>"
    )
