"""What a head's checkpoint is, what looks wrong with it, and how much of its drafts is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
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
    states = target.with_hidden(range(target.layer_count + 1))
    computed = [_computed(states, text) for text in usable]
    yield Reading("", _kept(drafter, usable, computed, depth))
    for said, other in _readings(drafter.model.config, target.layer_count):
        yield Reading(said, _kept(head_of(other, found, target, 1), usable, computed, depth))


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


@torch.inference_mode()
def _computed(target: Any, text: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the target's distributions after each token of a text, and all layers' states."""
    logits, states = [], []
    for start in range(0, len(text), PIECE):
        rest = torch.tensor([text[start + 1 : start + PIECE]], device=target.device).long()
        lengths = np.array([rest.shape[1]])
        proposal = DraftProposal(rest, lengths, Distributions(point_masses=rest))
        scores = target.verify([Prefix(-1, text[: start + 1])], proposal)
        logits.append(scores.logits[0])
        states.append(scores.hidden[0])
    target.release([-1], discard=True)
    return torch.cat(logits).double().softmax(-1), torch.cat(states)


@torch.inference_mode()
def _kept(
    drafter: HeadDrafter,
    texts: Sequence[Sequence[int]],
    computed: Sequence[tuple[Tensor, Tensor]],
    depth: int,
) -> tuple[float, ...]:
    """Return the mean of the sums of min(p, q) at each depth, the text's tokens being drafted."""
    places = [(row, end) for row, text in enumerate(texts) for end in range(2, len(text) - depth)]
    head, layers = drafter.model, list(drafter.hidden_layers)
    most = min(depth, head.config.most) if head.config.blocks else depth
    kept = np.zeros((0, most))
    for row, end in places[:: -(-len(places) // ANCHORS)]:
        text, (probs, states) = texts[row], computed[row]
        prefix = Prefix(-1, text[:end])
        head.receive([HiddenStates(prefix, 0, states[: end - 1, layers])])
        cursor = head.open([prefix], most)
        found = []
        for place in range(most):
            if place:
                cursor.step(torch.tensor([text[end + place - 1]], device=head.device))
            drawn = drafter._aligned(cursor.logits)[0].double().softmax(-1)
            found.append(float(torch.minimum(drawn, probs[end + place - 1]).sum()))
        head.release([-1], discard=True)
        kept = np.append(kept, [found], 0)
    return tuple(kept.mean(0).tolist())
