"""Load a draft head for a target, what is not in its checkpoint taken from the target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import ModelError
from ...runtimes.transformers.model import TransformersModel
from .checkpoint import HeadConfig, folder_of, read_config, read_tensors
from .drafter import BlockDrafter, EagleDrafter, HeadDrafter
from .model import BlockModel, EagleModel
from .mtp import MtpNet, by_expert, joined, layout_of, mtp_config
from .nets import HeadNet

_PASSED = ("d2t", "t2d", "verifier_norm.weight", "verifier_lm_head.weight")
"""Tensors that are none of the network's."""


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
    config, found = read_config(Path(folder)), read_tensors(Path(folder))
    model = _model_of(target, str(folder))
    if wrong := "; ".join(misfits(config, found, model)):
        raise ModelError(f"{folder} does not fit: {wrong}")
    return head_of(config, found, target, max_sequences, kv_cache_memory)


def load_mtp(
    target: Any, *, max_sequences: int | None = None, kv_cache_memory: int | None = None
) -> HeadDrafter:
    """Load the layer for multi-token prediction of a target's own checkpoint; see `mtp`.

    Args:
        target: a `TransformersModel` or a runtime made of one, that was loaded from files.
        max_sequences, kv_cache_memory: as for `load_head`.

    Raises:
        ModelError: the files cannot be read, or have no such layer, or one that does not fit, or
            the layers of such models are not known.
    """
    model = _model_of(target, "multi-token prediction")
    layout = layout_of(model)
    if not (source := model.config.name_or_path):
        raise ModelError("the target was not loaded from files; expected its checkpoint")
    revision = getattr(model.config, "_commit_hash", None)
    folder = folder_of(source, "*.safetensors", revision=revision)
    count = model.config.get_text_config().num_hidden_layers
    named = layout.tensors(read_tensors(folder, (layout.begins.format(count),)), count)
    with torch.device("meta"):
        net = MtpNet(mtp_config(model), model, layout)
    given, wanted = _tensors(named, model), net.state_dict()
    if wrong := "; ".join(_differences(by_expert(wanted, given), given)):
        raise ModelError(f"the layer for multi-token prediction in {folder} does not fit: {wrong}")
    last = model.get_decoder().layers[-1].state_dict()
    kept = {f"block.{name}" for name, each in last.items() if each.dtype == torch.float32}
    given = joined(wanted, given)
    return _drafter(net, given, target, max_sequences, kv_cache_memory, kept)


def head_of(
    config: HeadConfig,
    found: Mapping[str, Tensor],
    target: TransformersModel,
    max_sequences: int | None = None,
    memory: int | None = None,
) -> HeadDrafter:
    """Make a drafter of a checkpoint's tensors that fit; see `load_head`."""
    model, shift = target.hf_model, found.get("d2t")
    net = _net(config, found, model)
    net.rotary = type(net.rotary)(config.decoder).to(model.device)
    if shift is not None:
        net.tokens = (shift + torch.arange(len(shift))).to(model.device)
    return _drafter(net, _tensors(found, model), target, max_sequences, memory)


def _model_of(target: Any, what: str) -> Any:
    """Return a target's model; raise ModelError if the target gives no hidden states."""
    if isinstance(target, TransformersModel):
        return target.hf_model
    raise ModelError(
        f"{what} drafts from the target's hidden states, and {target.name} gives none; run the "
        "target on transformers or openvino (--runtime)"
    )


def _drafter(
    net: HeadNet | MtpNet,
    given: Mapping[str, Tensor],
    target: TransformersModel,
    max_sequences: int | None,
    memory: int | None,
    kept: Set[str] = frozenset(),
) -> HeadDrafter:
    """Give a network its tensors, those kept in float32 and the target's dtype; make a drafter."""
    model = target.hf_model
    # Detached: what is the target's is shared, and its parameters are left alone.
    placed = {
        name: each.detach().to(model.device, torch.float32 if name in kept else model.dtype)
        for name, each in given.items()
    }
    net.load_state_dict(placed, assign=True)
    # As much of the weights as a forward reads.
    read = sum(each.numel() for name, each in placed.items() if "embed_tokens" not in name)
    ratio = read / sum(each.numel() for each in model.parameters())
    slots = max_sequences or target.max_sequences or 8
    kind = EagleModel if net.config.eagle else BlockModel
    head = kind(net.eval(), slots, target.longest, memory)
    drafter = BlockDrafter if net.config.blocks else EagleDrafter
    return drafter(head, target.vocab_size, ratio)


def misfits(config: HeadConfig, found: Mapping[str, Tensor], model: Any) -> Iterator[str]:
    """Say what of a checkpoint contradicts itself, or cannot draft for a model.

    Args:
        config: of the head.
        found: its tensors.
        model: the target, of transformers; None looks at the checkpoint alone.
    """
    size, shift, there = config.decoder.vocab_size, found.get("d2t"), found.get("t2d")
    if shift is None and config.vocab_size != size:
        yield f"draft_vocab_size is {config.vocab_size}, and d2t is missing"
    if shift is not None:
        if shift.is_floating_point() or shift.ndim != 1:
            yield f"d2t is {shift.dtype} of {shift.ndim} dimensions; expected integers [n]"
            return
        tokens = shift + torch.arange(len(shift))
        named = tokens if there is None else there.nonzero().flatten()
        if not torch.equal(tokens, named):
            ids = "d2t holds ids where offsets are expected: id = i + d2t[i]"
            yield ids if torch.equal(shift, named) else "d2t and t2d name different tokens"
        elif len(tokens.unique()) < len(tokens):
            yield "d2t leads two of its tokens to one id"
        elif int(tokens.min()) < 0 or int(tokens.max()) >= size or len(tokens) != config.vocab_size:
            ids = f"{int(tokens.min())} to {int(tokens.max())}"
            yield f"d2t leads {len(tokens)} tokens to ids from {ids} of {size}"
        if config.kind == "dflash2":
            yield "d2t beside a selector of candidates is not read: draft the whole vocabulary"
    if config.flag("norm_before_fc") and config.flag("fc_norm"):
        yield "norm_before_fc and fc_norm are both set; at most one is"
    if config.blocks and not 0 <= config.number("mask_token_id", 0) < size:
        yield f"mask_token_id {config.given['mask_token_id']} is no token of {size}"
    if model is None:
        return
    inner, net = model.config.get_text_config(), _net(config, found, model)
    count = inner.num_hidden_layers
    if config.target_width != inner.hidden_size:
        yield (
            f"it takes states of width {config.target_width}, and the target's are "
            f"{inner.hidden_size} wide: it was made for another model"
        )
    if size != inner.vocab_size:
        yield f"it is for {size} tokens, and the target has {inner.vocab_size}"
    if wrong := [str(each) for each in net.config.target_layers if not 0 <= each <= count]:
        yield f"it takes states of layer {', '.join(wrong)}, and the target has {count} layers"
    yield from _differences(net.state_dict(), _tensors(found, model))


def _differences(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> Iterator[str]:
    """Say which tensors are missing, are not wanted, or have another shape."""
    if missing := sorted(wanted.keys() - given.keys()):
        yield f"{', '.join(missing)} missing"
    if surplus := sorted(given.keys() - wanted.keys()):
        yield f"its configuration has no place for {', '.join(surplus)}"
    for name in sorted(wanted.keys() & given.keys()):
        shapes = list(given[name].shape), list(wanted[name].shape)
        if shapes[0] != shapes[1]:
            yield f"{name} is {shapes[0]}, and by the configuration {shapes[1]}"


def _net(config: HeadConfig, found: Mapping[str, Tensor], model: Any) -> HeadNet:
    """Make the network of a checkpoint, without weights; by default of EAGLE-3's usual layers."""
    count = model.config.get_text_config().num_hidden_layers
    layers = config.target_layers or (2, count // 2, count - 3)
    normed = any(name.endswith("self_attn.q_norm.weight") for name in found)
    with torch.device("meta"):
        return HeadNet(replace(config, target_layers=layers), normed=normed)


def _tensors(found: Mapping[str, Tensor], model: Any) -> dict[str, Tensor]:
    """Return a network's tensors by its own names, the target's where there are none or the same.

    They are the target's embedding and, for the whole vocabulary, its head.
    """
    shared = {"embed_tokens.weight": model.get_input_embeddings().weight}
    if "d2t" not in found:
        shared["lm_head.weight"] = model.get_output_embeddings().weight
    return shared | {
        name.replace("midlayer.", "layers.0."): each
        for name, each in found.items()
        if name not in _PASSED
        and not (name in shared and torch.equal(each.to(shared[name]), shared[name]))
    }
