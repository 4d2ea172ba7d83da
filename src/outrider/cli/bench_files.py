"""The folder that `outrider bench` leaves: results, plots and a page."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from ..errors import InvalidConfigError

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
        if any(path.iterdir()):
            raise InvalidConfigError("--out", name, "a new folder, or an empty one")
        try:
            yield Folder(path)
        finally:
            if new and not any(path.iterdir()):
                path.rmdir()

    def write(self, result: BenchResult) -> None:
        """Write all files: first the figures, so that a failing plot costs none of them."""
        from ..bench import documents, tables
        from ..bench.canvas import Picture, check_plots, save
        from ..bench.page import page
        from ..bench.plots import pictures

        self._put(RESULT, documents.as_json(result) + "\n")
        self._put("result.md", tables.as_markdown(result))
        self._put("result.csv", documents.as_csv(result))
        drawn: list[Picture] = []
        try:
            check_plots()
        except InvalidConfigError as error:
            print(f"outrider: no plots: {error}", file=sys.stderr)
        else:
            drawn = pictures(result)
            save(drawn, self.path)
        self._put("index.html", page(result, drawn))

    def _put(self, name: str, text: str) -> None:
        """A file that is there as a whole or not at all."""
        partial = self.path / f".{name}.partial"
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, self.path / name)
