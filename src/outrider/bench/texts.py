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
from ..policies.confidence import ConfidenceRule
from ..sampling.batch import Batch
from ..sampling.distributions import distributions
from ..types.records import Distributions, DraftPlan, DraftProposal, DraftTree
from .records import Prompt

LEAST = 16
"""Tokens of a text that say something, where the target did not end it."""


@dataclass(slots=True)
class Text:
    """A text as far as it was written.

    Attributes:
        prompt: what it goes on from.
        temperature: that it was drawn at.
        token_ids: written so far.
        ratios: for each, the draft's probability of it over the target's.
        confidence: for each, the draft's confidence in what it would have drafted there.
        among: for each, how likely it would have been kept as one of 1, 2, ... children of the node
            before it in a tree; empty if no trees are tried.
        prefill_s: seconds that the draft took for the prompt.
        ended: whether its last token is one that ends texts.
    """

    prompt: Prompt
    temperature: float
    token_ids: list[int] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    among: list[list[float]] = field(default_factory=list)
    prefill_s: float = 0.0
    ended: bool = False

    @property
    def usable(self) -> bool:
        """Whether it says something: it has two tokens, or some more if it has not ended."""
        return len(self.token_ids) >= (2 if self.ended else LEAST)

    def reach(self, place: int, depth: int, *, blocks: bool) -> NDArray[np.float64]:
        """Return the probability that a draft keeps at least 1, 2, ... tokens.

        Args:
            place: of the first drafted token in the text.
            depth: the number of tokens drafted.
            blocks: whether a block is verified as a whole, or token by token.

        Returns:
            float64 [n], n <= depth where the text ends.
        """
        ratios = np.array(self.ratios[place : place + depth])
        if blocks:
            return np.minimum.accumulate(ratios.cumprod()).clip(max=1.0)
        return ratios.clip(max=1.0).cumprod()


def written(
    decoder: SpeculativeDecoder,
    prompts: Sequence[Prompt],
    params: Sequence[SamplingParams],
    children: int = 0,
) -> Iterator[list[Text]]:
    """Write texts together, a token of each a turn, with the draft model looking on.

    They end as the target ends them.

    Args:
        decoder: a target, and a drafter with a model or none; it decodes nothing itself.
        prompts: to go on from.
        params: of each: how a token is drawn, and how many; the draft's are the same.
        children: the most that a node has in the trees that are tried; 0 for chains alone.

    Yields:
        The same texts after each token.
    """
    pairs = list(zip(prompts, params, strict=True))
    states = [decoder.start(list(prompt.token_ids), asked)[0] for prompt, asked in pairs]
    found = [Text(prompt, asked.temperature) for prompt, asked in pairs]
    try:
        while live := [
            row for row, text in enumerate(found) if states[row].remaining and not text.ended
        ]:
            batch = decoder.pack(states[row] for row in live)
            start = perf_counter()
            drafted, confidence = _drafted(decoder, batch, 0)
            seconds = perf_counter() - start
            made, tokens = _drawn(decoder, batch)
            ratios = _at(drafted.distributions, tokens) / _at(made, tokens)
            among: list[list[float]] = []
            if children:
                siblings = _drafted(decoder, batch, children)[0].tokens
                among = _among(siblings, drafted.distributions, tokens, ratios, batch).tolist()
            prompted = sum(state.prompt_length for state in batch.states)
            for place, row in enumerate(live):
                text, state, token = found[row], states[row], int(tokens[place])
                text.token_ids.append(token)
                text.ratios.append(float(ratios[place]))
                text.confidence.append(confidence[place])
                text.among += among[place : place + 1]
                text.ended = token in decoder.target.eos_token_ids
                if not state.round:
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
    one = np.ones(rows, dtype=np.int64)
    rule = ConfidenceRule(one, -one, cost_ratio=0.0)  # drafts on, and asks for confidences
    plan = DraftPlan(one, tree, None if children else rule)
    draws = batch.draws(decoder.chance, plan.width, coupled=False)
    ctx = DraftContext(batch, draws, plan, decoder.config)
    proposal = decoder.drafter.propose([state.prefix for state in batch.states], plan, ctx)
    known = ctx.confidence
    return proposal, known[:, 0].tolist() if known.shape[1] else [0.5] * rows


@torch.inference_mode()
def _drawn(decoder: SpeculativeDecoder, batch: Batch) -> tuple[Distributions, Tensor]:
    """Draw each row's next token from the target: its distributions, for [B, 1], and int64 [B]."""
    nothing = nothing_drafted(len(batch.states), decoder.target.device)
    scores = decoder.score(batch, nothing)
    made, _ = distributions(scores.logits, batch.params)
    if made.probs is None:
        assert made.point_masses is not None
        return made, made.point_masses[:, 0]
    verdict = decoder.verifier.verify(
        nothing, made.probs, batch.draws(decoder.chance, 0, coupled=False)
    )
    return made, verdict.next_token


def _among(
    siblings: Tensor, made: Distributions | None, tokens: Tensor, ratios: Tensor, batch: Batch
) -> Tensor:
    """Return how likely tokens are kept among 1, 2, ... C children, float64 [B, C].

    At temperature 0 the children are the draft's likeliest tokens. Above it they are one that is
    drawn from q without the likeliest C - 1, and these (Hu et al., arXiv 2502.18779): a token that
    is among them is always kept, another where it is drawn and accepted.

    Args:
        siblings: what the draft proposes, int64 [B, C].
        made: q, for [B, 1].
        tokens: of the text, int64 [B].
        ratios: q / p of each, float64 [B].
        batch: the rows, some of which may be at temperature 0.
    """
    there = siblings == tokens[:, None]
    if made is None or made.probs is None:
        return there.cumsum(1).clamp(max=1).double()
    sampled = [not state.params.greedy for state in batch.states]
    drawn = torch.tensor(sampled, device=siblings.device)
    there[drawn, 0] = False
    likeliest = made.probs[:, 0].gather(-1, siblings[:, 1:]).double().cumsum(1)
    left = 1 - torch.nn.functional.pad(likeliest, (1, 0))
    accepted = torch.where(drawn[:, None], ratios[:, None] / left.clamp(min=1e-12), 0.0)
    return torch.where(there.cumsum(1) > 0, 1.0, accepted.clamp(max=1.0))


def _at(made: Distributions | None, tokens: Tensor) -> Tensor:
    """Return the probability of each row's token, float64 [B], by distributions for [B, 1]."""
    if made is None:
        return torch.zeros(len(tokens), dtype=torch.float64)
    if made.probs is None:
        assert made.point_masses is not None
        return (made.point_masses[:, 0] == tokens).double()
    return made.probs[:, 0].gather(-1, tokens[:, None])[:, 0].double()
