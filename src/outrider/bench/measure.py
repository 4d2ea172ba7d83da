"""The seconds that predictions rest on: those of real rounds of the engine.

They are of several decoders in turn: a forward in a decoding loop takes longer than one in a tight
loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import numpy as np
import torch

from ..config.params import SamplingParams, SpeculativeConfig
from ..engine.decoder import SpeculativeDecoder
from ..engine.scheduler import Run
from ..types.protocols import DraftContext, Drafter, Target
from ..types.records import Distributions, DraftPlan, DraftProposal, Prefix
from .records import ForwardTime

Tokens = tuple[int, ...]

_NEAR = 2
"""How many turns before a round, and after it, show how fast the machine was."""


@dataclass(frozen=True, slots=True)
class RoundTime:
    """One round of a batch.

    Attributes:
        planned: how deep it was to draft; less than asked for where fewer tokens remained.
        rows: sequences in it.
        width: the most tokens drafted for one of them.
        stepped: whether some row's draft took a step of a model.
        emitted: tokens, of all rows.
        first: whether it was its sequences' first, in which prompts are read.
        draft_s, target_s: as in `RoundRecord`.
        total_s: from the call of the round to its return.
    """

    planned: int
    rows: int
    width: int
    stepped: bool
    emitted: int
    first: bool
    draft_s: float
    target_s: float
    total_s: float

    def slower(self, times: float) -> RoundTime:
        """The same round on a machine that takes so many times as long."""
        return replace(
            self,
            draft_s=self.draft_s * times,
            target_s=self.target_s * times,
            total_s=self.total_s * times,
        )


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
                stepped=any(
                    width and not free
                    for width, free in zip(record.drafted, record.looked_up, strict=True)
                ),
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


def usual_times(
    rounds: Iterable[RoundTime], seconds: Callable[[RoundTime], float], rows: Collection[int]
) -> dict[tuple[int, int], float]:
    """The median time of rounds of each size (rows, width), of these numbers of rows only.

    On a machine that others use as well a mean is mostly what a few rounds happened to meet, and
    says nothing of the next run.
    """
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for seen in rounds:
        if seen.rows in rows:
            found[seen.rows, seen.width].append(seconds(seen))
    return {size: median(times) for size, times in found.items()}


def at_one_pace(watched: Sequence[Watched], usual: Mapping[int, float]) -> list[Watched]:
    """The same rounds, timed as if the machine had been as fast all the time.

    Other work slows it down for a while, and all that it does then: sizes that happened to be
    measured in such a while would look dear beside the others. How slow it was shows in the rounds
    of plain decoding about the same turn.

    What a longer text costs a round is taken for such a while, too: a prompt of other length than
    most counts as one of theirs, and where a text makes rounds much dearer, those that speculate,
    further on in it than plain decoding at that turn, look dearer than they are.

    Args:
        watched: decoders that took turns; plain decoding is the first.
        usual: what its rounds take at one pace, by the number of sequences.
    """
    slowness = [_slowness(rounds, usual) for rounds in watched[0].rounds]
    return [
        replace(
            one,
            rounds=tuple(
                tuple(
                    seen.slower(1 / slow[min(turn, len(slow) - 1)])
                    for turn, seen in enumerate(rounds)
                )
                for rounds, slow in zip(one.rounds, slowness, strict=True)
            ),
        )
        for one in watched
    ]


def _slowness(rounds: Sequence[RoundTime], usual: Mapping[int, float]) -> list[float]:
    """How many times as long as usual rounds took about each turn."""
    # The first round, which read prompts, tells nothing.
    ratios = [
        seen.total_s / usual[seen.rows] if usual.get(seen.rows, 0.0) > 0 else None
        for seen in rounds[1:]
    ]
    slowness = []
    for turn in range(len(rounds)):
        about = ratios[max(0, turn - _NEAR - 1) : turn + _NEAR]
        near = [ratio for ratio in about if ratio is not None]
        slowness.append((median(near) if near else 1.0) or 1.0)
    return slowness


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


def reading_s(
    target: Target,
    drafter: Drafter,
    batch: Sequence[Tokens],
    params: SamplingParams,
    *,
    keep: bool,
) -> float:
    """Seconds in which a draft model reads the prompts of a batch.

    By which its first draft takes longer than one after prompts that it has read. Decoders that
    share a draft model do not read alike: the first reads, and the others copy. If the prompts are
    kept all of them find them read, and what it took is to be added to each.

    Args:
        target: the target.
        drafter: drafts with a model.
        batch: the token ids of the prompts.
        params: of each request.
        keep: whether later sequences find the prompts read. If they do, a later batch that shares a
            prefix with this one reads less than it would alone.
    """
    config = SpeculativeConfig(num_speculative_tokens=1, depth="fixed")
    decoder = SpeculativeDecoder(target, drafter, config=config)
    taken = []
    for discard in (False, not keep):
        states = [state for prompt in batch for state in decoder.start(list(prompt), params)]
        taken.append(decoder.step(decoder.pack(states)).record.draft_s)
        decoder.release(states, discard=discard)
    return max(0.0, taken[0] - taken[1])


class Filler:
    """Drafts a prefix's last token again and again: free, and as deep as it is asked to.

    Args:
        vocab_size: of the model that it stands for; None if it stands for none.
    """

    def __init__(self, vocab_size: int | None = None) -> None:
        self.vocab_size = vocab_size

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """As deep as planned, each token a point mass."""
        last = np.array([prefix.tokens[-1] for prefix in prefixes], dtype=np.int64)
        tokens = torch.from_numpy(np.repeat(last[:, None], plan.deepest, 1)).to(ctx.device)
        return DraftProposal(tokens, plan.depth, Distributions(point_masses=tokens))
