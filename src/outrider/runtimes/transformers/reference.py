"""A model of transformers without a slot cache, as a reference for conformance checks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..conformance.case import Path, Reference


class TransformersReference(Reference):
    """A model's own forward without a cache, and its own `generate`.

    Args:
        hf_model: a causal language model of transformers in evaluation mode.
    """

    def __init__(self, hf_model: Any) -> None:
        self._hf_model = hf_model
        self._known: dict[Path, Tensor] = {}

    @torch.inference_mode()
    def logits(self, tokens: Path) -> Tensor:
        """Logits [V] after some tokens."""
        if tokens not in self._known:
            ids = torch.tensor([tokens], device=self._hf_model.device)
            self._known[tokens] = self._hf_model(ids, use_cache=False).logits[0, -1]
        return self._known[tokens]

    def greedy(self, prompt: Path, length: int) -> Path:
        """What `generate` gives, its end-of-text token being a token like others."""
        ids = torch.tensor([prompt], device=self._hf_model.device)
        text = self._hf_model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=length,
            min_new_tokens=length,
            do_sample=False,
            eos_token_id=[],
            pad_token_id=0,
        )
        return tuple(text[0, len(prompt) :].tolist())
