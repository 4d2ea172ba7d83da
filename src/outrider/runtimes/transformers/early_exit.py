"""A target's first layers and its head as a model of their own, in the target's slots.

The keys and values of a layer depend on the layers below it only. So what the first layers have
computed of a prefix serves both, and what they write while drafting is what the target's own
forward writes there again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.nn import ModuleList

from ...errors import InvalidConfigError, ModelError
from ...types.records import DraftProposal, Prefix, TargetScores
from ..base import Capabilities, Runtime
from .cursor import SlotCursor
from .model import TransformersModel
from .twin import sharing, twin

_FEW = 4
"""A prefix that misses more tokens is computed in all layers: the target will need them."""


class EarlyExit(Runtime):
    """A target that is left after its first layers.

    It shares the target's parameters and slots, and keeps nothing of its own.

    Args:
        target: any model whose decoder layers are one plain list.
        layers: how many of them are run, at least one and not all.

    Attributes:
        share: of the target's layers, those that are run.
        models: the target, whose slots are used.

    Raises:
        InvalidConfigError: there are not more layers than that.
        ModelError: the model's layers are not found, or do not run without those after them.
    """

    def __init__(self, target: TransformersModel, layers: int) -> None:
        if not isinstance(target, TransformersModel):
            raise InvalidConfigError("target", type(target).__name__, "a TransformersModel")
        self.models = (target,)
        self.share = layers / _depth(target.hf_model)
        self._target = target
        self._layers = layers
        self._run = truncated(twin(target.hf_model), layers)
        self._check()

    @property
    def capabilities(self) -> Capabilities:
        """The target's."""
        return self._target.capabilities

    @property
    def empty_slots(self) -> int:
        """The target's."""
        return self._target.empty_slots

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        """Free the target's slots of these sequences."""
        self._target.release(sequence_ids, discard=discard)

    def reset(self) -> None:
        """Forget all that was computed, as the target does."""
        self._target.reset()
        self._run = truncated(twin(self._target.hf_model), self._layers)

    def check_integrity(self) -> None:
        """Raise AssertionError if what is known of the target's slots contradicts itself."""
        self._target.check_integrity()

    @torch.inference_mode()
    def read_ahead(self, prefixes: Sequence[Prefix]) -> tuple[int, ...]:
        """Have the target compute all but the last few tokens of each prefix, in all layers.

        Returns:
            How many tokens of each it found computed, of new ones.

        Raises:
            ContextLengthError, ModelError: as `open`.
        """
        with self._target.lock:
            return self._target.enter(prefixes, [0] * len(prefixes), _FEW).cached

    def open(self, prefixes: Sequence[Prefix], depth: int) -> SlotCursor:
        """Open a cursor at the end of the prefixes, to be fed fewer than `depth` tokens in a row.

        Of what is computed here the slots say nothing: the target computes it anew in all layers.

        Raises:
            ContextLengthError: a prefix is longer than `max_length`.
            ModelError: more sequences are live than there are slots.
        """
        return self._target.open_by(self._run, prefixes, _FEW, settle=False)

    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        """Compute the first layers' logits [B, N + 1, V]; see `Runtime.verify`."""
        return self._target.verify_by(self._run, prefixes, proposal, _FEW, settle=False)

    @torch.inference_mode()
    def _check(self) -> None:
        ids = torch.arange(3, device=self.device)[None] % self.vocab_size
        name = type(self._target.hf_model).__name__
        try:
            logits = self._run(input_ids=ids, use_cache=False).logits
        except Exception as error:
            raise ModelError(
                f"the first layers of {name} do not run without the others "
                f"({type(error).__name__}: {error}); draft with a second model, or by prompt lookup"
            ) from error
        if not torch.isfinite(logits).all():
            raise ModelError(
                f"the first layers of {name} give NaN or infinite logits; choose another number of "
                "layers, or load the model in a wider dtype"
            )


def truncated(hf_model: Any, layers: int) -> Any:
    """A model of the first layers of another, its head after them; all parameters are shared.

    Raises:
        InvalidConfigError: it has not more layers than that.
        ModelError: its decoder layers are not one plain list.
    """
    total = _depth(hf_model)
    if not isinstance(layers, int) or not 1 <= layers < total:
        raise InvalidConfigError(
            "layers", layers, f"an integer in 1..{total - 1}: some of the target's {total} layers"
        )
    stacks = [
        name
        for name, module in hf_model.named_modules()
        if isinstance(module, ModuleList) and len(module) == total
    ]
    if len(stacks) != 1:
        raise ModelError(
            f"{type(hf_model).__name__} has {len(stacks)} lists of {total} layers; expected its "
            "decoder layers in one plain list; draft with a second model, or by prompt lookup"
        )
    *path, last = stacks[0].split(".")
    model = sharing(hf_model)
    owner = model
    for name in path:
        owner._modules[name] = sharing(owner._modules[name])
        owner = owner._modules[name]
    owner._modules[last] = owner._modules[last][:layers]
    return model


def _depth(hf_model: Any) -> int:
    """How many decoder layers it has."""
    return int(hf_model.config.get_text_config().num_hidden_layers)
