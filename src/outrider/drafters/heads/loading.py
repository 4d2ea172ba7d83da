"""Load a draft head for a target, what is not in its checkpoint taken from the target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import ModelError
from ...runtimes.transformers.model import TransformersModel
from .block import BlockModel, BlockNet
from .checkpoint import HeadConfig, read_config, read_tensors
from .drafter import BlockDrafter, EagleDrafter, HeadDrafter
from .eagle import EagleModel, EagleNet
from .parts import Refiner

_PASSED = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight")
"""Tensors that say nothing that others do not, or that the target has."""


def load_head(
    folder: str | Path,
    target: Any,
    *,
    max_sequences: int | None = None,
    kv_cache_memory: int | None = None,
) -> HeadDrafter:
    """Load a draft head for a target.

    Args:
        folder: with config.json and *.safetensors, of speculators or of the authors of EAGLE-3 or
            DFlash.
        target: a `TransformersModel` or a runtime made of one, whose embedding and head are used
            where the checkpoint has none.
        max_sequences: for how many sequences it may draft at once; None for the target's.
        kv_cache_memory: bytes that its blocks may take; None for what is needed, or half of what is
            free.

    Returns:
        An `EagleDrafter` or a `BlockDrafter`.

    Raises:
        ModelError: it cannot be read, or does not fit; the message names tensors and fields.
    """
    config = read_config(Path(folder))
    return head_of(Path(folder), config, target, max_sequences, kv_cache_memory)


def head_of(
    folder: Path,
    config: HeadConfig,
    target: Any,
    max_sequences: int | None = None,
    memory: int | None = None,
) -> HeadDrafter:
    """Make a drafter of a checkpoint's tensors, read by a configuration; see `load_head`."""
    if not isinstance(target, TransformersModel):
        raise ModelError(
            f"{folder} drafts from the target's hidden states, and {target.name} gives none; run "
            "the target on transformers or openvino (--runtime)"
        )
    model, found = target.hf_model, read_tensors(folder)
    if wrong := [*contradictions(config, found), *misfits(config, found, model)]:
        raise ModelError(f"{folder} does not fit: {'; '.join(wrong)}")
    net, shift = _net(config, found, model), found.get("d2t")
    tensors = _tensors(found, model)
    net.rotary = type(net.rotary)(config.decoder).to(model.device)
    placed = {name: each.to(model.device, model.dtype) for name, each in tensors.items()}
    net.load_state_dict(placed, assign=True)
    tokens = None if shift is None else (shift + torch.arange(len(shift))).to(model.device)
    for part in net.children():
        if isinstance(part, Refiner):
            part.tokens = tokens
    kind: Any = EagleModel if isinstance(net, EagleNet) else BlockModel
    drafter = BlockDrafter if config.blocks else EagleDrafter
    slots = max_sequences or target.max_sequences or 8
    # As much of the weights as a forward reads.
    read = sum(each.numel() for name, each in placed.items() if "embed_tokens" not in name)
    ratio = read / sum(each.numel() for each in model.parameters())
    head = kind(net.eval(), slots, target.longest, memory)
    return drafter(head, tokens, target.vocab_size, ratio)


def contradictions(config: HeadConfig, found: Mapping[str, Tensor]) -> Iterator[str]:
    """Say what of a checkpoint contradicts itself."""
    size = config.decoder.vocab_size
    shift, there = found.get("d2t"), found.get("t2d")
    if shift is None and config.vocab_size != size:
        yield f"draft_vocab_size is {config.vocab_size}, and d2t is missing"
    if shift is not None:
        tokens = shift + torch.arange(len(shift))
        named = tokens if there is None else there.nonzero().flatten()
        if torch.equal(shift, named) and not torch.equal(tokens, named):
            yield "d2t holds ids where offsets are expected: id = i + d2t[i]"
        elif not torch.equal(tokens, named):
            yield "d2t and t2d name different tokens"
        elif int(tokens.max()) >= size or len(tokens) != config.vocab_size:
            yield f"d2t leads {len(tokens)} tokens to ids up to {int(tokens.max())} of {size}"
    if config.flag("norm_before_fc") and config.flag("fc_norm"):
        yield "norm_before_fc and fc_norm are both set; at most one is"
    if config.blocks and not 0 <= config.mask_token < size:
        yield f"mask_token_id {config.mask_token} is no token of {size}"


def misfits(config: HeadConfig, found: Mapping[str, Tensor], model: Any) -> Iterator[str]:
    """Say why a checkpoint cannot draft for a model.

    Args:
        config: of the head.
        found: its tensors.
        model: the target, of transformers.
    """
    inner = model.config.get_text_config()
    count = inner.num_hidden_layers
    if config.target_width != inner.hidden_size:
        yield (
            f"it takes states of width {config.target_width}, and the target's are "
            f"{inner.hidden_size} wide: it was made for another model"
        )
    if config.decoder.vocab_size != inner.vocab_size:
        yield f"it is for {config.decoder.vocab_size} tokens, and the target has {inner.vocab_size}"
    wrong = [str(each) for each in config.layers_of(count) if not 0 <= each <= count]
    if wrong:
        yield f"it takes states of layer {', '.join(wrong)}, and the target has {count} layers"
    wanted = {
        name: list(each.shape) for name, each in _net(config, found, model).state_dict().items()
    }
    given = {name: list(each.shape) for name, each in _tensors(found, model).items()}
    if missing := sorted(wanted.keys() - given.keys()):
        yield f"{', '.join(missing)} missing"
    if surplus := sorted(given.keys() - wanted.keys()):
        yield f"its configuration has no place for {', '.join(surplus)}"
    for name in sorted(wanted.keys() & given.keys()):
        if wanted[name] != given[name]:
            yield f"{name} is {given[name]}, and by the configuration {wanted[name]}"


def _net(config: HeadConfig, found: Mapping[str, Tensor], model: Any) -> Any:
    """Make the network of a checkpoint, without weights."""
    count = model.config.get_text_config().num_hidden_layers
    kind = EagleNet if config.kind in ("eagle3", "peagle") else BlockNet
    normed = any(name.endswith("self_attn.q_norm.weight") for name in found)
    with torch.device("meta"):
        return kind(replace(config, target_layers=config.layers_of(count)), normed=normed)


def _tensors(found: Mapping[str, Tensor], model: Any) -> dict[str, Tensor]:
    """Return the network's tensors by its own names, those included that are the target's."""
    usual = {"embed_tokens.weight": model.get_input_embeddings().weight}
    if "d2t" not in found:
        usual["lm_head.weight"] = model.get_output_embeddings().weight
    known = {
        name.replace("midlayer.", "layers.0."): tensor
        for name, tensor in found.items()
        if name not in (*_PASSED, "d2t")
    }
    return usual | known
