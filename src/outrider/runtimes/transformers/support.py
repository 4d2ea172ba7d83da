"""What the runtime has to know of an architecture, read off its config and one forward."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin

from ...errors import ModelError
from .mixers import mixers

Run = Callable[..., Any]
"""What computes a forward: a model of transformers, or what behaves like one."""

_REMEDY = (
    "use a decoder-only model with full or sliding-window attention, or with recurrent layers "
    "named in docs/guides/runtimes.md"
)

_ATTENTION_KINDS = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model's shape, as its cache and its masks need it.

    Attributes:
        layers: of each layer keys and values of one token, [1, heads, 1, width], if it has any.
        windows: of each kind of attention mask the model wants, the sliding window, None for full
            attention. One entry named None where the model takes a single mask.
        vocab_size: width of the logits.
        context_length: positions the model has, None if its config states none.
        eos_token_ids: tokens that end a sequence.
        dtype: of keys and values.
        device: of the model.
        cache_name: the argument of the model's forward that takes a cache.
        state_bytes: of the recurrent states of a sequence; 0 for a model without.
    """

    layers: tuple[tuple[Tensor, ...], ...]
    windows: tuple[tuple[str | None, int | None], ...]
    vocab_size: int
    context_length: int | None
    eos_token_ids: frozenset[int]
    dtype: torch.dtype
    device: torch.device
    cache_name: str = "past_key_values"
    state_bytes: int = 0


def inspect_architecture(hf_model: Any, run: Any) -> Architecture:
    """Check that a model can be decoded speculatively, and describe it.

    Args:
        hf_model: the model.
        run: what computes its forwards, called once with one token.

    Raises:
        ModelError: encoder-decoder, states by other functions, ALiBi, an attention pattern
            other than full or sliding, several devices, or a forward that fails on one token.
    """
    name, config = type(hf_model).__name__, hf_model.config.get_text_config()
    recurrent = mixers(hf_model)
    cache = DynamicCache(config=config) if recurrent else DynamicCache()
    argument = _cache_name(hf_model)
    ids = torch.zeros(1, 1, dtype=torch.int64, device=hf_model.device)
    try:
        with torch.inference_mode():
            logits = run(input_ids=ids, use_cache=True, **{argument: cache}).logits
        layers = tuple(map(_keyed, cache.layers))
    except Exception as error:
        raise ModelError(
            f"{name} failed on one token with a key-value cache ({type(error).__name__}: {error}); "
            "expected a causal language model that takes a cache"
        ) from error
    states = {place: _states(layer) for place, layer in enumerate(cache.layers)}
    known = {module.layer_idx for module in recurrent}
    if other := [place for place, some in states.items() if some and place not in known]:
        raise ModelError(
            f"{name} keeps states in layers {', '.join(map(str, other))} by functions that are not "
            f"known here; {_REMEDY}"
        )
    eos = getattr(getattr(hf_model, "generation_config", None), "eos_token_id", None)
    return Architecture(
        layers=layers,
        windows=_windows(name, config, recurrent=bool(recurrent)),
        vocab_size=logits.shape[-1],
        context_length=_context_length(config),
        eos_token_ids=frozenset([eos] if isinstance(eos, int) else eos or ()),
        dtype=next((part.dtype for layer in layers for part in layer), hf_model.dtype),
        device=hf_model.device,
        cache_name=argument,
        state_bytes=sum(each.nbytes for some in states.values() for each in some),
    )


def _keyed(layer: Any) -> tuple[Tensor, ...]:
    """Return the keys and values of one token in a layer of a cache, if it has any."""
    if not (isinstance(layer, DynamicLayer) and layer.is_initialized):
        return ()
    return layer.keys[:, :, :1], layer.values[:, :, :1]


def _states(layer: Any) -> list[Tensor]:
    """Return the states of one sequence in a layer of a cache."""
    if not isinstance(layer, LinearAttentionCacheLayerMixin):
        return []
    states = [*layer.conv_states.values(), *layer.recurrent_states.values()]
    return [each for each in states if each is not None]


def refuse_unsupported(hf_model: Any) -> None:
    """Raise ModelError if a model is of a kind that cannot be decoded speculatively."""
    name, config = type(hf_model).__name__, hf_model.config.get_text_config()
    remedy, recurrent = _REMEDY, mixers(hf_model)
    if config.is_encoder_decoder:
        raise ModelError(f"{name} is an encoder-decoder model; {remedy}")
    if hf_model._is_stateful and not recurrent:
        raise ModelError(
            f"{name} keeps a recurrent state by functions that are not known here, so that it "
            f"cannot be cut back to an earlier token; {remedy}"
        )
    accepted = inspect.signature(hf_model.forward).parameters
    pure = "cache_params" in accepted
    if getattr(config, "alibi", False) or not (pure or "position_ids" in accepted):
        raise ModelError(
            f"{name} takes no explicit positions (ALiBi adds them to the attention scores by "
            f"column); {remedy}"
        )
    if _cache_name(hf_model) not in accepted or "logits_to_keep" not in accepted:
        raise ModelError(f"{name} does not take a key-value cache from outside; {remedy}")
    if "local" in (getattr(config, "attention_layers", None) or ()):
        raise ModelError(
            f"{name} measures the window of its local layers from the last column of its cache, "
            f"which need not be in use; {remedy}"
        )
    devices = {str(parameter.device) for parameter in hf_model.parameters()}
    if len(devices) > 1:
        raise ModelError(
            f"{name} is spread over {', '.join(sorted(devices))}; load it on a single device"
        )
    _windows(name, config, recurrent=bool(recurrent))


def _cache_name(hf_model: Any) -> str:
    """Return the name by which a model takes a cache: it is another in transformers 5.24.

    Models without attention have a third one.
    """
    accepted = inspect.signature(hf_model.forward).parameters
    return next((each for each in ("cache", "cache_params") if each in accepted), "past_key_values")


def _context_length(config: Any) -> int | None:
    """Return the positions whose rotary frequencies do not depend on what else is in the batch.

    With "longrope" and "dynamic" scaling the longest position of a forward decides the frequencies
    of all of it, so that keys already cached would belong to others. Below the original context
    nothing is rescaled.
    """
    context = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    for scaling in (rope, *(part for part in rope.values() if isinstance(part, dict))):
        if scaling.get("rope_type") in ("longrope", "dynamic"):
            original = scaling.get("original_max_position_embeddings") or getattr(
                config, "original_max_position_embeddings", context
            )
            context = original if context is None else min(context, original or context)
    return context


def _windows(
    name: str, config: Any, *, recurrent: bool
) -> tuple[tuple[str | None, int | None], ...]:
    window = getattr(config, "sliding_window", None)
    kinds = tuple(dict.fromkeys(getattr(config, "layer_types", None) or ()))
    if recurrent:
        if window is not None and any("sliding" in kind for kind in kinds):
            raise ModelError(
                f"{name} has sliding windows beside recurrent layers, which are not heeded here; "
                f"{_REMEDY}"
            )
        return ((None, None),)
    for kind in kinds:
        if kind not in _ATTENTION_KINDS:
            raise ModelError(
                f"{name} has layers of type {kind!r}; only {' and '.join(_ATTENTION_KINDS)} can be "
                "cut back to an earlier token"
            )
    if "sliding_attention" in kinds:
        return tuple((kind, window if kind == "sliding_attention" else None) for kind in kinds)
    if kinds:
        return ((None, None),)
    return ((None, window),)
