"""Calls of a runtime, each made whole before the next."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock

from ..errors import OutriderError

_LOG = logging.getLogger(__name__)


class Whole:
    """The calls of one runtime, of several threads, and whether one of them was interrupted."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._interrupted = False

    @contextmanager
    def call(self, forget: Callable[[], None]) -> Iterator[None]:
        """Make a call whole before the next; it may have calls of its own thread within.

        Args:
            forget: forgets all that was computed; is called first if a call was interrupted.
        """
        with self._lock:
            if self._interrupted:
                _LOG.info("a call was interrupted: what was computed is forgotten")
                forget()
                self._interrupted = False
            try:
                yield
            except BaseException as error:
                # It stays true after one within was, where a drafter made a DraftError of that.
                self._interrupted |= not isinstance(error, OutriderError)
                raise
