"""Separate the logits processors that a `generate` call's settings make from the caller's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import (
    ClassifierFreeGuidanceLogitsProcessor,
    GenerationConfig,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transformers.generation.logits_process import LogitNormalization, WhisperNoSpeechDetection

from ..config.processors import StatefulProcessor
from ..config.validation import plain
from ..errors import InvalidConfigError
from ..sampling.processors import called
from .generation_config import sequence_bias

_PROCESSORS: dict[type, tuple[str, str, object]] = {
    SequenceBiasLogitsProcessor: ("sequence_bias", "sequence_bias", None),
    RepetitionPenaltyLogitsProcessor: ("penalty", "repetition_penalty", 1.0),
    NoBadWordsLogitsProcessor: ("bad_word_ids", "bad_words_ids", None),
    MinLengthLogitsProcessor: ("min_length", "min_length", 0),
    MinNewTokensLengthLogitsProcessor: ("min_new_tokens", "min_new_tokens", 0),
    SuppressTokensLogitsProcessor: ("suppress_tokens", "suppress_tokens", None),
}
"""What transformers makes of settings: the attribute that holds the value, the setting, and the
value beside None of which it makes none."""

_WARPERS: tuple[tuple[type, str, tuple[object, ...]], ...] = (
    (LogitNormalization, "renormalize_logits", (None, False)),
    (MinPLogitsWarper, "min_p", (None,)),
    (TopPLogitsWarper, "top_p", (None, 1.0)),
    (TopKLogitsWarper, "top_k", (None, 0)),
    (TemperatureLogitsWarper, "temperature", (None, 1.0)),
)
"""What it makes of settings after a user's own, the last first, but for these values of them."""

_OTHER_ROWS: tuple[type, ...] = (
    ClassifierFreeGuidanceLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
    WhisperNoSpeechDetection,
)
"""Those of transformers that need rows beside the one they change."""

_STATEFUL: tuple[type, ...] = (*_OTHER_ROWS, SynthIDTextWatermarkLogitsProcessor)
"""Those that may not come bare: they remember earlier calls, or need other rows."""


def custom_processors(processors: Sequence[Any], asked: GenerationConfig) -> list[Any]:
    """Return the logits processors that the settings do not cover, in their order.

    transformers applies them after those that settings make and before temperature and filters,
    which is where `SamplingParams.logits_processors` stand. One of a type that a setting makes,
    beside that setting, takes that one's place: it has to mean the same, or is refused.
    """
    rest = list(processors)
    for warper, field, unused in _WARPERS:
        sampled = asked.do_sample or warper is LogitNormalization
        if sampled and getattr(asked, field) not in unused and rest and type(rest[-1]) is warper:
            rest.pop()
    custom, met = [], set()
    for processor in rest:
        kind = type(processor)
        attribute, field, neutral = _PROCESSORS.get(kind, ("", "", None))
        wanted = plain(getattr(asked, field)) if field else None
        if wanted is None or wanted == neutral or kind in met:
            _check_alone(processor)
            custom.append(processor)
            continue
        met.add(kind)
        value = plain(vars(processor)[attribute])
        if field == "sequence_bias":
            value, wanted = sequence_bias(value), sequence_bias(wanted)
        skipped = vars(processor).get("prompt_ignore_length")
        if value != wanted or isinstance(skipped, int):
            raise InvalidConfigError(
                "logits_processor",
                kind.__name__,
                f"none beside {field}={wanted}, whose place in the order it would take; set "
                f"{field} in the generation config instead, or leave it unset",
            )
    return custom


def _check_alone(processor: Any) -> None:
    """Refuse what cannot be called for one row and one hypothesis by itself."""
    alone, refused = processor, _STATEFUL
    remedy = "; pass one that remembers as outrider.StatefulProcessor(processor)"
    if isinstance(processor, StatefulProcessor):
        alone, refused, remedy = processor.processor, _OTHER_ROWS, ""
    if isinstance(alone, refused):
        raise InvalidConfigError(
            "logits_processor",
            type(alone).__name__,
            "processors that need no other row, and that remember nothing of earlier calls, since "
            f"drafts that are refused are seen as well{remedy}",
        )


@dataclass(frozen=True, slots=True)
class _OfRow:
    """A processor that is called as transformers would, on a row of its own.

    Attributes:
        processor: called with the row's whole history [1, L] and logits [1, V].
        place: whose it is, for errors.
        padding: int64 [P], what the history begins with.
        ended: whether the row ends within a history; then the processor is not called.
    """

    processor: Any
    place: str
    padding: Tensor
    ended: Callable[[Tensor], bool]

    def __call__(self, history: Tensor, logits: Tensor) -> Tensor:
        whole = torch.cat([self.padding.to(history.device), history])
        if self.ended(whole):
            return logits
        return called(self.processor, whole, logits, self.place, batch=True)


def of_row(processor: Any, row: int, padding: Tensor, ended: Callable[[Tensor], bool]) -> Any:
    """Return the caller's processor as it is called for one row; see `_OfRow`.

    One that remembers does so for the row alone.
    """
    if isinstance(processor, StatefulProcessor):
        fork, inner = processor.fork, of_row(processor.processor, row, padding, ended)
        return StatefulProcessor(inner, lambda own: replace(own, processor=fork(own.processor)))
    if type(processor) is PrefixConstrainedLogitsProcessor:
        allowed = processor._prefix_allowed_tokens_fn
        processor = PrefixConstrainedLogitsProcessor(lambda _, tokens: allowed(row, tokens), 1)
    return _OfRow(processor, f"logits_processor of row {row}", padding, ended)
