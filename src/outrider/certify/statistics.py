"""The statistical tier: seeded runs of the engine on real models, against what the target says.

For each cell, a way of speculating on one prompt, many continuations of one seeded request are
drawn. The distribution expected at each position, given the tokens before it, is made of the
target's own full forward pass, without cache, engine or `outrider.sampling`. A position is one
G-test: the statistics of all histories that reach it, added up. With several tokens to a round the
later positions are where a fault shows that one token cannot show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..config.params import SamplingParams, SpeculativeConfig
from ..drafters.base import Drafter
from ..drafters.model import ModelDrafter
from ..engine.decoder import SpeculativeDecoder
from ..engine.metrics import SpeculationMetrics
from ..runtimes.base import Runtime
from .checks import Report
from .goodness import Fit, fit, holm, together
from .reference import filtered
from .runtime import reference_of

FALSE_ALARM_RATE = 1e-3
"""The probability that sound code fails the tier: of all of its tests together."""

ALTERNATIVES = (0.05, 0.1)
"""Total variations for which the power is stated."""

TOKENS = 3
"""Tokens a continuation has: two drafts and the bonus, or what rejection makes of them."""

WAYS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("block", {"verification": "block"}, {"temperature": 0.9, "top_k": 3}),
    ("token", {"verification": "token"}, {"temperature": 1.2, "top_k": 3}),
    ("tree", {"tree_shape": (2, 1)}, {"temperature": 0.8, "top_k": 3}),
    ("coupled", {"verification": "coupled"}, {"temperature": 1.0, "top_k": 3}),
)
"""Ways of speculating: a name, the settings of it, and the sampling parameters it is run under."""

Tokens = tuple[int, ...]
Probabilities = Callable[[Sequence[Tokens]], NDArray[np.float64]]
"""The target's distributions [n, V] after n prefixes of one length, before any filter."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A way of speculating on one prompt; its parameters have the number of samples and a seed."""

    name: str
    decoder: SpeculativeDecoder
    prompt: Tokens
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Position:
    """The test of one position of one cell.

    Attributes:
        position: from 1.
        histories: how many different histories were tested.
        passed: whether the hypothesis stands, corrected for all tests of the tier.
        power: against each of the alternatives, at the least level of Holm's procedure.
    """

    cell: str
    position: int
    histories: int
    fit: Fit
    passed: bool = True
    power: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class StatisticalTier:
    """A test of each position of each cell, and what the rounds of a cell did, by its name."""

    positions: tuple[Position, ...]
    samples: int
    seed: int
    speculation: Mapping[str, SpeculationMetrics]

    @property
    def passed(self) -> bool:
        """Whether every hypothesis stands."""
        return all(item.passed for item in self.positions)


def statistical_tier(
    report: Report,
    target: Runtime,
    drafter: Drafter,
    prompts: Sequence[Tokens],
    samples: int,
    seed: int,
) -> StatisticalTier:
    """Sample each way of speculating on one of the prompts, in turn, and test every position.

    `samples` continuations of each are drawn, as many at once as the target has room for.
    """
    # Only a model drafts trees.
    ways = [way for way in WAYS if way[0] != "tree" or isinstance(drafter, ModelDrafter)]
    total, done = samples * len(ways), count(1)
    positions: list[Position] = []
    speculation: dict[str, SpeculationMetrics] = {}
    reference = reference_of(target)

    def probabilities(prefixes: Sequence[Tokens]) -> NDArray[np.float64]:
        logits = torch.stack([reference.computed(prefix) for prefix in prefixes])
        return logits.double().softmax(-1).cpu().numpy()

    for index, (name, settings, sampling) in enumerate(ways):
        config = SpeculativeConfig(
            depth="fixed", num_speculative_tokens=TOKENS - 1, validate="always", **settings
        )
        params = SamplingParams(
            max_tokens=TOKENS, n=samples, seed=seed, ignore_eos=True, **sampling
        )
        decoder = SpeculativeDecoder(target, drafter, config=config)
        cell = Cell(name, decoder, prompts[index % len(prompts)], params)
        outputs = sample(cell, lambda way: report(next(done), total, way))
        speculation[name] = decoder.metrics
        positions += fitted_positions(cell, outputs, probabilities)
    return StatisticalTier(tuple(corrected(positions)), samples, seed, speculation)


def sample(cell: Cell, report: Callable[[str], None] = lambda _: None) -> list[Tokens]:
    """The outputs of all of a cell's continuations; `report` takes its name after each."""
    outputs: list[list[int]] = [[] for _ in range(cell.params.n)]
    for event in cell.decoder.stream(list(cell.prompt), cell.params):
        outputs[event.choice].append(event.token_id)
        if event.finish_reason is not None:
            report(cell.name)
    return [tuple(output) for output in outputs]


def fitted_positions(
    cell: Cell, outputs: Sequence[Tokens], probabilities: Probabilities
) -> list[Position]:
    """One test for each position of the outputs."""
    positions = []
    for position in range(1, cell.params.max_tokens + 1):
        reached = [output for output in outputs if len(output) >= position]
        histories = sorted({output[: position - 1] for output in reached})
        distributions = probabilities([cell.prompt + history for history in histories])
        fits = []
        for history, distribution in zip(histories, distributions, strict=True):
            seen = [output[position - 1] for output in reached if output[: position - 1] == history]
            counts = np.bincount(seen, minlength=len(distribution))
            fits.append(fit(counts, filtered(distribution, cell.params)))
        tested = sum(item.freedom > 0 for item in fits)
        positions.append(Position(cell.name, position, tested, together(fits)))
    return positions


def corrected(positions: Sequence[Position]) -> list[Position]:
    """The positions with their verdicts and powers, corrected for their number."""
    stands = holm([item.fit.p_value for item in positions], FALSE_ALARM_RATE)
    level = FALSE_ALARM_RATE / max(1, len(positions))
    return [
        replace(
            item,
            passed=passed,
            power=tuple(item.fit.power(distance, level) for distance in ALTERNATIVES),
        )
        for item, passed in zip(positions, stands, strict=True)
    ]
