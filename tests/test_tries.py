"""What a try of many rows is charged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from outrider import SamplingParams
from outrider.depth import AdaptiveDepth, Levels
from outrider.depth.purse import Purse
from outrider.records import Prefix, SequenceState

from .test_depth import World, calibrate, played, steady


def charged(ragged: bool, longest: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """What a try of sixteen rows is thought to lose of which one looked so many tokens up."""
    policy = AdaptiveDepth(Levels(8), looks_up=True, ragged=ragged)
    world, rng = World(steady(0.0), noise=0.0), np.random.default_rng(0)
    calibrate(policy, world, rng)
    params = SamplingParams(max_tokens=256, depths=(0,))
    states = [SequenceState(Prefix(n, range(9)), 9, params, frozenset(), n) for n in range(16)]
    for _ in range(12):
        states, record = played(policy, world, states, rng)
        policy.observe(states, record)
    drafted = (longest, *[1] * 15)
    record = replace(
        record, drafted=drafted, depth=drafted, looked_up=(True, *[False] * 15), draft_s=0.1
    )
    policy._catch_up()
    lost: list[float] = []
    monkeypatch.setattr(Purse, "spend", lambda self, price, *others: lost.append(price))
    policy._trying = True
    policy.observe([replace(state, depths=(0, 1)) for state in states], record)
    policy._catch_up()
    monkeypatch.undo()
    (price,) = lost
    return price


def test_a_try_is_not_charged_as_if_all_rows_were_as_wide_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unless they are padded: seven more tokens of one row, or of each of sixteen."""
    own = charged(True, 8, monkeypatch) - charged(True, 1, monkeypatch)
    padded = charged(False, 8, monkeypatch) - charged(False, 1, monkeypatch)
    assert 0 < own < 0.5 * padded
