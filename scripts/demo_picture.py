"""Draw what `outrider demo` prints as an SVG picture that needs nothing from the network.

::

    python scripts/demo_picture.py                       # run the demo, write docs/assets/demo.svg
    python scripts/demo_picture.py --input recorded.txt  # draw text with terminal colours
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, RenderableType
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

OUT = Path(__file__).parents[1] / "docs" / "assets" / "demo.svg"
COLUMNS = 100
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def picture(shown: RenderableType, title: str = "outrider demo") -> str:
    """Draw a renderable as SVG text, with fonts of the reader's machine."""
    console = Console(
        record=True, width=COLUMNS, file=StringIO(), force_terminal=True, highlight=False
    )
    console.print(shown)
    without_downloads = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    form = re.sub(r"Fira Code(?:, monospace)?", FONTS, without_downloads)
    return console.export_svg(
        title=title, theme=DIMMED_MONOKAI, code_format=form, unique_id="outrider-demo"
    )


def last_screen(printed: str) -> str:
    """Return what stays on a terminal: lines that were drawn over are gone.

    Knows what rich's live display sends: erase this line, and go up a line.
    """
    lines = [""]
    for piece in re.split(r"(\r?\n|\r|\x1b\[2K|\x1b\[1A|\x1b\[\?25[hl])", printed):
        if piece in ("\n", "\r\n"):
            lines.append("")
        elif piece == "\x1b[2K":
            lines[-1] = ""
        elif piece == "\x1b[1A":
            lines.pop()
        elif piece != "\r" and not piece.startswith("\x1b[?25"):
            lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def demo(arguments: list[str]) -> str:
    """Run the demo and return what it printed, colours included."""
    command = [sys.executable, "-m", "outrider", "demo", "--color", "always", *arguments]
    width = {"COLUMNS": str(COLUMNS)}
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, env=os.environ | width
    ).stdout.decode()


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--input", type=Path, help="text of an earlier run, - for standard input")
    parser.add_argument("--out", type=Path, default=OUT, help="the picture (default: %(default)s)")
    given, arguments = parser.parse_known_args()
    if given.input is None:
        text = demo(arguments)
    else:
        # As bytes: a text file would lose the carriage returns.
        piped = str(given.input) == "-"
        text = (sys.stdin.buffer.read() if piped else given.input.read_bytes()).decode()
    given.out.write_text(picture(Text.from_ansi(last_screen(text))), "utf-8")


if __name__ == "__main__":
    main()
