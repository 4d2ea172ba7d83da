"""The folder that `outrider bench` leaves: results, plots and a page."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from ..errors import InvalidConfigError
from . import config_file

if TYPE_CHECKING:
    from ..bench.records import BenchResult

RESULT = "result.json"


class Folder:
    """A folder that can be written to, and has no result yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    @contextmanager
    def prepared(asked: str | None, *, quick: bool) -> Iterator[Folder | None]:
        """The folder that was asked for, checked before anything is measured.

        One that was made for it and stays empty is removed again.

        Args:
            asked: its path; None for none, or with `quick` for a new one named by the time.
            quick: see there.

        Raises:
            InvalidConfigError: it cannot be written to, or holds a result.
        """
        if asked is None and not quick:
            yield None
            return
        name = asked or f"outrider-bench-{datetime.now():%Y%m%d-%H%M%S}"
        path = Path(name).expanduser()
        new = not path.exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=path):
                pass
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise InvalidConfigError("--out", name, f"a folder to write to ({reason})") from error
        if held := sorted(each.name for each in path.iterdir()):
            expected = f"a new folder, or an empty one; this has {held[0]} in it: give another name"
            raise InvalidConfigError("--out", name, expected)
        try:
            yield Folder(path)
        finally:
            if new and not any(path.iterdir()):
                path.rmdir()

    def write(self, result: BenchResult) -> None:
        """Write the figures."""
        from ..bench import documents, tables

        self._put(RESULT, (documents.as_json(result) + "\n").encode())
        self._put("result.md", tables.as_markdown(result).encode())
        self._put("result.csv", documents.as_csv(result).encode())

    def draw(self, result: BenchResult) -> None:
        """Write the plots, where they can be made, and the page."""
        from ..bench.canvas import Picture, check_plots
        from ..bench.page import page
        from ..bench.plots import pictures

        drawn: list[Picture] = []
        try:
            check_plots()
        except InvalidConfigError as error:
            print(f"outrider: no plots: {error}", file=sys.stderr)
        else:
            drawn = pictures(result)
        for name, data in drawn:
            self._put(f"{name}.png", data)
        self._put("index.html", page(result, drawn).encode())

    def _put(self, name: str, data: bytes) -> None:
        config_file.write(self.path / name, data)
