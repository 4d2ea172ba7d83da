"""What a drafter makes of texts that the target has written.

Texts of the target have the distribution of any lossless output, so that a drafter is asked about them once,
and every depth and method follows (see `predict`): from the distributions along a text where it draws, from
what it proposes where that follows from the text alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..config.params import SamplingParams, SpeculativeConfig
from ..engine.context import RoundContext
from ..engine.decoder import SpeculativeDecoder
from ..engine.rounds import no_drafts
from ..random import STOP, TOKEN, RoundDraws
from ..types.protocols import Drafter, Target
from ..types.records import SequenceState
from ..verification import TokenVerification, Tree, Verifier
from .measure import Tokens
from .predict import survival

Texts = Sequence[tuple[Tokens, Tokens]]
"""Of a batch: prompts, each with what the target wrote."""

Ratios = NDArray[np.float64]
"""See `draft_ratios`."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """A sequence's part in a round.

    Attributes:
        width: how many tokens were drafted for it.
        stepped: whether they took steps of a model.
    """

    width: int
    stepped: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a model's drafts, for which a stand-in proposes anything.

    Attributes:
        method: of verification, one of `predict.EXACT`.
        ratios: of each text of each batch.
    """

    method: str
    ratios: Sequence[Sequence[Ratios]]


@torch.inference_mode()
def replayed(
    target: Target,
    drafter: Drafter,
    batches: Sequence[Texts],
    depth: int,
    model: Kept | None = None,
) -> list[list[list[Drafted]]]:
    """The rounds in which texts are emitted, with chains of a fixed depth.

    The drafter sees what it would see in the engine, batch after batch, and what it proposes is
    kept as far as it agrees with the text. No model of the target's is run.

    Args:
        target: the target.
        drafter: proposes point masses, or has a stand-in for its model.
        batches: for each batch, prompts with their texts.
        depth: the most tokens of a draft.
        model: what to make of the stand-in's drafts: how many are kept is drawn from the distribution that
            it has given the text. None if there is none.

    Returns:
        For each batch, the rounds of each text.
    """
    config = SpeculativeConfig(num_speculative_tokens=depth, depth="fixed", strict=True)
    decoder = SpeculativeDecoder(target, drafter, config=config)
    random = np.random.default_rng(0)
    found = []
    for index, texts in enumerate(batches):
        ratios = None if model is None else model.ratios[index]
        states: list[SequenceState] = []
        for prompt, text in texts:
            params = SamplingParams(temperature=0, max_tokens=len(text), ignore_eos=True)
            states += decoder.start(list(prompt), params)
        rows = {state.prefix.sequence_id: row for row, state in enumerate(states)}
        rounds: list[list[Drafted]] = [[] for _ in states]
        batch = decoder.pack(states)
        while batch.states:
            plan = decoder.policy.plan(batch.states)
            proposal = no_drafts(len(batch.states), batch.device)
            if plan.width:
                draws = RoundDraws(decoder.chance, None, None)
                context = RoundContext(batch, draws, plan, batch.device, config)
                prefixes = [state.prefix for state in batch.states]
                proposal = drafter.propose(prefixes, plan, context)
            tokens = proposal.tokens.cpu().numpy()
            going = []
            for place, state in enumerate(batch.states):
                row = rows[state.prefix.sequence_id]
                text = texts[row][1]
                start, width = len(text) - state.remaining, int(proposal.lengths[place])
                stepped = width > 0 and not proposal.stepless[place]
                if stepped and model is not None and ratios is not None:
                    chances = survival(ratios[row][start : start + width], model.method)
                    kept = int((random.random() < chances).sum())
                else:
                    agree = tokens[place, :width] == text[start : start + width]
                    kept = int(np.cumprod(agree).sum())
                rounds[row].append(Drafted(width, stepped))
                emitted = list(text[start : start + kept + 1])
                after = state.advanced(emitted, width, None, state.acceptance, ())
                if after.remaining:
                    going.append(after)
            same = len(going) == len(batch.states)
            batch = replace(batch, states=tuple(going)) if same else decoder.pack(going)
        decoder.release(states, discard=True)
        found.append(rounds)
    return found


def draft_ratios(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    text: Sequence[int],
    params: SamplingParams,
) -> NDArray[np.float64] | None:
    """Draft over target probability of all tokens of a text but the last, float64 [n - 1].

    One round of the engine, whose chance draws the text: what verification would see of it.

    Args:
        target: the target.
        drafter: drafts chains.
        prompt: what the text follows.
        text: token ids [n] that the target wrote under `params`.
        params: of the request. At temperature 0 a ratio is 1 where the draft's likeliest token is
            the text's, and 0 elsewhere.

    Returns:
        None if the drafter proposes tokens outright, so that there is no distribution to ask about.
    """
    if len(text) < 2:
        return np.zeros(0)
    recorder = _Recorder()
    drawn = replace(params, max_tokens=len(text), temperature=params.temperature or 1.0, seed=0)
    config = SpeculativeConfig(num_speculative_tokens=len(text) - 1, depth="fixed", strict=True)
    verifier = Verifier(recorder)
    decoder = SpeculativeDecoder(target, drafter, config=config, verifier=verifier)
    states = decoder.start(list(prompt), drawn)
    try:
        decoder.step(decoder.pack(states), _Dictated(tuple(text)))
    finally:
        decoder.release(states, discard=True)
    tree = recorder.tree
    if tree.draft is None:
        return None
    draft, tokens = tree.draft[0].double().cpu().numpy(), tree.tokens[0].cpu().numpy()
    if params.greedy:
        return np.asarray(draft.argmax(-1) == tokens, dtype=np.float64)
    places = np.arange(len(tokens))
    of_target = tree.target[0].double().cpu().numpy()[places, tokens]
    # A token that rounding has put just outside of a filter counts as refused.
    sound = of_target > 0
    return np.where(sound, draft[places, tokens] / np.where(sound, of_target, 1.0), 0.0)


class _Dictated:
    """Chance that draws a given text, and wherever it is asked to stop, the likeliest place."""

    def __init__(self, text: Tokens) -> None:
        self._text = text

    def draw(self, distributions: Tensor, keys: NDArray[np.uint64]) -> Tensor:
        if keys[0, 3] == STOP:
            return distributions.argmax(-1)
        place = len(self._text) - 1 if keys[0, 3] == TOKEN else int(keys[0, 4])
        return torch.full(
            (len(distributions),), self._text[place], dtype=torch.int64, device=distributions.device
        )


class _Recorder(TokenVerification):
    """Keeps every draft, and what verification was shown."""

    tree: Tree

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        self.tree = tree
        distribution, weights = super().stop_distribution(tree)
        distribution = torch.zeros_like(distribution)
        distribution[:, -1] = 1.0
        return distribution, weights
