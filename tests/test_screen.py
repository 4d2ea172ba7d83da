"""How far long jobs are."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from outrider.cli import screen


def test_a_log_has_a_line_every_half_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where standard error is a file there is no bar, and no silence of minutes either."""
    now = 0.0
    monkeypatch.setattr(screen, "monotonic", lambda: now)
    written = StringIO()
    with screen.progress(Console(file=written), "timing") as advance:
        for step in range(10):
            now += 10
            advance(step, 10, f"code [{step}]")
    assert written.getvalue().splitlines() == [
        "timing, 2 of 10: code [2]",
        "timing, 5 of 10: code [5]",
        "timing, 8 of 10: code [8]",
    ]


def test_a_short_job_says_nothing_in_a_log() -> None:
    written = StringIO()
    with screen.progress(Console(file=written), "timing") as advance:
        advance(1, 2, "code")
    assert not written.getvalue()
