"""The statistical tier: seeded runs of the engine on real models, against what the target says.

For each way of speculating, many continuations of one seeded request are drawn. Given the tokens
before it, each is a draw from the distribution that the target's own full forward gives, without
cache, engine or `outrider.sampling`. With several tokens to a round the later ones are where a
fault shows that one token cannot show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import torch

from ..config.params import SamplingParams, SpeculativeConfig
from ..drafters.base import Drafter
from ..drafters.model import ModelDrafter
from ..engine.decoder import SpeculativeDecoder
from ..engine.metrics import SpeculationMetrics
from ..runtimes.base import Runtime
from .checks import Report
from .endpoint.evidence import distance_found, look, start
from .endpoint.features import FEATURES, Place, gains
from .endpoint.records import Reading, Row, Tokens, listed
from .runtime import reference_of

FALSE_ALARM_RATE = 1e-3
"""The probability that sound code fails the tier: of all of its ways together."""

TOKENS = 3
"""Tokens a continuation has: two drafts and the bonus, or what rejection makes of them."""

WAYS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("block", {"verification": "block"}, {"temperature": 0.9, "top_k": 3}),
    ("token", {"verification": "token"}, {"temperature": 1.2, "top_k": 3}),
    ("tree", {"tree_shape": (2, 1)}, {"temperature": 0.8, "top_k": 3}),
    ("coupled", {"verification": "coupled"}, {"temperature": 1.0, "top_k": 3}),
)
"""Ways of speculating: a name, the settings of it, and the sampling parameters it is run under."""

Probabilities = Callable[[Tokens], Row]
"""The target's distribution [V] after a prefix, before any filter."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """What was found for one way of speculating.

    Attributes:
        way: its name.
        share: of the rate of false alarms.
        tokens: how many were looked at.
        highest_log_e: the largest logarithm of E at any moment; see `endpoint.evidence`.
    """

    way: str
    share: float
    tokens: int
    highest_log_e: float

    @property
    def passed(self) -> bool:
        """Whether the hypothesis stands."""
        return self.highest_log_e < -math.log(FALSE_ALARM_RATE * self.share)

    @property
    def distance_found(self) -> float:
        """By how much the likeliest token's probability may be off before it is found, power .9."""
        return distance_found(self.tokens, FALSE_ALARM_RATE * self.share, len(FEATURES))


@dataclass(frozen=True, slots=True)
class StatisticalTier:
    """The evidence of each way of speculating, and what its rounds did, by its name."""

    tests: tuple[Weighed, ...]
    samples: int
    seed: int
    speculation: Mapping[str, SpeculationMetrics]

    @property
    def passed(self) -> bool:
        """Whether every hypothesis stands."""
        return all(item.passed for item in self.tests)


def statistical_tier(
    report: Report,
    target: Runtime,
    drafter: Drafter,
    prompts: Sequence[Tokens],
    samples: int,
    seed: int,
) -> StatisticalTier:
    """Sample each way of speculating on one of the prompts, in turn, and weigh every token.

    `samples` continuations of each are drawn, as many at once as the target has room for.
    """
    # Only a model drafts trees.
    ways = [way for way in WAYS if way[0] != "tree" or isinstance(drafter, ModelDrafter)]
    total, done = samples * len(ways), count(1)
    tests: list[Weighed] = []
    speculation: dict[str, SpeculationMetrics] = {}
    reference = reference_of(target)

    def probabilities(prefix: Tokens) -> Row:
        logits: torch.Tensor = reference.computed(prefix)
        return logits.double().softmax(-1).cpu().numpy()

    for index, (name, settings, sampling) in enumerate(ways):
        config = SpeculativeConfig(
            depth="fixed", num_speculative_tokens=TOKENS - 1, validate="always", **settings
        )
        params = SamplingParams(
            max_tokens=TOKENS, n=samples, seed=seed, ignore_eos=True, **sampling
        )
        decoder = SpeculativeDecoder(target, drafter, config=config)
        prompt = prompts[index % len(prompts)]
        outputs: list[list[int]] = [[] for _ in range(samples)]
        for event in decoder.stream(list(prompt), params):
            outputs[event.choice].append(event.token_id)
            if event.finish_reason is not None:
                report(next(done), total, name)
        speculation[name] = decoder.metrics
        tests.append(weigh(name, prompt, params, outputs, probabilities, 1 / len(ways)))
    return StatisticalTier(tuple(tests), samples, seed, speculation)


def weigh(
    way: str,
    prompt: Tokens,
    params: SamplingParams,
    outputs: Sequence[Sequence[int]],
    probabilities: Probabilities,
    share: float = 1.0,
) -> Weighed:
    """Gather the evidence of all tokens of the outputs of one request; see `endpoint.evidence`."""

    @cache
    def place(before: Tokens) -> Place:
        row = probabilities(prompt + before)
        return Place(listed(np.arange(len(row)), row), prompt, before)

    @cache
    def gained(before: Tokens, token: int) -> Row:
        return gains([place(before)], (token,), Reading(params))

    rows = [
        gained(tuple(output[:position]), token)
        for output in outputs
        for position, token in enumerate(output)
    ]
    found = look(start(len(FEATURES)), np.concatenate(rows), np.zeros(len(FEATURES)))
    return Weighed(way, share, found.tokens, found.highest)
