"""Showing where each token came from: by colour, or by marks where there is none."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..engine.outputs import Origin

Paint = Callable[[str, "Origin"], str]

_STYLES = {"draft": "32", "correction": "1;4;33"}
_MARKS = {"correction": ("⟨", "⟩"), "bonus": ("«", "»")}


def wants_color(choice: str) -> bool:
    """Whether standard output is to be coloured, for `--color` auto, always or never."""
    if choice != "auto":
        return choice == "always"
    quiet = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not quiet


def colored(text: str, origin: Origin) -> str:
    """Draft tokens green, corrections bold yellow and underlined, bonus tokens as they are."""
    style = _STYLES.get(origin)
    return text if style is None else _around(text, f"\x1b[{style}m", "\x1b[0m")


def marked(text: str, origin: Origin) -> str:
    """Draft tokens as they are, ⟨corrections⟩ and «bonus tokens» in brackets."""
    marks = _MARKS.get(origin)
    return text if marks is None else _around(text, *marks)


def unpainted(text: str, origin: Origin) -> str:
    """The text alone."""
    return text


def _around(text: str, before: str, after: str) -> str:
    """Put marks around the text inside its surrounding white space, if there is any."""
    core = text.strip()
    return text.replace(core, f"{before}{core}{after}") if core else text
