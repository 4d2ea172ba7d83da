"""What the engine asks of a model: a function of token prefixes, and what it can do."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..errors import ModelError
from ..types.records import DraftProposal, HiddenStates, Prefix, TargetScores

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Watcher(Protocol):
    """Who wants a runtime's hidden states."""

    def known(self, prefix: Prefix) -> int:
        """Return of how many of a new sequence's first tokens nothing is wanted."""
        ...

    def observe_round(self, hidden: Sequence[HiddenStates]) -> None:
        """Receive those of sequences' tokens, their last ones included, once they are computed."""
        ...


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a runtime can do, fixed when it is made.

    Attributes:
        vocab_size: width of the logits, V.
        device: where logits live.
        max_sequences: how many sequences may be live at once; None for any number.
        max_length: the longest prefix, drafts included, in tokens; None for any length.
        eos_token_ids: tokens that end a sequence.
        trees: whether proposals may branch.
        drafts_trees: whether cursors may, if proposals do; where they may not, chains are drafted.
    """

    vocab_size: int
    device: torch.device
    max_sequences: int | None = None
    max_length: int | None = None
    eos_token_ids: frozenset[int] = frozenset()
    trees: bool = True
    drafts_trees: bool = True


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """How far a prefix was prefilled.

    Attributes:
        missing: tokens that are still to be computed, its last one left out.
        cached: tokens that were found computed, if the sequence is new.
        draft_s: seconds that drafters took for their part of it.
    """

    missing: int = 0
    cached: int = 0
    draft_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Found:
    """What a new sequence would find.

    Attributes:
        tokens: how many of its prefix need not be computed.
        blocks: how many free blocks of the cache it would take.
    """

    tokens: int = 0
    blocks: int = 0


def rounding_of(eps: float) -> float:
    """Return what rounding explains of a model's logits, beside the largest of them.

    Args:
        eps: of the narrowest type that it computes with.
    """
    return max(4 * eps, math.pow(eps, 0.75))


def tolerated(rounding: float) -> float:
    """Return by how much logits may be off, beside the largest, before they are wrong.

    Args:
        rounding: of what computes them; see `Runtime.rounding`.

    Returns:
        Four times that, at most .25: a wrong token in the cache moves logits further.
    """
    return min(0.25, 4 * rounding)


class Cursor(ABC):
    """A model in the middle of drafting. It is fed chains by `step`, or trees by `expand`."""

    @property
    @abstractmethod
    def logits(self) -> Tensor:
        """Logits [B, V] after the prefixes and the tokens that `step` was fed so far."""

    @abstractmethod
    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token to each row, and return the logits after it.

        Args:
            tokens: int64 [B], on the device.

        Returns:
            Logits [B, V].

        Raises:
            ContextLengthError: no row has room for another token.
        """

    @property
    def confidence(self) -> Tensor | None:
        """How likely tokens that are drawn from the logits are kept, [B]; None if unknown."""
        return None

    def expand(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Feed nodes of a tree, and return the logits after them.

        Args:
            tokens: int64 [B, M], on the device.
            parents: int64 [B, M], on the device: the node that each token follows, 0 the prefix, j
                the j-th node fed before this call.

        Returns:
            Logits [B, M, V].

        Raises:
            ModelError: this runtime drafts chains; see `Capabilities.drafts_trees`.
        """
        raise ModelError(f"{type(self).__name__} is fed chains, and no trees; feed it by step")


class Runtime(ABC):
    """A model that verifies drafts, and may draft itself.

    Every call names whole prefixes, and nothing is committed or rolled back: a runtime finds the
    longest part of a prefix that it has computed before, and computes the rest. What it returns
    depends on the prefixes and the proposal alone.
    """

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this runtime can do."""

    @property
    def name(self) -> str:
        """What computes, such as "openvino"."""
        return type(self).__name__

    @property
    def precision(self) -> str:
        """The types of numbers that it computes with, such as "bfloat16, int8 weights"."""
        return ""

    @property
    def rounding(self) -> float:
        """Rounding tolerance across batch shapes, beside the largest logit.

        It goes by the narrowest type that the forward computes with, which need not be that of the
        logits or of the weights. By default what float32 explains.
        """
        return rounding_of(2.0**-23)

    @property
    def token_ratio(self) -> float:
        """About what one more token costs in a forward, beside a plain one.

        Policies go by it where nothing was timed, or may not be: a seed's text must not depend on a
        clock. By default .02, where reading the weights takes most of a forward.
        """
        return 0.02

    @property
    def vocab_size(self) -> int:
        """Width of the logits, V."""
        return self.capabilities.vocab_size

    @property
    def device(self) -> torch.device:
        """Where logits live."""
        return self.capabilities.device

    @property
    def max_sequences(self) -> int | None:
        """How many sequences may be live at once; None for any number."""
        return self.capabilities.max_sequences

    @property
    def max_length(self) -> int | None:
        """The longest prefix, drafts included, in tokens; None for any length."""
        return self.capabilities.max_length

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a sequence."""
        return self.capabilities.eos_token_ids

    @abstractmethod
    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        """Compute logits [B, N + 1, V] after each prefix and after each of its drafted tokens.

        Args:
            prefixes: of B different sequences, each with at least one token.
            proposal: N tokens for each, in a chain or a tree. Logits at and beyond a row's length
                are padding.

        Raises:
            EmptyPrefixError: a prefix has no tokens.
            ContextLengthError: a prefix with its longest path of drafts exceeds `max_length`.
            ModelError: more than `max_sequences` sequences are live.
            CacheFullError: the cache has no room for them; what they had is kept.
        """

    def with_hidden(self, layers: Sequence[int], watcher: Watcher | None = None) -> Runtime:
        """Return this runtime, over the same cache, with hidden states beside its logits.

        Args:
            layers: after which of them; 0 is the embedding.
            watcher: is given those of prefixes' tokens as they are computed: of a new sequence,
                found or not, of all after those that it knows. None takes what is found.

        Raises:
            InvalidConfigError: there is no such layer.
            ModelError: this runtime has no hidden states.
        """
        raise ModelError(
            f"{type(self).__name__} gives no hidden states of layers {list(layers)}, which the "
            "drafter needs; use TransformersModel or OpenVinoModel"
        )

    def open(self, prefixes: Sequence[Prefix], depth: int) -> Cursor:
        """Open a cursor at the end of the prefixes, to be fed fewer than `depth` tokens in a row.

        Raises:
            EmptyPrefixError, ContextLengthError: as `verify`.
            ModelError: as `verify`; or this runtime cannot draft.
        """
        raise ModelError(
            f"{type(self).__name__} cannot draft; use it as a target, and another model as drafter"
        )

    def prefill(self, prefix: Prefix, most: int) -> PrefillProgress:
        """Compute a part of a long prefix, so that others need not wait until all of it is.

        Args:
            prefix: of a sequence.
            most: how many tokens are computed at most, the last of the prefix never.

        Returns:
            What is left; by default nothing, as fits a model that keeps nothing.

        Raises:
            EmptyPrefixError, ContextLengthError, ModelError: as `verify`.
        """
        return PrefillProgress()

    @property
    def free_blocks(self) -> int | None:
        """How many blocks of its cache are free; None where there is no such bound."""
        return None

    def lookup(self, prefix: Prefix) -> Found:
        """Say what a new sequence would find computed of its prefix; by default nothing."""
        del prefix
        return Found()

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        """Free the room of sequences that will not be asked about again.

        Args:
            sequence_ids: of these sequences; unknown ids are passed over.
            discard: whether what was computed for them is not to be shared with others.
        """

    def fresh(self, max_sequences: int) -> Runtime:
        """Make a runtime over the same weights that has computed nothing yet.

        Args:
            max_sequences: how many of its sequences may be live at once.

        Returns:
            By default the same object, as fits a model that keeps nothing.
        """
        return self

    def reset(self) -> None:
        """Forget all that was computed: the model's weights have changed."""

    def check_integrity(self) -> None:
        """Raise AssertionError if what is known of the cache contradicts itself."""
