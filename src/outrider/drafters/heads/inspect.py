"""What a head's checkpoint is, what looks wrong with it, and how much of its drafts is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import ModelError
from ...types.records import Distributions, DraftProposal, HiddenStates, Prefix
from .checkpoint import HeadConfig, read_config, read_tensors
from .drafter import HeadDrafter
from .loading import contradictions, head_of, misfits

FLAGS = ("norm_before_residual", "norm_output", "sliding_window_non_causal")
"""Flags that a configuration may have wrong where no tensor shows it."""

ANCHORS = 64
"""Places of the texts that are drafted from, at most."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A way to read a checkpoint, and how much of its drafts would be kept.

    Attributes:
        said: what is read otherwise than the configuration says; "" for nothing.
        kept: the mean probability that the first, second, ... token of a draft is kept at
            temperature 1, given that those before it are the text's.
    """

    said: str
    kept: tuple[float, ...]


def problems(folder: Path, target: Any = None) -> Iterator[str]:
    """Say what of a checkpoint contradicts itself, or does not fit a target.

    Args:
        folder: of the checkpoint.
        target: a `TransformersModel`; None looks at the checkpoint alone.

    Raises:
        ModelError: it cannot be read at all.
    """
    config, tensors = read_config(folder), read_tensors(folder)
    yield from contradictions(config, tensors)
    if target is not None:
        yield from misfits(config, tensors, target.hf_model)


def measured(
    folder: Path, target: Any, texts: Sequence[Sequence[int]], depth: int = 4
) -> Iterator[Reading]:
    """Measure how much of a head's drafts is kept, as configured and under other readings.

    Args:
        folder: of the checkpoint.
        target: a `TransformersModel`.
        texts: token ids, each of more than `depth` + 2, best written by the target.
        depth: how many tokens are drafted.

    Yields:
        The configured reading first, then each other one as it is measured.

    Raises:
        ModelError: the checkpoint cannot be used, or no text is long enough.
    """
    usable = [list(text) for text in texts if len(text) > depth + 2]
    if not usable:
        raise ModelError(f"no text has more than {depth + 2} tokens; give longer ones to measure")
    config = read_config(folder)
    drafter, count = head_of(folder, config, target, 1), target.layer_count
    layers = drafter.hidden_layers
    states = target.with_hidden(range(count + 1))
    computed = [_computed(states, text) for text in usable]
    for said, other, taken in _readings(config, layers, count):
        head = drafter if other is config else head_of(folder, other, target, 1)
        yield Reading(said, _kept(head, usable, computed, taken, depth))


def _readings(
    config: HeadConfig, layers: Sequence[int], count: int
) -> Iterator[tuple[str, HeadConfig, Sequence[int]]]:
    """Name other readings of a configuration."""
    yield "", config, layers
    for shift in (-1, 1):
        moved = [layer + shift for layer in layers]
        if min(moved) >= 0 and max(moved) <= count:
            yield f"states of layers {', '.join(map(str, moved))}", config, moved
    sliding = "sliding" in str(getattr(config.decoder, "layer_types", ""))
    flags = FLAGS[:2] if config.kind in ("eagle3", "peagle") else FLAGS[2:] * sliding
    for flag in flags:
        value = not (config.both_ways if flag == FLAGS[2] else config.flag(flag))
        other = replace(config, given={**config.given, flag: value})
        yield f"{flag} {str(value).lower()}", other, layers
    if config.kind not in ("eagle3", "peagle"):
        value = not config.sample_from_anchor
        other = replace(config, sample_from_anchor=value)
        yield f"sample_from_anchor {str(value).lower()}", other, layers


@torch.inference_mode()
def _computed(target: Any, text: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the target's distributions after each token of a text, and all layers' states."""
    rest = torch.tensor([text[1:]], device=target.device)
    lengths = np.array([rest.shape[1]])
    proposal = DraftProposal(rest, lengths, Distributions(point_masses=rest))
    scores = target.verify([Prefix(-1, text[:1])], proposal)
    target.release([-1], discard=True)
    return scores.logits[0].double().softmax(-1), scores.hidden[0]


@torch.inference_mode()
def _kept(
    drafter: HeadDrafter,
    texts: Sequence[Sequence[int]],
    computed: Sequence[tuple[Tensor, Tensor]],
    layers: Sequence[int],
    depth: int,
) -> tuple[float, ...]:
    """Return the mean of the sums of min(p, q) at each depth, the text's tokens being drafted."""
    places = [(row, end) for row, text in enumerate(texts) for end in range(2, len(text) - depth)]
    most = min(depth, drafter.head.config.most) if drafter.head.config.blocks else depth
    kept = np.zeros((0, most))
    for row, end in places[:: -(-len(places) // ANCHORS)]:
        text, (probs, states) = texts[row], computed[row]
        prefix = Prefix(-1, text[:end])
        drafter.head.receive([HiddenStates(prefix, 0, states[: end - 1, list(layers)])])
        cursor = drafter.head.open([prefix], most)
        found = []
        for place in range(most):
            if place:
                cursor.step(torch.tensor([text[end + place - 1]], device=drafter.head.device))
            drawn = drafter._aligned(cursor.logits)[0].double().softmax(-1)
            found.append(float(torch.minimum(drawn, probs[end + place - 1]).sum()))
        drafter.head.release([-1], discard=True)
        kept = np.append(kept, [found], 0)
    return tuple(kept.mean(0).tolist())
