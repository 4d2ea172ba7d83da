"""Whether another step of a draft pays, by how sure the draft has been of its tokens so far."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..acceptance import DRAWN, EDGES, LIKELIEST, Chances, Sureness
from ..records import SequenceState

_LENGTH_MEMORY = 0.9
"""What the length of a draft that ended early weighs beside the next one's: ten count in all."""


class Steps:
    """How many steps drafts take that end early: a running mean."""

    def __init__(self) -> None:
        self._total = self._count = 0.0

    def add(self, steps: int) -> None:
        """Count a round."""
        self._total = self._total * _LENGTH_MEMORY + steps
        self._count = self._count * _LENGTH_MEMORY + 1

    def mean(self, guess: float) -> float:
        """The mean, in which a guess counts as one round."""
        return (self._total + guess) / (self._count + 1)

    def emitted(self, known: float, guess: float) -> float:
        """What such drafts emit: what is known of them, in which a guess counts likewise."""
        return (self._count * known + guess) / (self._count + 1)


class Pool:
    """What rows were seen to keep of sure and unsure tokens, greedy ones and sampled ones apart."""

    def __init__(self) -> None:
        self._seen = {False: Sureness(), True: Sureness()}

    def add(self, greedy: bool, entropies: Sequence[float], accepted: int) -> None:
        """Count a round of a row; see `Sureness.after`."""
        self._seen[greedy] = self._seen[greedy].after(entropies, accepted)

    def chances(self, state: SequenceState, alone: bool) -> Chances:
        """How likely a row's tokens are to be kept: by its own, and by those of others before.

        A text that repeats itself is drafted the same way each time: the draft may be unsure of
        what is always kept there, and the row's own tokens say so.

        Args:
            state: of the row.
            alone: whether nothing but its own may be looked at.
        """
        greedy = state.params.greedy
        prior = LIKELIEST if greedy else DRAWN
        if not alone:
            prior = self._seen[greedy].chances(prior)
        return state.acceptance.sureness.chances(prior)


@dataclass(frozen=True, slots=True)
class WorthAStep:
    """Whether another step of the draft pays, for groups of rows that take their steps together.

    After n tokens in a row the next step emits, summed over a group's rows, the chance that all n
    are kept and the next one too, and takes what a round of n + 1 tokens takes beyond one of n. It
    pays where that is more tokens in the time than rounds bring on the whole: the rule of greatest
    reward a second in a renewal process (Ross 1970, "Applied Probability Models with Optimization
    Applications", chapter 7). How likely the next token is to be kept is not known before the
    step, so that what tokens on the whole are stands for it.

    Attributes:
        groups: the index of each row's group, int64 [B]; -1 for one that goes as deep as planned.
        chances: of each row's classes of entropies, float64 [B, C].
        following: the chance of a next token to be kept, float64 [B].
        times: of a round at each depth, float64 [G, N + 1] for drafts of N at most.
        paces: tokens in a unit of that time, of all rows of the group, that a step has to bring,
            float64 [G]; 0 for one that is never ended.
    """

    groups: NDArray[np.int64]
    chances: NDArray[np.float64]
    following: NDArray[np.float64]
    times: NDArray[np.float64]
    paces: NDArray[np.float64]
    _rows: tuple[tuple[int, list[float], float], ...] = field(init=False, repr=False)
    _needed: list[list[float]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Plain numbers, made once: between two forwards a loop over few rows takes a fraction of
        # what operations on arrays do.
        each = (self.groups.tolist(), self.chances.tolist(), self.following.tolist())
        needed = np.diff(self.times, axis=1) * self.paces[:, None]
        object.__setattr__(self, "_rows", tuple(zip(*each, strict=True)))
        object.__setattr__(self, "_needed", needed.tolist())

    def __call__(
        self, entropies: NDArray[np.float64], drafting: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Whether each row takes another step, bool [B].

        Args:
            entropies: of the laws so far, float64 [B, n].
            drafting: the rows that may take another step, bool [B].
        """
        taken = entropies.shape[1]
        more = [0.0] * len(self._needed)
        rows = zip(self._rows, drafting.tolist(), entropies.tolist(), strict=True)
        for (group, chances, following), goes_on, found in rows:
            if goes_on and group >= 0:
                kept = prod(chances[bisect_right(EDGES, entropy)] for entropy in found)
                more[group] += kept * following
        pays = [brings >= needed[taken] for brings, needed in zip(more, self._needed, strict=True)]
        return np.array([group < 0 or pays[group] for group, _, _ in self._rows], np.bool_)


@dataclass(frozen=True, slots=True)
class Jointly:
    """Rows that take their steps together.

    Attributes:
        rows: which; none if nothing ends their drafts.
        pace: tokens a second of all of them that a step has to bring.
        rounds: seconds of a round at each depth, float64 [N + 1].
    """

    rows: list[int]
    pace: float
    rounds: NDArray[np.float64]


def worth_a_step(
    known: Sequence[Chances],
    own_paces: Sequence[float | None],
    cost_ratio: float,
    jointly: Jointly,
) -> WorthAStep | None:
    """What ends drafts; None if nothing does.

    Args:
        known: what each row keeps.
        own_paces: of each row that ends by itself, None for one that does not. All of them are
            asked about, so that their entropies are known whoever shares the batch.
        cost_ratio: a step beside a plain round, for these.
        jointly: the others.
    """
    depths = np.arange(len(jointly.rounds), dtype=np.int64)
    groups = np.full(len(known), -1, dtype=np.int64)
    following = np.array([one.overall for one in known])
    paces, times = list[float](), list[NDArray[np.float64]]()
    if jointly.rows:
        groups[jointly.rows] = 0
        paces.append(jointly.pace)
        times.append(jointly.rounds)
    for row, own in enumerate(own_paces):
        if own is not None:
            groups[row] = len(paces)
            paces.append(own)
            times.append(np.asarray(1 + cost_ratio * depths))
    if not paces:
        return None
    return WorthAStep(
        groups=groups,
        chances=np.array([one.classes for one in known]),
        following=following,
        times=np.array(times),
        paces=np.array(paces),
    )
