"""Calls of a runtime: what an interrupted one left is forgotten by the next, nothing else is."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import pytest

from outrider.errors import DraftError
from outrider.runtimes.whole import Whole


@pytest.mark.parametrize(
    ("raised", "times"), [(DraftError("no"), 0), (KeyboardInterrupt(), 1), (RuntimeError(), 1)]
)
def test_a_call_within_another_is_forgotten_if_it_was_interrupted(
    raised: BaseException, times: int
) -> None:
    whole, forgotten = Whole(), list[int]()
    call = partial(whole.call, partial(forgotten.append, 1))
    with suppress(BaseException), call():
        try:
            with call():
                raise raised
        except RuntimeError:  # as the calls of a drafter do
            raise DraftError("no") from raised
    assert not forgotten
    for _ in range(2):
        with call():
            assert len(forgotten) == times
