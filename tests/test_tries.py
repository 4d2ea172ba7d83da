"""What a try of many rows is charged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from outrider import SamplingParams
from outrider.policies import AdaptiveDepth, Levels
from outrider.policies.purse import Purse
from outrider.types.records import Prefix, SequenceState

from .test_depth import World, played, steady

ROWS = 16
PLAIN, TOKEN, DRAFT = 1.0, 0.02, 0.125
"""Seconds of a plain round, of each token more, and of a step of a draft."""


def charged(
    ragged: bool,
    longest: int,
    monkeypatch: pytest.MonkeyPatch,
    looking: float = 0.0,
    reading: float = 0.0,
    new: bool = False,
    trying: bool = True,
) -> tuple[float, float, float]:
    """What a try is charged of which one row looked so many tokens up, the others none.

    They are refused. It is known what rounds take in which each row has 0, 1, 2, 4 or 8 tokens,
    and that looking up takes so many seconds; what the drafter reads on takes `reading`, or what it
    reads of prompts, if the texts are `new`. It is a try, or is thought to pay.

    Returns:
        What it is thought to lose, how much of that reading on took, and what is owed for prompts.
    """
    policy = AdaptiveDepth(Levels(8), looks_up=True, ragged=ragged)
    world = World(steady(0.0), step=DRAFT, token=TOKEN, rest=0.0, noise=0.0, prefill=0.0)
    world, rng = replace(world, alone=PLAIN - 1 - TOKEN * (ROWS - 1)), np.random.default_rng(0)
    params = SamplingParams(max_tokens=256, depths=(0, *[0, 1, 2, 4, 8] * 4, *[0] * 4))
    states = [SequenceState(Prefix(n, range(9)), 9, params, frozenset(), n) for n in range(ROWS)]
    for _ in range(25):
        states, record = played(policy, world, states, rng)
        draft_s, total_s = record.draft_s + looking, record.total_s + looking
        policy.observe(states, replace(record, draft_s=draft_s, total_s=total_s))
    drafted = (longest, *[1] * (ROWS - 1))
    computed = sum(drafted) if ragged else ROWS * longest
    took = 1 + TOKEN * (ROWS + computed - 1)
    lost: list[tuple[float, float]] = []
    with monkeypatch.context() as patched:
        patched.setattr(Purse, "spend", lambda self, price, read, _: lost.append((price, read)))
        policy._trying = trying
        if new:
            policy._seen._read.clear()
        policy.observe(
            [state.advanced([0], 1, None, state.acceptance, ()) for state in states],
            replace(
                record,
                drafted=drafted,
                depth=drafted,
                accepted=(0,) * ROWS,
                emitted=(1,) * ROWS,
                bonus=(False,) * ROWS,
                looked_up=(True, *[False] * (ROWS - 1)),
                draft_s=DRAFT + looking + reading,
                target_s=took,
                total_s=DRAFT + looking + reading + took,
            ),
        )
        policy._catch_up()
    assert len(lost) == trying
    return *(lost[0] if trying else (0.0, 0.0)), policy._purse.owed


@pytest.mark.parametrize(("ragged", "rows"), [(True, 1), (False, ROWS)])
def test_a_try_is_charged_what_its_tokens_take(
    ragged: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven more tokens of one row are as many of each only where the others are padded."""
    more = charged(ragged, 8, monkeypatch)[0] - charged(ragged, 1, monkeypatch)[0]
    assert more == pytest.approx(7 * rows * TOKEN / PLAIN, rel=0.2)


def test_a_try_is_not_charged_for_looking_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which pays for itself, or is not done: here it takes a plain round."""
    dear, free = (charged(True, 1, monkeypatch, looking, 0.5) for looking in (1.0, 0.0))
    assert dear == pytest.approx(free, abs=0.05)
    assert dear[1] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("reading", [0.0, 1.6])
def test_what_reading_prompts_takes_is_not_charged_to_tries(
    reading: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In full, batches of which prompts were read in two rounds were not tried for 250 more."""
    told = charged(True, 1, monkeypatch, reading=reading, new=True)
    usual = charged(True, 1, monkeypatch)
    assert told[0] == pytest.approx(usual[0], abs=0.05)
    assert told[1] == 0.0
    assert told[2] == pytest.approx(reading, abs=0.05)
    assert usual[2] == 0.0
    # Nor is it free where drafts are thought to pay of which none was kept.
    paying = charged(True, 1, monkeypatch, reading=reading, new=True, trying=False)
    assert paying[2] == pytest.approx(reading, abs=0.05)
