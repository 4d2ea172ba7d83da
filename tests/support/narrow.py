"""Runtimes that round as other machines do, or that are wrong in one way."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from outrider import TransformersModel
from outrider.runtimes.base import rounding_of
from outrider.runtimes.transformers.support import Architecture, Run
from outrider.types.records import Prefix

REJECTION = "logits after a rejected draft are those of a fresh forward"


class CutsNothing(TransformersModel):
    """Takes what was drafted for what the prefix says there."""

    def _admitted(self, prefix: Prefix) -> tuple[int, int]:
        known = self._computed.get(prefix.sequence_id)
        start, cached = super()._admitted(prefix)
        if known is None:
            return start, cached
        held = len(known.tokens) + len(known.drafts.row(known.row)[: known.count])
        return max(start, min(held, len(prefix) - 1)), cached


class RoundsWithItsCache(TransformersModel):
    """A model in float32 whose products are narrower in forwards of several tokens."""

    @property
    def rounding(self) -> float:
        return rounding_of(2.0**-7)

    def _prepared(self, run: Run, architecture: Architecture) -> tuple[Run, Architecture]:
        def narrow(*, input_ids: Tensor, past_key_values: Any = None, **given: Any) -> Any:
            found = run(input_ids=input_ids, past_key_values=past_key_values, **given)
            if past_key_values is not None and input_ids.shape[1] > 1:
                found.logits = self.rounded(found.logits)
            return found

        return cast(Run, narrow), architecture

    @staticmethod
    def rounded(logits: Tensor) -> Tensor:
        """To bfloat16."""
        return logits.bfloat16().float()


class RoundsToEightBits(RoundsWithItsCache):
    """As dynamic quantisation does."""

    @staticmethod
    def rounded(logits: Tensor) -> Tensor:
        """In groups of 32."""
        groups = torch.nn.functional.pad(logits, (0, -logits.shape[-1] % 32)).unflatten(
            -1, (-1, 32)
        )
        step = groups.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127
        rounded: Tensor = ((groups / step).round() * step).flatten(-2)
        return rounded[..., : logits.shape[-1]]
