"""Call the logits processors of a user's own."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from ..config.processors import StatefulProcessor
from ..errors import InvalidConfigError, UserCodeError


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
        UserCodeError: it raised.
        InvalidConfigError: it returned something else than logits of the shape that it was given.
    """
    if isinstance(processor, StatefulProcessor):
        processor = processor.processor
    module = sys.modules.get("transformers.generation.logits_process")
    if batch or (module is not None and isinstance(processor, module.LogitsProcessor)):
        history, logits, batch = history[None], logits[None], True
    name = getattr(processor, "__qualname__", type(processor).__name__)
    try:
        returned = processor(history, logits)
    except (InvalidConfigError, UserCodeError):  # Of a processor inside this one.
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
    raise InvalidConfigError(
        "logits_processors",
        name,
        f"processors that return logits of the shape they are given, {list(logits.shape)}; this "
        f"one returned {kind}",
    )
