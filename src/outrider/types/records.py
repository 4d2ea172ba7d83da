"""The values that flow through a round, each frozen, each handed on once.

Shapes: B rows (sequences of the batch), N drafted tokens at most, V vocabulary. Lengths and depths
are host data (NumPy); tokens, distributions and logits live on the model's device (torch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..config.params import SamplingParams
from ..sampling.grammar import Grammar
from . import trees
from .acceptance import NOTHING_KNOWN, Acceptance
from .worth import Worth

if TYPE_CHECKING:
    from torch import Tensor

FinishReason = Literal["stop", "length"]

KeepGoing = Callable[[NDArray[np.float64], NDArray[np.bool_]], NDArray[np.bool_]]
"""See `DraftPlan.keep_going`."""


class _Buffer:
    """Tokens [capacity] of which the first `fill` are owned by at least one prefix."""

    __slots__ = ("data", "fill")

    def __init__(self, data: NDArray[np.int64], fill: int) -> None:
        self.data = data
        self.fill = fill


class Prefix:
    """The tokens of one sequence so far: an append-only integer buffer with a length.

    Prefixes are values: `extended` returns a new prefix and leaves this one as it is. A prefix and
    its extensions share one buffer as long as they form a single line; the second extension of the
    same prefix copies.

    Args:
        sequence_id: names the sequence to models that keep a cache of it.
        tokens: token ids.
    """

    __slots__ = ("_buffer", "length", "sequence_id")

    def __init__(self, sequence_id: int, tokens: Iterable[int]) -> None:
        data = np.fromiter(tokens, dtype=np.int64)
        self.sequence_id = sequence_id
        self.length = len(data)
        self._buffer = _Buffer(data, len(data))

    @property
    def tokens(self) -> NDArray[np.int64]:
        """The token ids, int64 [length]. A view: do not write to it."""
        return self._buffer.data[: self.length]

    def extended(self, tokens: list[int]) -> Prefix:
        """This prefix followed by `tokens`."""
        length = self.length + len(tokens)
        buffer = self._buffer
        if buffer.fill != self.length or length > len(buffer.data):
            data = np.empty(max(2 * length, 64), dtype=np.int64)
            data[: self.length] = self.tokens
            buffer = _Buffer(data, self.length)
        buffer.data[self.length : length] = tokens
        buffer.fill = length
        longer = Prefix.__new__(Prefix)
        longer.sequence_id = self.sequence_id
        longer.length = length
        longer._buffer = buffer
        return longer

    def begins(self, other: Prefix) -> bool:
        """Whether another one's tokens begin with these; not compared if it extends this one."""
        if self.length > other.length:
            return False
        return self._buffer is other._buffer or np.array_equal(
            self.tokens, other.tokens[: self.length]
        )

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"Prefix(sequence_id={self.sequence_id}, tokens={self.tokens.tolist()})"


@dataclass(frozen=True, slots=True)
class Output:
    """What follows a prompt: the tokens of a prefix from a place on, and others after them.

    Attributes:
        prefix: the prompt, and what was emitted.
        start: the prompt's length.
        more: tokens after them.
    """

    prefix: Prefix
    start: int = 0
    more: tuple[int, ...] = ()

    def __len__(self) -> int:
        return self.prefix.length - self.start + len(self.more)

    def plus(self, tokens: tuple[int, ...]) -> Output:
        """This output with more tokens after it."""
        return Output(self.prefix, self.start, self.more + tokens)

    def since(self, earlier: Output | None) -> list[int] | None:
        """The tokens after those of an earlier output; None if this one does not go on from it.

        Of an output of an earlier round no more is looked at than what came after it.

        Args:
            earlier: the other; None for an empty one.
        """
        if earlier is None:
            return [*self.prefix.tokens[self.start :].tolist(), *self.more]
        if self.start != earlier.start or not earlier.prefix.begins(self.prefix):
            return None
        rest = [*self.prefix.tokens[earlier.prefix.length :].tolist(), *self.more]
        known = len(earlier.more)
        return rest[known:] if tuple(rest[:known]) == earlier.more else None


@dataclass(frozen=True, slots=True)
class SequenceState:
    """One sequence being decoded: all that the next round may depend on.

    `stream_key` is the 64-bit key of the sequence's randomness, `choice` its index among the `n` of
    its request, `depths` the number of tokens drafted in each round so far, `acceptance` what a
    depth policy remembers of them. `processors` are the request's own, those that remember as they
    stand after the last token's position; `grammar` says which tokens may follow; `prediction` is
    what the output is expected to be, int64 [m].
    """

    prefix: Prefix
    prompt_length: int
    params: SamplingParams
    stop_ids: frozenset[int]
    stream_key: int
    choice: int = 0
    depths: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    acceptance: Acceptance = NOTHING_KNOWN
    processors: tuple[Any, ...] = ()
    grammar: Grammar | None = None
    prediction: NDArray[np.int64] | None = field(default=None, compare=False)

    @property
    def round(self) -> int:
        """How many rounds this sequence has been through."""
        return len(self.depths)

    @property
    def remaining(self) -> int:
        """How many more tokens may be emitted."""
        return self.params.max_tokens - (self.prefix.length - self.prompt_length)

    @property
    def output(self) -> Output:
        """The tokens emitted so far, not copied."""
        return Output(self.prefix, self.prompt_length)

    @property
    def output_ids(self) -> list[int]:
        """The tokens emitted so far."""
        tokens: list[int] = self.prefix.tokens[self.prompt_length :].tolist()
        return tokens

    def advanced(
        self,
        tokens: list[int],
        depth: int,
        finish_reason: FinishReason | None,
        acceptance: Acceptance,
        processors: tuple[Any, ...],
    ) -> SequenceState:
        """The state after a round that drafted `depth` tokens and emitted `tokens`."""
        return SequenceState(
            self.prefix.extended(tokens),
            self.prompt_length,
            self.params,
            self.stop_ids,
            self.stream_key,
            self.choice,
            (*self.depths, depth),
            finish_reason,
            acceptance,
            processors,
            self.grammar,
            self.prediction,
        )


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """How far to draft, and in what shape.

    Attributes:
        depth: the most tokens in a row for each sequence, int64 [B], 0 included.
        levels: for a tree, how many nodes it has at each depth; None drafts chains. A row of
            smaller depth has the first levels only.
        shape: how many children each node has at each depth; None where the nodes of a level are
            shared out among its parents by the drafter.
        steps: how many tokens in a row are worth drafting for each sequence where every one takes
            a step of a model, int64 [B], at most `depth`; None for all of them.
        worth: what looked-up tokens have to bring; None takes any.
        keep_going: told the entropies of the distributions that the first n tokens in a row were drawn from,
            float64 [B, n] in nats, and which rows may draft another, bool [B], says which do, bool
            [B]; the others end there.
            None lets all rows go as deep as planned. For chains that a model drafts.
        repeats: for a row that repeats a run by its `depths`, how many steps it would be planned
            for without them, int64 [B], -1 for the others; None if there is none. No source
            proposes more in a row than `steps` for it. What it drafts less than this counts as
            refused, as in the run that it repeats, whose draft ended or failed there.
        looks: whether tokens are looked up; not where that takes longer than it gains.
    """

    depth: NDArray[np.int64]
    levels: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    steps: NDArray[np.int64] | None = None
    worth: Worth | None = None
    keep_going: KeepGoing | None = None
    repeats: NDArray[np.int64] | None = None
    looks: bool = True

    @property
    def model_steps(self) -> NDArray[np.int64]:
        """How many tokens in a row a model is to draft for each row, int64 [B]."""
        return self.depth if self.steps is None else self.steps

    @property
    def repeated(self) -> NDArray[np.int64]:
        """`repeats`, -1 for all rows where nothing is said."""
        return np.full(len(self.depth), -1) if self.repeats is None else self.repeats

    @property
    def deepest(self) -> int:
        """The largest depth of any row."""
        return int(self.depth.max(initial=0))

    @property
    def width(self) -> int:
        """The most tokens drafted for any row: the N of this round."""
        return self.deepest if self.levels is None else sum(self.levels[: self.deepest])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The most tokens drafted for each row, int64 [B]."""
        if self.levels is None:
            return self.depth
        return np.concatenate([[0], np.cumsum(self.levels)]).astype(np.int64)[self.depth]


@dataclass(frozen=True, slots=True)
class Distributions:
    """The distributions that tokens are drawn from, one for each leading index.

    Exactly one field is set. `probs` [..., V] are dense rows that sum to one, in max(float32, the
    logits' dtype). `point_masses` [...] are token ids, each the distribution that puts all its mass on that token:
    what a greedy request or a lookup draws from, without a one-hot row being built.
    """

    probs: Tensor | None = None
    point_masses: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Children:
    """Tokens that follow the same node, for each of M nodes, in the order they are verified in.

    Attributes:
        tokens: int64 [B, M, C]; those beyond a node's count mean nothing.
        distributions: for [B, M, R], what the drawn ones among them were drawn from; None if none was.
        distribution_rows: for each of the C children the index among its node's R distributions, or -1 for one that
            was proposed outright, int64 [B, C], on the host.
    """

    tokens: Tensor
    distributions: Distributions | None
    distribution_rows: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DraftProposal:
    """Drafted tokens, and the distributions they were drawn from.

    Attributes:
        tokens: int64 [B, N]; entries at and beyond a row's length are never looked at.
        lengths: how many tokens were drafted for each row, int64 [B] in 0..N, on the host.
        distributions: for [B, N]; what each token was drawn from, exactly as it was drawn. None if N = 0.
            With `distribution_rows`, for [B, R].
        parents: the node that each token follows, int64 [B, N], on the host (see
            `outrider.trees`); None for chains.
        distribution_rows: the index among the R distributions of the one that each token was drawn from, given the
            siblings before it, int64 [B, N], on the host; -1 for a token that was proposed
            outright, a point mass. None where distributions and tokens go side by side.
        looked_up: whether each row's tokens took no step of a model to draft, bool [B], on the
            host; None if all took some, or the drafter knows of no difference.
    """

    tokens: Tensor
    lengths: NDArray[np.int64]
    distributions: Distributions | None
    parents: NDArray[np.int64] | None = None
    distribution_rows: NDArray[np.int64] | None = None
    looked_up: NDArray[np.bool_] | None = None

    @property
    def width(self) -> int:
        """N, the number of token columns."""
        return int(self.tokens.shape[1])

    @property
    def stepless(self) -> tuple[bool, ...]:
        """`looked_up`, False for all rows where nothing is said."""
        return (
            (False,) * len(self.tokens)
            if self.looked_up is None
            else tuple(self.looked_up.tolist())
        )

    @property
    def structure(self) -> NDArray[np.int64]:
        """The parents [B, N], those of a chain written out."""
        return trees.chain(*self.tokens.shape) if self.parents is None else self.parents


@dataclass(frozen=True, slots=True)
class TargetScores:
    """What the target makes of B prefixes and their drafts.

    Attributes:
        logits: [B, N + 1, V], after each node, the prefix first, then each drafted token.
        cached: how many tokens of each prefix it had not been asked about before, and did not have
            to compute all the same; 0 of a prefix that it goes on with, or that a drafter in the
            same slots has read. Empty where it cannot tell.
    """

    logits: Tensor
    cached: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a round's drafts: one number for each of B rows, on the device.

    Attributes:
        node: int64 [B]; the tokens down to this node are kept (on a chain that many; 0 keeps none).
        next_token: int64 [B], the one that follows them: the correction of what was not kept, or
            the bonus token where nothing was drafted further.
        ceiling: float64 [B], an unbiased estimate of the most tokens that any verifier emits on
            average from such drafts, the last one included; None where none is known.
        first_ceiling: float64 [B], of a tree: the greatest probability with which any verifier
            keeps one of the first tokens; None where none is known, NaN in such a row.
    """

    node: Tensor
    next_token: Tensor
    ceiling: Tensor | None = None
    first_ceiling: Tensor | None = None


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """What one round did and where its time went. Lists are per row; times are seconds.

    `drafted` counts tokens and `depth` how many of them lie in a row at most: the same on chains.
    `accepted` and `emitted` exclude tokens cut off by a stop rule. `bonus` says whether the last
    token followed a draft with nothing drafted after it. `ceiling` is an estimate of the most
    tokens that any lossless verifier emits on average from such drafts, `first_ceiling` of the
    probability that it keeps one of a tree's first tokens; None where none is known. `draft_failed`
    says that the drafter failed, so that less was drafted, `looked_up` which rows' drafts took
    no step of a model. `ended` says which rows' drafts the plan's `keep_going` ended, `entropies`
    how sure the draft was of each token of a row, in nats: nothing where the plan has none or the
    drafter does not ask it. `cached` counts tokens of prefixes that the target found computed, in
    the round in which it reads them. `draft_s` and `target_s` are the time spent proposing and in
    the target's forward pass, `plan_s` the time spent choosing the depth, `total_s` all of the
    round.
    """

    sequence_ids: tuple[int, ...]
    drafted: tuple[int, ...]
    depth: tuple[int, ...]
    accepted: tuple[int, ...]
    emitted: tuple[int, ...]
    bonus: tuple[bool, ...]
    ceiling: tuple[float | None, ...]
    first_ceiling: tuple[float | None, ...]
    draft_failed: bool
    looked_up: tuple[bool, ...]
    ended: tuple[bool, ...]
    entropies: tuple[tuple[float, ...], ...]
    cached: tuple[int, ...]
    draft_s: float
    target_s: float
    total_s: float
    plan_s: float = 0.0
