"""The values that flow through a round, each frozen, each handed on once.

Shapes: B rows (sequences of the batch), N drafted tokens at most, V vocabulary. Lengths and depths
are host data (NumPy); tokens, distributions and logits live on the model's device (torch).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..config.params import SamplingParams
from . import trees
from .plan import DraftPlan as DraftPlan
from .plan import DraftTree as DraftTree
from .plan import RowOutcome as RowOutcome
from .plan import StopRule as StopRule
from .prefix import Prefix as Prefix

if TYPE_CHECKING:
    from torch import Tensor

FinishReason = Literal["stop", "length", "error"]

MODEL = "model"
"""The source of a draft whose tokens each took a step of a model."""


@dataclass(frozen=True, slots=True)
class SequenceState:
    """One sequence being decoded: all that the next round may depend on.

    Attributes:
        prefix: the prompt and the tokens emitted so far.
        prompt_length: the number of prompt tokens.
        params: the request's parameters.
        stop_ids: the tokens that end the request.
        stream_key: the 64-bit key of the sequence's randomness.
        choice: the index among the `n` of its request.
        depths: one integer for each round so far: the number of tokens drafted in a row by a model,
            or minus the number of tokens looked up, all of a tree's.
        finish_reason: why it ended; None while it goes on.
        history: what the policy remembers of this sequence, frozen and hashable.
        processors: the request's logits processors; those with a state as it is after the last
            token.
        grammar: says which tokens may follow; None allows all.
        prediction: the expected output, int64 [m].
        drafting: whether drafts are made for it; not after its drafter failed.
        cached: tokens of its prompt that the target found computed, if it was prefilled in parts.
        draft_prefill_s: seconds that drafters took for their part of that.
    """

    prefix: Prefix
    prompt_length: int
    params: SamplingParams
    stop_ids: frozenset[int]
    stream_key: int
    choice: int = 0
    depths: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    history: Any = None
    processors: tuple[Any, ...] = ()
    grammar: Any = field(default=None, compare=False)
    prediction: NDArray[np.int64] | None = field(default=None, compare=False)
    drafting: bool = True
    cached: int = 0
    draft_prefill_s: float = field(default=0.0, compare=False)

    @property
    def round(self) -> int:
        """The number of rounds this sequence has been through."""
        return len(self.depths)

    @property
    def remaining(self) -> int:
        """The number of tokens that may still be emitted."""
        return self.params.max_tokens - self.emitted

    @property
    def replayed(self) -> int | None:
        """The entry of the request's own `depths` for the next round; None beyond their end."""
        asked = self.params.depths
        return None if asked is None or self.round >= len(asked) else asked[self.round]

    @property
    def emitted(self) -> int:
        """The number of tokens emitted so far."""
        return self.prefix.length - self.prompt_length

    @property
    def output_ids(self) -> list[int]:
        """The tokens emitted so far."""
        tokens: list[int] = self.prefix.tokens[self.prompt_length :].tolist()
        return tokens


@dataclass(frozen=True, slots=True)
class Distributions:
    """The distributions that tokens are drawn from, one for each leading index.

    Exactly one field is set.

    Attributes:
        probs: dense rows [..., V] that sum to one, in max(float32, the logits' dtype).
        point_masses: token ids [...], each standing for the distribution that puts all its mass on
            that token: what a greedy request or a look-up draws from, without one-hot rows.
    """

    probs: Tensor | None = None
    point_masses: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Children:
    """Tokens that follow the same node, for each of M nodes, in the order they are verified in.

    Attributes:
        tokens: int64 [B, M, C]; those beyond a node's count are padding.
        distributions: for [B, M, R], what the drawn ones among them were drawn from; None if none
            was drawn.
        distribution_rows: for each of the C children the index among its node's R distributions,
            or -1 for one that was not drawn, int64 [B, C], on the host.
    """

    tokens: Tensor
    distributions: Distributions | None
    distribution_rows: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DraftProposal:
    """Drafted tokens, and the distributions they were drawn from.

    Attributes:
        tokens: int64 [B, N]; entries at and beyond a row's length are never looked at.
        lengths: the number of tokens drafted for each row, int64 [B] in 0..N, on the host.
        distributions: for [B, N]; what each token was drawn from, exactly as it was drawn. None if
            N = 0. With `distribution_rows`, for [B, R].
        parents: the node that each token follows, int64 [B, N], on the host (see
            `outrider.types.trees`); None for chains.
        distribution_rows: the index among the R distributions of the one that each token was drawn
            from, given the siblings before it, int64 [B, N], on the host; -1 for a token that was
            not drawn, a point mass. None where distributions and tokens go side by side.
        sources: the drafter that each row's tokens came from; None if all came from a model.
        confidence: of looked-up tokens, float64 [B, N], on the host; None if there are none.
    """

    tokens: Tensor
    lengths: NDArray[np.int64]
    distributions: Distributions | None
    parents: NDArray[np.int64] | None = None
    distribution_rows: NDArray[np.int64] | None = None
    sources: tuple[str, ...] | None = None
    confidence: NDArray[np.float64] | None = None

    @property
    def width(self) -> int:
        """The number of token columns, N."""
        return int(self.tokens.shape[1])

    @property
    def row_sources(self) -> tuple[str, ...]:
        """The source of each row's tokens, `MODEL` where nothing is said."""
        return (MODEL,) * len(self.tokens) if self.sources is None else self.sources

    @property
    def structure(self) -> NDArray[np.int64]:
        """The parents [B, N], those of a chain written out."""
        return trees.chain(*self.tokens.shape) if self.parents is None else self.parents


@dataclass(frozen=True, slots=True, eq=False)
class HiddenStates:
    """What some layers made of tokens of one sequence that follow one another.

    Attributes:
        prefix: the sequence's text up to the last of these tokens.
        start: the position of the first of them.
        states: [n, L, D]: after layer `layers[i]` at index i, where layer 0 is the embedding.
    """

    prefix: Prefix
    start: int
    states: Tensor


@dataclass(frozen=True, slots=True)
class TargetScores:
    """What the target computes of B prefixes and their drafts.

    Attributes:
        logits: [B, N + 1, V], after each node, the prefix first, then each drafted token.
        cached: the number of tokens of each prefix that is new to the target and that were found in
            its cache; 0 of a prefix that it goes on with. Empty where it is not known.
        hidden: hidden states of the nodes, [B, N + 1, L, D]; None where none were asked for.
    """

    logits: Tensor
    cached: tuple[int, ...] = ()
    hidden: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a round's drafts: one number for each of B rows, on the device.

    Attributes:
        node: int64 [B]; the tokens down to this node are kept (on a chain that many; 0 keeps none).
        next_token: int64 [B], the one that follows them: the correction of what was not kept, or
            the bonus token where nothing was drafted further.
        ceiling: float64 [B], an unbiased estimate of the most tokens that any verifier emits on
            average from such drafts, the last one included; None where none is known.
    """

    node: Tensor
    next_token: Tensor
    ceiling: Tensor | None = None


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """What one round did and where its time went. Tuples have one entry a row; times are seconds.

    Attributes:
        sequence_ids: of the rows.
        drafted: the number of tokens drafted.
        depth: how many of them lie in a row at most: the same on chains.
        accepted: the number of drafted tokens that were emitted, without those that a stop rule
            cut off.
        emitted: the number of tokens emitted, likewise.
        bonus: whether the last token followed a draft with nothing drafted after it.
        ceiling: an estimate of the most tokens that any lossless verifier emits on average from
            such drafts; None where none is known.
        draft_failed: whether the drafter raised or broke its contract.
        sources: the drafter that each row's tokens came from.
        confidence: of each row's tokens; empty where the plan did not ask for it.
        cached: the number of tokens of new prefixes that the target found in its cache.
        draft_s: time spent proposing.
        target_s: time spent in the target's forward pass.
        total_s: time of the whole round.
        plan_s: time spent choosing the depth.
        between_s: time that drafting took outside of rounds since the last: learning, releasing,
            and the prefill in parts of prompts that are new in this round.
    """

    sequence_ids: tuple[int, ...]
    drafted: tuple[int, ...]
    depth: tuple[int, ...]
    accepted: tuple[int, ...]
    emitted: tuple[int, ...]
    bonus: tuple[bool, ...]
    ceiling: tuple[float | None, ...]
    draft_failed: bool
    sources: tuple[str, ...]
    confidence: tuple[tuple[float, ...], ...]
    cached: tuple[int, ...]
    draft_s: float
    target_s: float
    total_s: float
    plan_s: float = 0.0
    between_s: float = 0.0
