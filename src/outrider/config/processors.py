"""Logits processors that remember earlier calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from ..errors import InvalidConfigError


@dataclass(frozen=True, slots=True)
class StatefulProcessor:
    """A logits processor that remembers earlier calls, for `SamplingParams.logits_processors`.

    Every sequence starts with a fork of it, and every drafted hypothesis goes on with forks of its
    own: along each, the processor is called once a position, in order, as in plain decoding. What
    was refused leaves no trace: the next round goes on from the call at the last token kept.

    Args:
        processor: a transformers `LogitsProcessor`, or an object that is called with the tokens so
            far, int64 [L], and their logits [V], and returns logits [V].
        fork: makes a copy that shares no state that either would change; `copy.deepcopy` unless
            given.

    Raises:
        InvalidConfigError: `processor` cannot be called, or is a function, whose memory a deep copy
            would share.
    """

    processor: Callable[..., Any]
    fork: Callable[[Any], Any] = copy.deepcopy

    def __post_init__(self) -> None:
        if not callable(self.processor):
            raise InvalidConfigError("processor", self.processor, "a callable object")
        if not callable(self.fork):
            raise InvalidConfigError("fork", self.fork, "a function that copies a processor")
        if isinstance(self.processor, FunctionType) and self.fork is copy.deepcopy:
            raise InvalidConfigError(
                "processor",
                self.processor,
                "an object that keeps its memory in attributes (a function's is not copied), or a "
                "`fork` of your own",
            )


def forked(processor: Any) -> Any:
    """A processor to go on with where another hypothesis may go on with this one."""
    if isinstance(processor, StatefulProcessor):
        return StatefulProcessor(processor.fork(processor.processor), processor.fork)
    return processor
