"""Texts that the target wrote by itself, and what a draft model would have had kept of them.

In a text y that was drawn from the target, a token drafted from q after the text before it is kept
with probability min(1, q(y_t) / p(y_t)), given that it is reached and given y: so one pass of the
draft over the text says what any depth and any policy would have kept (`Text.reach`). That of block
verification (Sun et al., arXiv 2403.10444) follows likewise: with m_i = min(m_{i-1} p(y_i), q(y^i))
the probability that i tokens are kept is m_i / p(y^i), the least of the products of q / p so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import SamplingParams, SpeculativeDecoder
from ..drafters.base import DraftContext, nothing_drafted
from ..engine.compatibility import parts_of
from ..runtimes.base import Runtime
from ..sampling.batch import Batch
from ..sampling.distributions import distributions
from ..types.plan import StopRule
from ..types.records import Distributions, DraftPlan, DraftProposal, DraftTree
from .records import Prompt

Floats = NDArray[np.float64]


@dataclass(slots=True)
class Text:
    """A text as far as it was written.

    Attributes:
        prompt: what it goes on from.
        temperature: that it was drawn at.
        token_ids: written so far.
        ratios: for each, the draft's probability of it over the target's.
        confidence: for each, the draft's confidence in what it would have drafted there.
        ranks: for each, which of the draft's children of one node it was kept as, from 0, or their
            number if none was; empty if no trees are tried.
        prefill_s: seconds that the draft took for the prompt.
    """

    prompt: Prompt
    temperature: float
    token_ids: list[int] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    prefill_s: float = 0.0

    def reach(self, place: int, depth: int, *, blocks: bool) -> Floats:
        """Return the probability that a draft keeps at least 1, 2, ... tokens.

        Args:
            place: of the first drafted token in the text.
            depth: the number of tokens drafted.
            blocks: whether a block is verified as a whole, or token by token.

        Returns:
            float64 [n], n <= depth where the text ends.
        """
        ratios = np.array(self.ratios[place : place + depth])
        kept: Floats = np.minimum(ratios, 1.0).cumprod()
        if blocks:
            kept = np.minimum.accumulate(np.minimum(ratios.cumprod(), 1.0))
        return kept


def written(
    decoder: SpeculativeDecoder,
    prompts: Sequence[Prompt],
    params: Sequence[SamplingParams],
    children: int = 0,
) -> Iterator[list[Text]]:
    """Write texts together, a token of each a turn, with the draft model looking on.

    Args:
        decoder: a target, and a drafter with a model or none; it decodes nothing itself.
        prompts: to go on from.
        params: of each: how a token is drawn, and how many; the draft's are the same.
        children: how many of the draft's tokens, each after the same text, are ranked.

    Yields:
        The same texts after each token.
    """
    pairs = list(zip(prompts, params, strict=True))
    for part in parts_of(decoder.target, decoder.drafter):
        if isinstance(part, Runtime):
            part.reset()
    states = [decoder.start(list(prompt.token_ids), asked)[0] for prompt, asked in pairs]
    found = [Text(prompt, asked.temperature) for prompt, asked in pairs]
    try:
        for turn in range(max(asked.max_tokens for asked in params)):
            live = [row for row, asked in enumerate(params) if turn < asked.max_tokens]
            batch = decoder.pack(states[row] for row in live)
            start = perf_counter()
            drafted, confidence = _drafted(decoder, batch, 0)
            seconds = perf_counter() - start
            siblings = _drafted(decoder, batch, children)[0] if children else drafted
            made, tokens, ranks = _drawn(decoder, batch, siblings)
            ratios = (_at(drafted.distributions, tokens) / _at(made, tokens)).tolist()
            prompted = sum(state.prompt_length for state in batch.states)
            for place, row in enumerate(live):
                text, state, token = found[row], states[row], int(tokens[place])
                text.token_ids.append(token)
                text.ratios.append(ratios[place])
                text.confidence.append(confidence[place])
                text.ranks += ranks[place : place + 1]
                if turn == 0:
                    text.prefill_s = seconds * state.prompt_length / prompted
                longer = state.prefix.extended([token])
                states[row] = replace(state, prefix=longer, depths=(*state.depths, 0))
            yield found
    finally:
        decoder.release(states, discard=True)


@torch.inference_mode()
def _drafted(
    decoder: SpeculativeDecoder, batch: Batch, children: int
) -> tuple[DraftProposal, list[float]]:
    """Draft a token a row, or so many children of its last one; and the confidence in the first."""
    rows = len(batch.states)
    if decoder.drafter is None:
        return nothing_drafted(rows, decoder.target.device), [0.0] * rows
    tree = DraftTree((children,), (children,)) if children else None
    plan = DraftPlan(np.ones(rows, dtype=np.int64), tree, None if children else _One())
    draws = batch.draws(decoder.chance, plan.width, coupled=False)
    ctx = DraftContext(batch, draws, plan, decoder.config)
    proposal = decoder.drafter.propose([state.prefix for state in batch.states], plan, ctx)
    known = ctx.confidence
    return proposal, known[:, 0].tolist() if known.shape[1] else [0.5] * rows


@torch.inference_mode()
def _drawn(
    decoder: SpeculativeDecoder, batch: Batch, drafted: DraftProposal
) -> tuple[Distributions, Tensor, list[int]]:
    """Draw each row's next token from the target, as verification of what was drafted does.

    Returns:
        The target's distributions, for [B, 1], the tokens, int64 [B], and which of those drafted
        each is, of trees alone.
    """
    prefixes = [state.prefix for state in batch.states]
    nothing = nothing_drafted(len(prefixes), decoder.target.device)
    logits = decoder.target.verify(prefixes, nothing).logits
    made, _ = distributions(logits, batch.params)
    if drafted.parents is None:
        drafted = nothing
    if made.probs is None:
        assert made.point_masses is not None
        tokens = made.point_masses[:, 0]
        kept = torch.cat([tokens[:, None] == drafted.tokens, tokens[:, None] == tokens[:, None]], 1)
        ranks = kept.int().argmax(1)
    else:
        probs = made.probs.expand(-1, drafted.width + 1, -1)
        draws = batch.draws(decoder.chance, drafted.width, coupled=False)
        verdict = decoder.verifier.verify(drafted, probs, draws)
        ranks = torch.where(verdict.node > 0, verdict.node - 1, drafted.width)
        both = torch.cat([drafted.tokens, verdict.next_token[:, None]], 1)
        tokens = both.gather(1, ranks[:, None])[:, 0]
    return made, tokens, ranks.tolist() if drafted.width else []


def _at(made: Distributions | None, tokens: Tensor) -> Tensor:
    """Return the probability of each row's token, float64 [B], by distributions for [B, 1]."""
    if made is None:
        return torch.zeros(len(tokens), dtype=torch.float64)
    if made.probs is None:
        assert made.point_masses is not None
        return (made.point_masses[:, 0] == tokens).double()
    return made.probs[:, 0].gather(-1, tokens[:, None])[:, 0].double()


class _One(StopRule):
    """Drafts one token, and asks for its confidence."""

    model_depth = np.ones(1, dtype=np.int64)

    def continues(self, confidence: Floats, drafting: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Decide that no row drafts another token."""
        return np.zeros_like(drafting)

    def kept(self, source: str, confidence: Floats) -> Floats:
        """Take a confidence for the probability that a token is kept."""
        return confidence

    def lookup(self, row: int, reach: Floats) -> int:
        """Look nothing up."""
        return 0
