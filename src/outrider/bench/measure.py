"""What predictions rest on: seconds of rounds, and what a drafter makes of given texts.

Seconds are those of real rounds of the engine, of several decoders in turn: a forward in a decoding
loop takes longer than one in a tight loop. Acceptance is that of texts which the target wrote by
itself: they have the law of any lossless output, so that a drafter is asked what it makes of them
(see `predict`), once, and every depth and method follows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..chance import STOP, TOKEN
from ..config import SamplingParams, SpeculativeConfig
from ..engine import SpeculativeDecoder
from ..protocols import DraftContext, DraftModel, TargetModel
from ..records import DraftPlan, DraftProposal, Laws, Prefix, SequenceState, TargetScores
from ..running import Run
from ..verification import Chain, TokenVerification, Verifier
from .predict import Rounds, known_rounds
from .records import ForwardTime

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RoundTime:
    """One round of a batch.

    Attributes:
        planned: how deep it was to draft; less than asked for where fewer tokens remained.
        rows: sequences in it.
        width: the most tokens drafted for one of them.
        looked_up: whether no row's draft took a step of a model.
        emitted: tokens, of all rows.
        first: whether it was its sequences' first, in which prompts are read.
        draft_s, target_s: as in `RoundRecord`.
        total_s: from the call of the round to its return.
    """

    planned: int
    rows: int
    width: int
    looked_up: bool
    emitted: int
    first: bool
    draft_s: float
    target_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Watched:
    """What a decoder did with batches of prompts.

    Attributes:
        rounds: of each batch.
        token_ids: emitted for each prompt of each batch.
    """

    rounds: tuple[tuple[RoundTime, ...], ...]
    token_ids: tuple[tuple[Tokens, ...], ...]

    @property
    def usual(self) -> list[RoundTime]:
        """All rounds in which no prompt was read."""
        return [seen for batch in self.rounds for seen in batch if not seen.first]


def watch(
    decoders: Sequence[tuple[SpeculativeDecoder, SamplingParams]],
    batches: Sequence[Sequence[Tokens]],
    done: Callable[[], None] = lambda: None,
) -> list[Watched]:
    """Decode batches of prompts with several decoders, one round of each in turn.

    Args:
        decoders: with the parameters of their requests; `depths` asks for a depth of each round.
        batches: for each batch, the token ids of its prompts.
        done: is called after each batch.
    """
    rounds: list[list[tuple[RoundTime, ...]]] = [[] for _ in decoders]
    token_ids: list[list[tuple[Tokens, ...]]] = [[] for _ in decoders]
    for batch in batches:
        lanes = [_Lane(decoder, batch, params) for decoder, params in decoders]
        try:
            going = True
            while going:
                going = any(tuple(lane.advance() for lane in lanes))
        finally:
            for lane in lanes:
                lane.close()
        for index, lane in enumerate(lanes):
            rounds[index].append(tuple(lane.rounds))
            token_ids[index].append(lane.token_ids)
        done()
    pairs = zip(rounds, token_ids, strict=True)
    return [Watched(tuple(seen), tuple(tokens)) for seen, tokens in pairs]


class _Lane:
    """One decoder on its way through a batch."""

    def __init__(
        self, decoder: SpeculativeDecoder, batch: Sequence[Tokens], params: SamplingParams
    ) -> None:
        states = [state for prompt in batch for state in decoder.start(list(prompt), params)]
        self._emitted: dict[int, list[int]] = {state.prefix.sequence_id: [] for state in states}
        self._deepest = decoder.config.deepest if decoder.drafter is not None else 0
        self._depths = params.depths or ()
        self._remaining = params.max_tokens - 1
        self._run = iter(Run(decoder, states, discard=True))
        self.rounds: list[RoundTime] = []

    @property
    def token_ids(self) -> tuple[Tokens, ...]:
        return tuple(tuple(tokens) for tokens in self._emitted.values())

    def advance(self) -> bool:
        start = perf_counter()
        step = next(self._run, None)
        total_s = perf_counter() - start
        if step is None:
            return False
        index, record = len(self.rounds), step.record
        asked = self._depths[index] if index < len(self._depths) else self._deepest
        self.rounds.append(
            RoundTime(
                planned=min(asked, self._remaining),
                rows=len(record.drafted),
                width=max(record.drafted),
                looked_up=all(record.looked_up),
                emitted=sum(record.emitted),
                first=index == 0,
                draft_s=record.draft_s,
                target_s=record.target_s,
                total_s=total_s,
            )
        )
        for state, tokens in zip(step.batch.states, step.emitted, strict=True):
            self._emitted[state.prefix.sequence_id] += tokens
        going = [state.remaining for state in step.batch.states if state.finish_reason is None]
        self._remaining = max(going, default=1) - 1
        return True

    def close(self) -> None:
        self._run.close()


def cycled(depths: Sequence[int], rounds: int) -> tuple[int, ...]:
    """`rounds` depths in which each comes equally often, in an order that is never the same."""
    random = np.random.default_rng(0)
    cycles = [random.permutation(depths) for _ in range(-(-rounds // len(depths)))]
    return tuple(np.concatenate(cycles)[:rounds].tolist())


def medians(
    rounds: Iterable[RoundTime], seconds: Callable[[RoundTime], float], rows: Collection[int]
) -> dict[tuple[int, int], float]:
    """The median seconds of rounds of each size (rows, width), of these numbers of rows only."""
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for seen in rounds:
        if seen.rows in rows:
            found[seen.rows, seen.width].append(seconds(seen))
    return {size: median(times) for size, times in found.items()}


def forward_times(rounds: Sequence[RoundTime]) -> tuple[ForwardTime, ...]:
    """The curve t(n): what the target's forward took in these rounds."""
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for seen in rounds:
        found[seen.rows, seen.width + 1].append(seen.target_s)
    curve = []
    for (rows, width), times in sorted(found.items()):
        low, middle, high = np.percentile(times, (25, 50, 75)).tolist()
        curve.append(ForwardTime(rows, width, middle, low, high))
    return tuple(curve)


class Filler:
    """Drafts a prefix's last token again and again: free, and as deep as it is asked to."""

    @property
    def vocab_size(self) -> None:
        """None: it only proposes tokens that it has seen."""
        return None

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """As deep as planned, each token a point mass."""
        last = np.array([prefix.tokens[-1] for prefix in prefixes], dtype=np.int64)
        tokens = torch.from_numpy(np.repeat(last[:, None], plan.deepest, 1)).to(ctx.device)
        return DraftProposal(tokens, plan.depth, Laws(atoms=tokens))


def draft_ratios(
    target: TargetModel,
    drafter: DraftModel,
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
        None if the drafter proposes tokens outright, so that there is no law to ask about.
    """
    if len(text) < 2:
        return np.zeros(0)
    recorder = _Recorder()
    drawn = replace(params, max_tokens=len(text), temperature=params.temperature or 1.0, seed=0)
    config = SpeculativeConfig(num_speculative_tokens=len(text) - 1, depth="fixed", strict=True)
    verifier = Verifier(recorder, None)
    decoder = SpeculativeDecoder(target, drafter, config=config, verifier=verifier)
    states = decoder.start(list(prompt), drawn)
    try:
        decoder.step(decoder.pack(states), _Dictated(tuple(text)))
    finally:
        decoder.release(states, discard=True)
    chain = recorder.chain
    if chain.draft is None:
        return None
    draft, tokens = chain.draft[0].double().cpu().numpy(), chain.tokens[0].cpu().numpy()
    if params.greedy:
        return np.asarray(draft.argmax(-1) == tokens, dtype=np.float64)
    places = np.arange(len(tokens))
    of_target = chain.target[0].double().cpu().numpy()[places, tokens]
    # A token that rounding has put just outside of a filter counts as refused.
    sound = of_target > 0
    return np.where(sound, draft[places, tokens] / np.where(sound, of_target, 1.0), 0.0)


class _Dictated:
    """Chance that draws a given text, and wherever it is asked to stop, the likeliest place."""

    def __init__(self, text: Tokens) -> None:
        self._text = text

    def draw(self, laws: Tensor, keys: NDArray[np.uint64]) -> Tensor:
        if keys[0, 3] == STOP:
            return laws.argmax(-1)
        place = len(self._text) - 1 if keys[0, 3] == TOKEN else int(keys[0, 4])
        return torch.full((len(laws),), self._text[place], dtype=torch.int64, device=laws.device)


class _Recorder(TokenVerification):
    """Keeps every draft, and what verification was shown."""

    chain: Chain

    def stop_law(self, chain: Chain) -> tuple[Any, Any]:
        self.chain = chain
        law, weights = super().stop_law(chain)
        law = torch.zeros_like(law)
        law[:, -1] = 1.0
        return law, weights


def looked_up_rounds(
    drafter: DraftModel,
    vocab_size: int,
    batches: Sequence[Sequence[tuple[Tokens, Tokens]]],
    depth: int,
) -> list[list[Rounds]]:
    """The rounds in which texts are emitted with drafts that follow from the prefix alone.

    The engine decodes each text once more, with a target that is certain of it.

    Args:
        drafter: proposes point masses.
        vocab_size: the target's V.
        batches: for each batch, prompts with their texts.
        depth: the most tokens of a draft.

    Returns:
        For each batch, the rounds of each text.
    """
    config = SpeculativeConfig(num_speculative_tokens=depth, depth="fixed", strict=True)
    found = []
    for batch in batches:
        target = _Recital(vocab_size)
        decoder = SpeculativeDecoder(target, drafter, config=config)
        states: list[SequenceState] = []
        for prompt, text in batch:
            params = SamplingParams(temperature=0, max_tokens=len(text), ignore_eos=True)
            (state,) = decoder.start(list(prompt), params)
            target.texts[state.prefix.sequence_id] = np.array([*prompt, *text], dtype=np.int64)
            states.append(state)
        drafted: dict[int, list[int]] = {state.prefix.sequence_id: [] for state in states}
        for step in Run(decoder, states, discard=True):
            for sequence_id, count in zip(
                step.record.sequence_ids, step.record.drafted, strict=True
            ):
                drafted[sequence_id].append(count)
        found.append([known_rounds(counts) for counts in drafted.values()])
    return found


class _Recital:
    """A target that is certain of given texts."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.texts: dict[int, NDArray[np.int64]] = {}

    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        """Logits [B, N + 1, V] whose greatest is the text's next token, wherever a node stands."""
        logits = torch.zeros(len(prefixes), proposal.width + 1, self.vocab_size)
        for row, prefix in enumerate(prefixes):
            ahead = self.texts[prefix.sequence_id][prefix.length :][: proposal.width + 1]
            logits[row, np.arange(len(ahead)), ahead.tolist()] = 1.0
        return TargetScores(logits.to(proposal.tokens.device))
