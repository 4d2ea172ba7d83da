"""Measure how much of a head's drafts is kept, as it is configured and under other readings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...errors import ModelError
from ...types.records import DraftProposal, HiddenStates, Prefix
from .checkpoint import HeadConfig, read_tensors
from .drafter import HeadDrafter
from .loading import head_of, load_head

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
    usable = [text[: target.longest] for text in texts if len(text) > depth + 2]
    if not usable:
        raise ModelError(f"no text has more than {depth + 2} tokens; give longer ones to measure")
    config, found = load_head(folder, target, max_sequences=1).model.config, read_tensors(folder)
    readings = list(_readings(config, target.layer_count))
    layers = sorted({layer for _, each in readings for layer in each.target_layers})
    samples = list(_samples(target, layers, usable, depth))
    for said, each in readings:
        drafter = head_of(each, found, target, max_sequences=1)
        yield Reading(said, _kept(drafter, samples, layers, depth))


def _readings(config: HeadConfig, count: int) -> Iterator[tuple[str, HeadConfig]]:
    """Change what a configuration may have wrong where no tensor shows it; first nothing."""
    yield "", config
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


_Sample = tuple[Prefix, Tensor, Tensor, Tensor]
"""A place of a text that is drafted from.

The text before it; the tokens that follow, int64 [1, depth - 1]; states of the target's layers at
the text's tokens before its last one, [n, L, D]; its distributions of what is drafted, [depth, V].
"""


def _samples(
    target: Any, layers: Sequence[int], texts: Sequence[Sequence[int]], depth: int
) -> Iterator[_Sample]:
    """Compute places of texts, evenly spread over them."""
    places = [(row, end) for row, text in enumerate(texts) for end in range(2, len(text) - depth)]
    chosen = places[:: -(-len(places) // ANCHORS)]
    for row, same in groupby(chosen, key=itemgetter(0)):
        text, ends, shown = texts[row], [end for _, end in same], list[HiddenStates]()
        watcher = SimpleNamespace(known=lambda _: 0, observe_round=shown.extend)
        target.with_hidden(layers, watcher).prefill(Prefix(-1, text[: ends[-1]]), ends[-1])
        states = torch.cat([each.states for each in shown])
        for end in ends:
            prefix, tokens = Prefix(-1, text[:end]), text[end : end + depth - 1]
            drafted = torch.tensor([tokens], dtype=torch.int64, device=target.device)
            proposal = DraftProposal(drafted, np.array([depth - 1]), None)
            probs = target.verify([prefix], proposal).logits[0].double().softmax(-1)
            yield prefix, drafted, states[: end - 1], probs
        target.release([-1], discard=True)


def _kept(
    drafter: HeadDrafter, samples: Sequence[_Sample], layers: Sequence[int], depth: int
) -> tuple[float, ...]:
    """Return the mean of the sums of min(p, q) at each depth, the text's tokens being drafted."""
    head = drafter.model
    own = [layers.index(layer) for layer in drafter.hidden_layers]
    most = min(depth, head.config.most) if head.config.blocks else depth
    kept = []
    for prefix, drafted, states, probs in samples:
        head.receive([HiddenStates(prefix, 0, states[:, own])])
        cursor, found = head.open([prefix], most), []
        for place in range(most):
            if place:
                cursor.step(drafted[:, place - 1])
            drawn = drafter._aligned(cursor.logits)[0].double().softmax(-1)
            found.append(float(torch.minimum(drawn, probs[place]).sum()))
        head.release([-1], discard=True)
        kept.append(found)
    return tuple(np.mean(kept, 0).tolist())
