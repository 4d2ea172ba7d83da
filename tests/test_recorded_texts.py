"""The adaptive depth beside every fixed one, on recorded texts of the demo pair: no clock is read.

Real drafts, of which it is known what would have been kept at any depth, at times as measured, with
noise of our own. The policy begins each kind knowing nothing.
That noise is seeded: a test passes or fails alike each time, and none alarms falsely.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from statistics import mean

import pytest

from outrider.policies import AdaptiveDepth, FixedDepth, Levels
from outrider.types.protocols import Policy
from outrider.types.records import RoundRecord, SequenceState

from .recorded import DEEPEST, KINDS, TEMPERATURES, TEXTS, Machine, Player, texts

SEEDS = 4


@cache
def fixed(kind: str, temperature: float) -> tuple[float, ...]:
    """Seconds of each depth from 0, on the same noisy machine, the mean of several runs."""
    return tuple(
        mean_seconds(kind, temperature, lambda _, depth=depth: FixedDepth(Levels(depth)))
        for depth in range(DEEPEST + 1)
    )


def policy(temperature: float) -> AdaptiveDepth:
    return AdaptiveDepth(Levels(16), coupled=temperature > 0, ends_early=True)


def mean_seconds(kind: str, temperature: float, made: Callable[[float], Policy]) -> float:
    found = texts(kind, temperature)
    assert len(found) == TEXTS
    return mean(
        Player(made(temperature), Machine(), seed).seconds(found, temperature)
        for seed in range(SEEDS)
    )


@cache
def adaptive(kind: str, temperature: float) -> float:
    """Seconds of the default, the mean of several runs."""
    return mean_seconds(kind, temperature, policy)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_no_loss_and_not_far_from_the_best(kind: str, temperature: float) -> None:
    plain, *others = fixed(kind, temperature)
    took = adaptive(kind, temperature)
    assert plain / took >= 1.0
    assert min(others) / took >= 0.94


@pytest.mark.parametrize(("temperature", "least"), [(0.0, 0.98), (0.8, 0.965)])
def test_over_all_kinds_it_is_near_the_best(temperature: float, least: float) -> None:
    """The best of eight for each kind, which is known afterwards only."""
    shares = [min(fixed(k, temperature)[1:]) / adaptive(k, temperature) for k in KINDS]
    assert mean(shares) >= least


class Shy(AdaptiveDepth):
    """Fault: drafts are thought to take four times as long."""

    def observe(self, states: Sequence[SequenceState], record: RoundRecord) -> None:
        more = 3 * record.draft_s
        dear = replace(record, draft_s=record.draft_s + more, total_s=record.total_s + more)
        super().observe(states, dear)


def test_a_policy_that_shuns_drafts_is_found() -> None:
    """The bounds above are such that it matters what a policy does."""

    def made(temperature: float) -> AdaptiveDepth:
        return Shy(Levels(16), coupled=temperature > 0, ends_early=True)

    shares = [min(fixed(k, 0.8)[1:]) / mean_seconds(k, 0.8, made) for k in KINDS]
    assert mean(shares) < 0.82


ROWS = 4


def batched(temperature: float, made: Callable[[], Policy]) -> float:
    """Seconds of batches of all kinds, the mean of several runs."""
    found = [text for kind in KINDS for text in texts(kind, temperature)]
    return mean(
        Player(made(), Machine(), seed, ROWS).seconds(found, temperature) for seed in range(SEEDS)
    )


def beside_the_best(temperature: float, kind: type[AdaptiveDepth]) -> float:
    """A policy's tokens a second in batches over those of the best fixed depth."""

    def made() -> AdaptiveDepth:
        return kind(Levels(16), coupled=temperature > 0, ends_early=True, ragged=True)

    depths = range(DEEPEST + 1)
    best = min(batched(temperature, lambda k=k: FixedDepth(Levels(k))) for k in depths)
    return best / batched(temperature, made)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_batches_are_near_the_best(temperature: float) -> None:
    """Which is no loss, since plain decoding is one of the fixed depths."""
    assert beside_the_best(temperature, AdaptiveDepth) >= 0.95


def test_a_policy_that_shuns_drafts_of_batches_is_found() -> None:
    assert beside_the_best(0.0, Shy) < 0.9


def test_a_depth_that_is_too_great_is_found() -> None:
    assert min(fixed(k, 0.8)[0] / fixed(k, 0.8)[DEEPEST] for k in KINDS) < 0.97
