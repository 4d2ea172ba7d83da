"""What a head's checkpoint is, what looks wrong with it, and how much of its drafts is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...errors import ModelError
from ...types.records import Distributions, DraftProposal, HiddenStates, Prefix
from .checkpoint import HeadConfig, read_config, read_tensors
from .drafter import HeadDrafter
from .loading import head_of, load_head, misfits

PIECE = 64
"""Tokens of a text that the target computes in one forward."""

ANCHORS = 64
"""Places of the texts that are drafted from, at most."""


class Reading(NamedTuple):
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
    return misfits(read_config(folder), read_tensors(folder), target and target.hf_model)


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
    usable = [list(text[: target.longest]) for text in texts if len(text) > depth + 2]
    if not usable:
        raise ModelError(f"no text has more than {depth + 2} tokens; give longer ones to measure")
    drafter, found = load_head(folder, target, max_sequences=1), read_tensors(folder)
    config = drafter.model.config
    others = list(_readings(config, target.layer_count))
    needed = [config.target_layers, *(other.target_layers for _, other in others)]
    layers = sorted({layer for some in needed for layer in some})
    states = target.with_hidden(layers)
    samples = list(_samples(states, usable, depth))
    yield Reading("", _kept(drafter, samples, layers, depth))
    for said, other in others:
        made = head_of(other, found, target, 1)
        yield Reading(said, _kept(made, samples, layers, depth))


def _readings(config: HeadConfig, count: int) -> Iterator[tuple[str, HeadConfig]]:
    """Change what a configuration may have wrong where no tensor shows it."""
    for shift in (-1, 1):
        moved = tuple(layer + shift for layer in config.target_layers)
        if min(moved) >= 0 and max(moved) <= count:
            said = f"states of layers {', '.join(map(str, moved))}"
            yield said, replace(config, target_layers=moved)
    flags = {"sample_from_anchor": config.anchored}
    if config.eagle:
        flags = {name: config.flag(name) for name in ("norm_before_residual", "norm_output")}
    elif any(config.windows.values()):
        flags["sliding_window_non_causal"] = config.both_ways
    for name, value in flags.items():
        other = replace(config, given={**config.given, name: not value})
        yield f"{name} {str(not value).lower()}", other


class _Sample(NamedTuple):
    """A place of a text that is drafted from.

    Attributes:
        text: the token ids before it, and those that are drafted.
        states: of the target's layers at the tokens before its last one, [end - 1, L, D].
        probs: the target's distributions of what is drafted, [depth, V].
    """

    text: Sequence[int]
    states: Tensor
    probs: Tensor


def _samples(target: Any, texts: Sequence[Sequence[int]], depth: int) -> Iterator[_Sample]:
    """Compute places of texts, evenly spread over them."""
    places = [(row, end) for row, text in enumerate(texts) for end in range(2, len(text) - depth)]
    chosen = places[:: -(-len(places) // ANCHORS)]
    for row, same in groupby(chosen, key=lambda place: place[0]):
        ends = [end for _, end in same]
        text = texts[row][: ends[-1] + depth]
        probs, states = _computed(target, text, {e - 1 + n for e in ends for n in range(depth)})
        for end in ends:
            wanted = torch.stack([probs[end - 1 + place] for place in range(depth)])
            yield _Sample(text[: end + depth], states[: end - 1], wanted)


@torch.inference_mode()
def _computed(
    target: Any, text: Sequence[int], wanted: set[int]
) -> tuple[dict[int, Tensor], Tensor]:
    """Return the target's distributions after some tokens of a text, and its states at all."""
    probs: dict[int, Tensor] = {}
    states = []
    for start in range(0, len(text), PIECE):
        rest = torch.tensor([text[start + 1 : start + PIECE]], device=target.device).long()
        lengths = np.array([rest.shape[1]])
        proposal = DraftProposal(rest, lengths, Distributions(point_masses=rest))
        scores = target.verify([Prefix(-1, text[: start + 1])], proposal)
        for place in wanted & set(range(start, start + 1 + rest.shape[1])):
            probs[place] = scores.logits[0, place - start].double().softmax(-1)
        states.append(scores.hidden[0])
    target.release([-1], discard=True)
    return probs, torch.cat(states)


@torch.inference_mode()
def _kept(
    drafter: HeadDrafter, samples: Sequence[_Sample], layers: Sequence[int], depth: int
) -> tuple[float, ...]:
    """Return the mean of the sums of min(p, q) at each depth, the text's tokens being drafted."""
    head = drafter.model
    own = [layers.index(layer) for layer in drafter.hidden_layers]
    most = min(depth, head.config.most) if head.config.blocks else depth
    kept = []
    for text, states, probs in samples:
        prefix = Prefix(-1, text[: len(states) + 1])
        head.receive([HiddenStates(prefix, 0, states[:, own])])
        cursor = head.open([prefix], most)
        found = []
        for place in range(most):
            if place:
                fed = text[len(prefix) + place - 1]
                cursor.step(torch.tensor([fed], device=head.device))
            drawn = drafter._aligned(cursor.logits)[0].double().softmax(-1)
            found.append(float(torch.minimum(drawn, probs[place]).sum()))
        head.release([-1], discard=True)
        kept.append(found)
    return tuple(np.mean(kept, 0).tolist())
