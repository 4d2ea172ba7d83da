"""Rounds for drafters, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider import SamplingParams, SuffixDrafter
from outrider.certify.kits.drafter_round import TrialContext
from outrider.drafters.base import Drafter
from outrider.random import Philox4x32
from outrider.types.plan import DraftPlan, StopRule
from outrider.types.records import DraftProposal, Prefix


class Stop(StopRule):
    """Takes the first `taken` looked-up tokens of each row, and ends a model's chains.

    Args:
        depth: of a model's drafts, [B].
        taken: how many looked-up tokens, for each row.
        least: the confidence from which a model drafts on.
    """

    def __init__(self, depth: Sequence[int], taken: Sequence[int] = (), least: float = 0.0) -> None:
        self._depth = np.array(depth, dtype=np.int64)
        self._taken = taken
        self._least = least
        self.reaches: dict[int, list[float]] = {}

    @property
    def model_depth(self) -> NDArray[np.int64]:
        return self._depth

    def continues(
        self, confidence: NDArray[np.float64], drafting: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        return confidence[:, -1] >= self._least

    def kept(self, source: str, confidence: NDArray[np.float64]) -> NDArray[np.float64]:
        return confidence * {"ngram": 0.5}.get(source, 1.0)

    def lookup(self, row: int, reach: NDArray[np.float64]) -> int:
        self.reaches[row] = reach.tolist()
        return min(len(reach), self._taken[row])


def plan_of(*depth: int, tree: Any = None, stop: StopRule | None = None) -> DraftPlan:
    """A plan of these depths."""
    return DraftPlan(np.array(depth, dtype=np.int64), tree, stop)


def proposed(
    drafter: Drafter,
    texts: Sequence[Sequence[int]],
    plan: DraftPlan,
    greedy: bool = False,
    **context: Any,
) -> DraftProposal:
    """Propose for some texts, of sequences 0, 1, ..."""
    context["params"] = SamplingParams(temperature=float(not greedy))
    prefixes = [Prefix(row, text) for row, text in enumerate(texts)]
    return drafter.propose(prefixes, plan, TrialContext(plan, Philox4x32(), **context))


def rows_of(proposal: DraftProposal) -> list[list[int]]:
    """The tokens of each row."""
    rows = zip(proposal.tokens.tolist(), proposal.lengths.tolist(), strict=True)
    return [tokens[:length] for tokens, length in rows]


def chain_after(
    drafter: Drafter, prefix: Prefix, prompt_length: int = 1, depth: int = 4, **context: Any
) -> list[int]:
    """The chain that is proposed after one prefix."""
    plan = plan_of(depth)
    context = {"learning": True, **context}
    ctx = TrialContext(plan, Philox4x32(), prompt_length=prompt_length, **context)
    return rows_of(drafter.propose([prefix], plan, ctx))[0]


def pooled(drafter: SuffixDrafter) -> int:
    """The number of tokens of earlier requests that a drafter keeps."""
    return int(np.count_nonzero(drafter._pool >= 0))
