"""A round for a drafter alone: the engine's own context, of made-up requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor

from ...config.params import SamplingParams, SpeculativeConfig
from ...drafters.base import Drafter
from ...drafters.context import DraftContext
from ...random import Enumerator
from ...sampling.batch import Batch
from ...types.plan import DraftPlan
from ...types.protocols import Chance
from ...types.records import Distributions, DraftProposal, Prefix, SequenceState

_VOCABULARY = 2**17
"""No request of a trial says anything of single tokens."""


class TrialContext(DraftContext):
    """A round of B requests without filters, on the CPU.

    Args:
        plan: of the round; with B rows.
        chance: draws for row b under the stream key b.
        learning: whether a drafter may learn from the round.
        state: what each request has of a `SequenceState`, such as its parameters or stop tokens.

    Attributes:
        picked: the tokens drawn at each position, int64 [B] each.
    """

    def __init__(
        self, plan: DraftPlan, chance: Chance, *, learning: bool = False, **state: Any
    ) -> None:
        known = {"prompt_length": 1, "params": SamplingParams(), "stop_ids": frozenset(), **state}
        prompt = [0] * known["prompt_length"]
        states = tuple(
            SequenceState(Prefix(row, prompt), stream_key=row, **known)
            for row in range(len(plan.depth))
        )
        batch = Batch.of(states, _VOCABULARY, torch.device("cpu"))
        draws = batch.draws(chance, plan.width, coupled=False)
        # Levels that a drafter shares out have likeliest tokens beside a drawn one.
        shared = plan.tree is not None and plan.tree.children is None
        config = SpeculativeConfig(tree_children="greedy" if shared else "without_replacement")
        super().__init__(batch, draws, plan, config, learning=learning)
        self.picked: list[Tensor] = []

    def pick(self, distributions: Distributions, position: int) -> Tensor:
        """Draw tokens as the engine does, and note them."""
        self.picked.append(super().pick(distributions, position))
        return self.picked[-1]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way in which a row's draft may come out.

    Attributes:
        probability: of the draws that led to it.
        proposal: of the row.
        tokens: of the row.
        shape: the node that each token follows.
        picked: the tokens drawn for a chain.
    """

    probability: float
    proposal: DraftProposal
    tokens: tuple[int, ...]
    shape: tuple[int, ...]
    picked: tuple[int, ...]

    @property
    def reported(self) -> float:
        """The product of the reported probabilities of the tokens."""
        made, rows = self.proposal.distributions, self.proposal.distribution_rows
        product = 1.0
        for column, token in enumerate(self.tokens):
            assert made is not None, "tokens come with their distributions"
            row = column if rows is None else int(rows[0, column])
            if made.probs is not None and row >= 0:
                product *= float(made.probs[0, row, token])
            elif made.point_masses is not None:
                product *= float(made.point_masses[0, column] == token)
        return product


def drafts(proposal: DraftProposal) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Each row's tokens, and the nodes that they follow."""
    parts = proposal.tokens.tolist(), proposal.structure.tolist(), proposal.lengths
    return [(tuple(row[:n]), tuple(parents[:n])) for row, parents, n in zip(*parts, strict=True)]


def outcomes(
    drafter: Drafter, tokens: Sequence[int], plan: DraftPlan, **context: Any
) -> list[Outcome]:
    """Walk all outcomes of a drafter's draws for one sequence; it learns nothing from them.

    The plan has one row. `context` is for `TrialContext`.
    """
    ids = count()
    found, waiting = [], [tuple[int, ...]()]
    while waiting:
        chance = Enumerator([waiting.pop()])
        ctx = TrialContext(plan, chance, **context)
        prefix = Prefix(next(ids), tokens)
        proposal = drafter.propose([prefix], plan, ctx)
        release(drafter, [prefix], discard=True)
        waiting += [path for _, path in chance.siblings]
        picked = tuple(int(drawn[0]) for drawn in ctx.picked)
        found.append(Outcome(chance.probability[0], proposal, *drafts(proposal)[0], picked))
    return found


def release(drafter: Drafter, prefixes: Sequence[Prefix], *, discard: bool = False) -> None:
    """End sequences, whole texts, as an engine does: for a drafter and all drafters behind it."""
    parts: list[object] = [drafter]
    for part in parts:
        if isinstance(part, Drafter):
            parts += [behind for behind in part.models if not any(behind is p for p in parts)]
            if not discard:
                part.observe_output(prefixes)
            part.release([prefix.sequence_id for prefix in prefixes], discard=discard)
