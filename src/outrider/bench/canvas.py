"""What every plot is drawn on: a figure with a title that says what was found, saved as PNG.

Colours are those of Okabe and Ito (2008), which people who see few colours can tell apart, and no
plot rests on colour alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from importlib import import_module
from io import BytesIO
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from ..errors import InvalidConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, RED, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#8C8C8C"
SERIES = (BLUE, RED, GREEN, ORANGE, PURPLE, SKY, BLACK, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
FAINT, QUIET = "#E3E3E3", "#595959"

WIDTH = 8.0
"""Inches."""

_DPI, _COLORS = 200, 128
_TITLE, _LINE = 13, 9.5
_PLAIN: dict[str, Any] = {"parse_math": False}

Picture = tuple[str, bytes]
"""A name, which is its file's without the ending, and a PNG."""


def check_plots() -> None:
    """Refuse to go on where nothing can be drawn.

    Raises:
        InvalidConfigError: matplotlib is not installed.
    """
    try:
        import_module("matplotlib.figure")
    except ModuleNotFoundError as error:
        raise InvalidConfigError(
            "plots",
            None,
            'it for plots: pip install "outrider[bench]"',
            given="matplotlib is not installed",
        ) from error


def canvas(
    title: str,
    notes: Sequence[str],
    *,
    height: float,
    rows: int = 1,
    columns: int = 1,
    **shared: Any,
) -> tuple[Figure, list[list[Axes]]]:
    """A figure, and its axes by row and column.

    Args:
        title: what was found, in a line or two.
        notes: under which regime, and how to read the plot.
        height: of the axes, in inches.
        rows, columns: of axes.
        shared: for `Figure.subplots`.

    Raises:
        InvalidConfigError: matplotlib is not installed.
    """
    check_plots()
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    titles = wrap(title, 68)
    lines = [line for note in notes for line in wrap(note, 112)]
    head = 0.1 + 0.26 * len(titles) + 0.19 * len(lines) + 0.12
    whole = head + height
    figure = Figure(figsize=(WIDTH, whole), layout="constrained", facecolor="white")
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=(0, 0, 1, height / whole), h_pad=0.08, w_pad=0.08)
    down = 0.1
    for step, size, color, weight, texts in (
        (0.26, _TITLE, BLACK, "bold", titles),
        (0.19, _LINE, QUIET, "normal", lines),
    ):
        for text in texts:
            figure.text(
                0.1 / WIDTH,
                1 - down / whole,
                text,
                fontsize=size,
                color=color,
                fontweight=weight,
                va="top",
                **_PLAIN,
            )
            down += step
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    return figure, [list(row) for row in axes]


def dress(axes: Axes, *, grid: str, title: str = "", x: str = "", y: str = "") -> None:
    """Take from axes what says nothing, and give them names.

    Args:
        axes: to dress.
        grid: along which axis lines help to read: "x" or "y".
        title, x, y: of the axes, with their units.
    """
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(QUIET)
    axes.tick_params(labelsize=_LINE, color=QUIET)
    axes.grid(axis="x" if grid == "x" else "y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_title(title, fontsize=10.5, loc="left", **_PLAIN)
    axes.set_xlabel(x, fontsize=_LINE)
    axes.set_ylabel(y, fontsize=_LINE)


def label_rows(row: Sequence[Axes], labels: Sequence[tuple[str, bool]]) -> None:
    """Name the lines of plots that share them from the top, at 0, 1, ...; headings are bold.

    Args:
        row: the plots.
        labels: of each line, and whether it is a heading.
    """
    first, *_ = row
    names = [shortened(text) for text, _ in labels]
    first.set_yticks(range(len(labels)), names, fontsize=_LINE, **_PLAIN)
    first.set_ylim(len(labels) - 0.4, -0.6)
    for axes in row:
        axes.tick_params(axis="y", length=0)
    for tick, (_, heading) in zip(first.get_yticklabels(), labels, strict=True):
        tick.set_fontweight("bold" if heading else "normal")


def write_beside(
    axes: Axes, x: float, row: float, text: str, color: str = BLACK, *, bold: bool = False
) -> None:
    """A figure to the right of a mark."""
    axes.annotate(
        text,
        (x, row),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
        color=color,
        fontweight="bold" if bold else "normal",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        **_PLAIN,
    )


def legend(figure: Figure, marks: Sequence[Any], labels: Sequence[str], columns: int) -> None:
    """A legend below all axes."""
    drawn = figure.legend(
        marks,
        [shortened(label) for label in labels],
        loc="outside lower left",
        ncols=columns,
        frameon=False,
        fontsize=_LINE,
    )
    for text in drawn.get_texts():
        text.set_parse_math(False)


def png(figure: Figure) -> bytes:
    """The figure as a PNG, at twice the dots of a plain screen and in few colours, so small."""
    from PIL import Image

    drawn, packed = BytesIO(), BytesIO()
    with warnings.catch_warnings():
        # A letter that the font lacks is drawn as a box, which says as much.
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(drawn, format="png", dpi=_DPI)
    Image.open(drawn).convert("RGB").quantize(_COLORS).save(packed, "PNG", dpi=(_DPI, _DPI))
    return packed.getvalue()


def save(pictures: Iterable[Picture], directory: Path) -> list[Path]:
    """Write pictures into a folder, which is made if need be.

    Raises:
        OSError: it cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, data in pictures:
        path = directory / f"{name}.png"
        path.write_bytes(data)
        written.append(path)
    return written


def shortened(text: str, longest: int = 42) -> str:
    """A text on one line, its middle left out if it is long."""
    line = " ".join(text.split())
    half = (longest - 1) // 2
    return line if len(line) <= longest else f"{line[:half]}…{line[-half:]}"
