"""What the engine asks of a model, a drafter, a depth policy and a source of chance.

Anything with these methods can be passed where the protocol is named; nothing has to be subclassed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .records import (
    Children,
    Distributions,
    DraftPlan,
    DraftProposal,
    Prefix,
    RoundRecord,
    SequenceState,
    TargetScores,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@runtime_checkable
class Target(Protocol):
    """A model whose distribution the output follows: a function of token prefixes."""

    @property
    def vocab_size(self) -> int:
        """Width of the logits, V."""
        ...

    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        """Logits [B, N + 1, V] after each prefix and after each of its drafted tokens.

        And how many tokens of prefixes that are new were found in a cache, if that can be told.
        Neither kept nor rejected tokens are reported back: the next call's prefixes say it all.
        """
        ...


class DraftContext(Protocol):
    """What a drafter may know of a round: how to turn logits into distributions, and distributions into tokens."""

    @property
    def device(self) -> torch.device:
        """Where proposals are expected."""
        ...

    @property
    def shaped(self) -> bool:
        """Whether distributions depend on the tokens drafted before, so that `distribution` has to be told them."""
        ...

    @property
    def local(self) -> NDArray[np.bool_]:
        """Rows [B], on the host, that must be drafted from their own sequence alone.

        Their text depends on what is drafted and is promised to repeat: what a drafter learnt from
        other sequences must not be shown to them.
        """
        ...

    @property
    def prompt_lengths(self) -> NDArray[np.int64]:
        """How many of each row's tokens are its prompt, [B], on the host."""
        ...

    def prediction(self, row: int) -> NDArray[np.int64] | None:
        """What a row's output is expected to be, int64 [m], on the host; None if nothing was said.

        The same array in every round of a sequence.
        """
        ...

    @property
    def remembers(self) -> bool:
        """Whether a drafter may learn from this round. A rehearsal walks all outcomes of one."""
        ...

    def limit(self, depth: NDArray[np.int64]) -> None:
        """From now on rows beyond these depths [B] draw nothing, as those beyond the plan's.

        For a drafter that has another draft less than was planned: what is drawn for a row must not
        depend on what others need. At most the plan's depths.
        """
        ...

    def distribution(self, logits: Tensor, path: Tensor | None = None) -> Distributions:
        """The distributions that the rows' own parameters make of logits [B, V] or [B, M, V].

        Or those that `SpeculativeConfig.draft_params` says, in the form of each row's output.

        Args:
            logits: after M nodes of each row, all at one depth D.
            path: the drafted tokens that lead to them, int64 [B, M, D]; None if there are none, or
                if nothing is `shaped` by them.
        """
        ...

    def pick(self, distributions: Distributions, position: int) -> Tensor:
        """Tokens int64 [B] drawn from `distributions`, the `position`-th drafted in this round.

        Each position may be picked once a round.
        """
        ...

    def settle(self) -> NDArray[np.int64]:
        """How deep each row is drafted, [B], as far as is known after the tokens drawn so far.

        Where the plan's `keep_going` says so, a row ends here, and draws nothing from now on. To be
        asked after each `pick`, before the next step of the model. Whether a row ends depends on
        the distributions that its tokens were drawn from, and so never on the last token's own value.
        """
        ...

    def children(
        self, distributions: Distributions, counts: Tensor, most: int, first: int, level: int
    ) -> Children:
        """Tokens that follow the same node, for each of M nodes at depth `level`.

        A tree that is grown by whole levels, the M nodes being all children of the level above in
        their order, as many in every row, is verified even if its drafter fails later; of another
        its first levels are.

        Args:
            distributions: for [B, M].
            counts: how many children each is to have, int64 [B, M], 0 included.
            most: the largest count, known on the host.
            first: the index of the first of these M nodes in the tree; each node may be asked about
                once a round.
            level: how many drafted tokens lead to these nodes.
        """
        ...

    def promise(self, distributions: Distributions, most: int) -> Tensor:
        """How likely each of `most` children of M nodes is to be kept, float64 [B, M, most].

        An estimate to rank by, made before anything is drawn; it does not grow from one child to
        the next.

        Args:
            distributions: for [B, M].
            most: how many children.
        """
        ...


@runtime_checkable
class Drafter(Protocol):
    """Proposes tokens for the target to check, cheaply."""

    @property
    def vocab_size(self) -> int | None:
        """Width of its distributions, V; None if it proposes tokens that it has seen, of any vocabulary."""
        ...

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """At most `plan.depth[b]` tokens for row b, with the distributions they were drawn from.

        Whether a token is proposed must not depend on the token's own drawn value.
        """
        ...


@runtime_checkable
class ModelBacked(Protocol):
    """A drafter that asks models, or other drafters, whose room the engine has to know of."""

    @property
    def models(self) -> Sequence[object]:
        """Models and drafters behind this one; the target may be among them."""
        ...


@runtime_checkable
class ReadsAhead(Protocol):
    """What drafts in the target's own slots, where the target would read prompts later."""

    def read_ahead(self, prefixes: Sequence[Prefix]) -> tuple[int, ...]:
        """Have the target compute all but the last few tokens of each prefix.

        Returns:
            How many tokens of each it found computed, of new ones.
        """
        ...


@runtime_checkable
class EndsEarly(Protocol):
    """A drafter that may end a draft before its planned depth."""

    @property
    def ends_early(self) -> bool:
        """Whether it asks `DraftContext.settle` after each token that it draws."""
        ...


@runtime_checkable
class KnowsCost(Protocol):
    """A drafter that may say beforehand what a step of it costs."""

    @property
    def cost_ratio(self) -> float | None:
        """A draft step beside a plain forward of the target; None where that is not known."""
        ...


@runtime_checkable
class LooksUp(Protocol):
    """A drafter with tokens to propose that take no step of a model, and an estimate of each."""

    def candidates(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> Sequence[object]:
        """What it knows of that might follow each prefix, before any model is asked."""
        ...


@runtime_checkable
class KeepsSequences(Protocol):
    """A model or a drafter that keeps something for each sequence."""

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        """These sequences will not be asked about again. Ids that are not known mean nothing.

        With `discard`, what was found out about them is not to be shared with others.
        """
        ...


@runtime_checkable
class LearnsOutputs(Protocol):
    """A drafter that wants to know what sequences came to, after their last rounds as well."""

    def ended(self, prefixes: Sequence[Prefix]) -> None:
        """These sequences are released next, unless they are discarded; ids may be unknown."""
        ...


class Cursor(Protocol):
    """A model in the middle of drafting: one position ahead of the tokens fed so far."""

    @property
    def logits(self) -> Tensor:
        """Logits [B, V] after the prefixes and the tokens fed so far."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Feed tokens int64 [B], on the device, and return the logits [B, V] after them."""
        ...

    def expand(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Feed nodes of a tree, and return the logits [B, M, V] after them.

        Args:
            tokens: int64 [B, M], on the device.
            parents: int64 [B, M], on the device: the node that each token follows, 0 the prefix, j
                the j-th fed before this call.
        """
        ...


@runtime_checkable
class AutoregressiveModel(Protocol):
    """A model that can draft token by token without its tokens reaching the host."""

    @property
    def vocab_size(self) -> int:
        """Width of the logits, V."""
        ...

    def open(self, prefixes: Sequence[Prefix], depth: int) -> Cursor:
        """A cursor at the end of the prefixes, to be fed fewer than `depth` tokens in a row."""
        ...


@runtime_checkable
class CachedModel(Protocol):
    """A model, target or drafter, that keeps state for a bounded number of sequences."""

    @property
    def max_sequences(self) -> int:
        """How many sequences may be live at once."""
        ...

    @property
    def max_length(self) -> int:
        """The longest prefix, drafts included, in tokens."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a sequence."""
        ...

    @property
    def device(self) -> torch.device:
        """Where its logits live."""
        ...

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        """These sequences will not be asked about again: their room may be reused.

        With `discard`, what was computed for them is not to be trusted, nor shared with others.
        """
        ...


def is_bounded(part: object) -> TypeGuard[CachedModel]:
    """Whether a part is a model that bounds its sequences: one with a cache."""
    return isinstance(part, CachedModel) and part.max_sequences is not None


@runtime_checkable
class HasSlots(Protocol):
    """A model that tells how many sequences it takes in without losing what it holds."""

    @property
    def empty_slots(self) -> int:
        """How many slots are no sequence's and hold nothing."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Decides how many tokens to draft for each sequence."""

    @property
    def learns(self) -> bool:
        """Whether plans depend on `SequenceState.acceptance`, so that it has to be kept."""
        ...

    def plan(self, states: Sequence[SequenceState]) -> DraftPlan:
        """A plan whose depth for each state is in 0..max(0, remaining - 1)."""
        ...

    def observe(self, states: Sequence[SequenceState], record: RoundRecord) -> None:
        """Learn from a round of the decoder, if this policy learns.

        Args:
            states: the sequences after it.
            record: what it did.
        """
        ...


class Chance(Protocol):
    """A source of randomness: keyed categorical draws from explicit distributions, and nothing else."""

    def draw(self, distributions: Tensor, keys: NDArray[np.uint64]) -> Tensor:
        """One index int64 [B] for each distribution [B, M], under keys [B, 5].

        A key is (stream key, choice, round, purpose, slot). Equal keys give equal noise.
        """
        ...


@runtime_checkable
class RacingChance(Protocol):
    """Chance whose noise a drafter can share with the target, token by token: coupled mode."""

    def draw(self, distributions: Tensor, keys: NDArray[np.uint64]) -> Tensor:
        """As `Chance.draw`."""
        ...

    def race(self, keys: NDArray[np.uint64], size: int) -> NDArray[np.float64]:
        """Exponential noise [B, size] under keys [B, 5], one for each token."""
        ...

    def race_at(self, keys: NDArray[np.uint64], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """What `race` gives under keys [n, 5] to one token [n] each."""
        ...


class Tokenizer(Protocol):
    """Text to token ids and back, as transformers' tokenizers do it."""

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        ...
