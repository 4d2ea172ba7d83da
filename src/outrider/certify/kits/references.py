"""What a runtime's answers are compared with: a model that is run without a cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from ...drafters.base import nothing_drafted
from ...runtimes.base import Runtime
from ...types.records import Prefix

Path = tuple[int, ...]
"""Token ids from the first on."""


class Reference(ABC):
    """A model that computes every text anew."""

    def __init__(self) -> None:
        self._known: dict[Path, Tensor] = {}

    def logits(self, tokens: Path) -> Tensor:
        """Return the logits [V] after some tokens."""
        if tokens not in self._known:
            self._known[tokens] = self.computed(tokens)
        return self._known[tokens]

    @abstractmethod
    def computed(self, tokens: Path) -> Tensor:
        """Compute the logits [V] after some tokens."""

    def greedy(self, prompt: Path, length: int) -> Path:
        """Return the text of so many tokens that the model's own greedy decoding gives."""
        text = prompt
        for _ in range(length):
            text = (*text, int(self.logits(text).argmax()))
        return text[len(prompt) :]


class FreshRuntime(Reference):
    """A runtime as its own reference: it forgets everything before each question.

    Args:
        runtime: of which no sequence is live.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime

    def computed(self, tokens: Path) -> Tensor:
        """Verify a prefix without drafts, after a reset."""
        self._runtime.reset()
        none = nothing_drafted(1, torch.device("cpu"))
        logits = self._runtime.verify([Prefix(0, tokens)], none).logits[0, 0].clone()
        self._runtime.release([0], discard=True)
        return logits


class TransformersReference(Reference):
    """A transformers model's own forward without a cache.

    Args:
        hf_model: a causal language model of transformers in evaluation mode.
    """

    def __init__(self, hf_model: Any) -> None:
        super().__init__()
        self._hf_model = hf_model

    @torch.inference_mode()
    def computed(self, tokens: Path) -> Tensor:
        """Run one forward over all tokens."""
        ids = torch.tensor([tokens], device=self._hf_model.device)
        logits: Tensor = self._hf_model(ids, use_cache=False).logits[0, -1]
        return logits
