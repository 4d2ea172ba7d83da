"""Whether another step of a draft pays, by how sure the draft has been of its tokens so far."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..types.acceptance import DRAWN, EDGES, LIKELIEST, Chances, Sureness
from ..types.records import SequenceState

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
    """Whether another step of its draft pays for a row.

    After n tokens in a row the next step emits the chance that all n are kept and the next one too,
    and takes what a round of n + 1 tokens takes beyond one of n. It pays where that is more tokens
    in the time than rounds bring on the whole: the rule of greatest reward a second in a renewal
    process (Ross 1970, "Applied Probability Models with Optimization Applications", chapter 7). How
    likely the next token is to be kept is not known before the step, so that what tokens on the
    whole are stands for it.

    Attributes:
        chances: of each row's classes of entropies, float64 [B, C].
        following: the chance of a next token to be kept, float64 [B].
        needed: tokens that the step after n has to bring, float64 [B, N] for drafts of N at most; 0
            for a row that goes as deep as planned.
    """

    chances: NDArray[np.float64]
    following: NDArray[np.float64]
    needed: NDArray[np.float64]
    _rows: tuple[tuple[list[float], float, list[float]], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Plain numbers, made once: between two forwards a loop over few rows takes a fraction of
        # what operations on arrays do.
        each = (self.chances.tolist(), self.following.tolist(), self.needed.tolist())
        object.__setattr__(self, "_rows", tuple(zip(*each, strict=True)))

    def __call__(
        self, entropies: NDArray[np.float64], drafting: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Whether each row takes another step, bool [B].

        Args:
            entropies: of the distributions so far, float64 [B, n].
            drafting: the rows that may take another step, bool [B].
        """
        taken = entropies.shape[1]
        pays = drafting.tolist()
        for row, (chances, following, needed) in enumerate(self._rows):
            if pays[row] and needed[taken]:
                kept = prod(chances[bisect_right(EDGES, one)] for one in entropies[row].tolist())
                pays[row] = kept * following >= needed[taken]
        return np.array(pays, np.bool_)


def worth_a_step(
    known: Sequence[Chances],
    paces: Sequence[float | None],
    times: Sequence[NDArray[np.float64]],
) -> WorthAStep | None:
    """What ends drafts; None if nothing does.

    All rows are asked about, so that their entropies are known whoever shares the batch.

    Args:
        known: what each row keeps.
        paces: tokens in a unit of its time that a step of each row has to bring; None for one that
            goes as deep as planned.
        times: of each row's rounds at each depth, float64 [N + 1].
    """
    if all(pace is None for pace in paces):
        return None
    pairs = zip(paces, times, strict=True)
    return WorthAStep(
        chances=np.array([one.classes for one in known]),
        following=np.array([one.overall for one in known]),
        needed=np.array([np.diff(took) * (pace or 0.0) for pace, took in pairs]),
    )
