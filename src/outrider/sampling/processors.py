"""Call the logits processors of a user's own."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from ..config.processors import StatefulProcessor
from ..errors import UserCodeError


def called(
    processor: Any, history: Tensor, logits: Tensor, place: str, *, batch: bool = False
) -> Tensor:
    """Call a user's processor on the tokens so far, int64 [L], and their logits [V].

    Args:
        processor: the processor.
        history, logits: what it is called with.
        place: where it stands, for the error.
        batch: give it a batch of one row, [1, L] and [1, V], as a `LogitsProcessor` of transformers
            is given in any case.

    Raises:
        UserCodeError: it raised, or returned something else than logits of the shape that it was
            given.
    """
    processor, name = named(processor)
    module = sys.modules.get("transformers.generation.logits_process")
    if batch or (module is not None and isinstance(processor, module.LogitsProcessor)):
        history, logits, batch = history[None], logits[None], True
    try:
        returned = processor(history, logits)
    except UserCodeError:  # Of a processor inside this one.
        raise
    except Exception as error:
        raise UserCodeError(
            f"{place}, {name}, failed after {history.shape[-1]} tokens: "
            f"{type(error).__name__}: {error}"
        ) from error
    if isinstance(returned, Tensor) and returned.shape == logits.shape:
        return returned[0] if batch else returned
    kind = type(returned).__name__
    if isinstance(returned, Tensor):
        kind = f"a tensor of shape {list(returned.shape)}"
    raise UserCodeError(
        f"{place}, {name}, returned {kind}; expected logits of the shape that it is given, "
        f"{list(logits.shape)}"
    )


def named(processor: Any) -> tuple[Any, str]:
    """Return a user's processor without what makes it stateful, and its name."""
    if isinstance(processor, StatefulProcessor):
        processor = processor.processor
    return processor, getattr(processor, "__qualname__", type(processor).__name__)
