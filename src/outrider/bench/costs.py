"""What rounds cost: plain ones, those that verify looked-up tokens, and those of a draft model.

Measured with the engine itself, whose rounds draft to each depth in turn, so that a slow moment of
the machine meets all depths. No slope is fitted to what was timed: where kernels change with the
width of a forward, four tokens can be cheap and five dear. Beyond the last depth the slope of the
deeper half goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median

import numpy as np

from .. import SamplingParams, SpeculativeDecoder
from ..drafters.base import DraftContext, Drafter
from ..drafters.lookup import Candidate, LookupDrafter
from ..policies.fixed import FixedDepth, Shape
from ..runtimes.base import Runtime
from ..types.records import DraftPlan, Prefix, RoundRecord

_LEAST = 4
"""Depths from 0 to this are timed in every cycle."""

DEPTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 16)
"""Depths that are timed; others lie between them, or beyond."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The seconds of a round at one batch size, temperature and context.

    Attributes:
        temperature: of requests.
        rows: sequences decoded together.
        context: tokens of each, about.
        depths: what was timed, from 0.
        rounds: of each depth, without what drafting takes.
        drafts: what drafting takes at each depth; 0 where no model drafts.
        cold: whether each depth was timed once alone, when kernels and caches are cold.
    """

    temperature: float
    rows: int
    context: int
    depths: tuple[int, ...]
    rounds: tuple[float, ...]
    drafts: tuple[float, ...]
    cold: bool = False

    @property
    def step(self) -> float:
        """What a draft step costs beside a plain round."""
        return self.drafting(4) / 4 / self.plain

    @property
    def plain(self) -> float:
        """The seconds of a round without a draft."""
        return self.rounds[0]

    def verifying(self, drafted: int) -> float:
        """Return the seconds of a round that verifies so many drafted tokens a row."""
        return _between(drafted, self.depths, self.rounds)

    def drafting(self, depth: int) -> float:
        """Return the seconds that a model takes to draft so many tokens in a row."""
        return _between(depth, self.depths, self.drafts)


class Timing:
    """Times rounds of each depth in turn.

    Args:
        target: with room for `rows` sequences of the prompt's length and a few hundred tokens.
        drafter: drafts with a model; None proposes tokens that nothing was paid for.
        prompt: token ids that all rows go on from.
        params: of every row.
        rows: sequences decoded together.
        depths: to time, from 0.
    """

    def __init__(
        self,
        target: Runtime,
        drafter: Drafter | None,
        prompt: Sequence[int],
        params: SamplingParams,
        rows: int,
        depths: Sequence[int] = DEPTHS,
    ) -> None:
        self._cycles: list[list[RoundRecord]] = []
        self._params, self._depths, self._drafts = params, tuple(depths), drafter is not None
        self._decoder = SpeculativeDecoder(target, drafter or _Guesses())
        self._prompt = prompt
        self._states = [self._decoder.start(prompt, params)[0] for _ in range(rows)]
        self._decoder.prefill(self._states[0], len(prompt))  # the others find it computed

    def cycle(self) -> Iterator[None]:
        """Time each depth, a turn for each; begin the texts again if there is no room.

        From the second cycle on two rounds follow each other at each depth, and the last counts: a
        round of another width than the one before can cost more.
        """
        each = 1 + bool(self._cycles)
        most = each * (sum(self._depths) + len(self._depths))
        if min(state.remaining for state in self._states) <= most:
            self._decoder.release(self._states, discard=True)
            rows = range(len(self._states))
            self._states = [self._decoder.start(self._prompt, self._params)[0] for _ in rows]
        batch, last = self._decoder.pack(self._states), list[RoundRecord]()
        self._cycles.append(last)
        for depth in self._depths:
            self._decoder.policy = FixedDepth(Shape(depth))
            for _ in range(each):
                result = self._decoder.step(batch)
                batch = result.batch
            last.append(result.record)
            self._states = list(batch.states)
            yield

    @property
    def costs(self) -> Costs:
        """The median of each depth over all cycles, without the first if there are others.

        Of cycles that ended early, those depths that all have.
        """
        by_depth = list(zip(*(self._cycles[1:] or self._cycles), strict=False))
        return Costs(
            temperature=self._params.temperature,
            rows=len(self._states),
            context=len(self._prompt),
            depths=self._depths[: len(by_depth)],
            rounds=tuple(median(one.total_s - one.draft_s for one in some) for some in by_depth),
            drafts=tuple(self._drafts * median(one.draft_s for one in some) for some in by_depth),
            cold=len(self._cycles) < 2,
        )


def cycle(timings: Sequence[Timing], enough: Callable[[], bool] = lambda: False) -> None:
    """Time all depths once, those of all timings in turn, so that noise meets all alike.

    Args:
        timings: of which depths are timed.
        enough: is asked after each depth from the fifth on whether to end there.
    """
    for place, _ in enumerate(zip_longest(*(timing.cycle() for timing in timings))):
        if enough() and place >= _LEAST:
            return


class _Guesses(LookupDrafter):
    """Proposes the prompt's own tokens, whatever comes next."""

    source = "guesses"

    def candidates(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> list[Candidate]:
        """Return a chain of each row's planned depth."""
        rows = zip(prefixes, plan.depth.tolist(), strict=True)
        return [Candidate(np.resize(each.tokens, n), np.full(n, 0.5)) for each, n in rows]


def _between(depth: int, depths: Sequence[int], seconds: Sequence[float]) -> float:
    """Interpolate between depths, and go on beyond the last as from half of it on."""
    if depth <= depths[-1]:
        return float(np.interp(depth, depths, seconds))
    half = np.interp(depths[-1] / 2, depths, seconds)
    slope = max(0.0, float(seconds[-1] - half) / (depths[-1] / 2)) if depths[-1] else 0.0
    return seconds[-1] + slope * (depth - depths[-1])
