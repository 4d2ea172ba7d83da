"""Time spent in the named parts of a round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import torch


class Spans:
    """Times named parts: by the wall clock, or on a CUDA device by events in its stream.

    An event is recorded without waiting for the device; `seconds` waits for the last one.

    Args:
        device: where the round's work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start = perf_counter()
        self._wall: dict[str, float] = {}
        self._events: dict[str, tuple[torch.cuda.Event, torch.cuda.Event]] = {}

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time a part; each name once a round."""
        start, first = perf_counter(), self._event()
        yield
        last = self._event()
        self._wall[name] = perf_counter() - start
        if first is not None and last is not None:
            self._events[name] = first, last

    def seconds(self, name: str) -> float:
        """Return the time of a part in seconds; 0 if it did not happen."""
        if name in self._events:
            first, last = self._events[name]
            last.synchronize()
            return float(first.elapsed_time(last)) / 1e3
        return self._wall.get(name, 0.0)

    def total(self) -> float:
        """Return the seconds on the wall clock since the round began."""
        return perf_counter() - self._start

    def _event(self) -> torch.cuda.Event | None:
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event
