"""Checks of an engine, each of which can fail: distribution, keys, batches, metrics, policies ...

Every check builds its decoders through a function that it is given: the same check runs on the
engine as it ships and on an engine with a fault planted in it (`controls`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..config.params import SamplingParams, SpeculativeConfig
from ..engine.decoder import SpeculativeDecoder
from ..engine.outputs import GenerationOutput
from ..random import Philox4x32
from ..runtimes.base import Runtime
from ..runtimes.tabular import mock_pair
from ..types.finding import Finding
from ..types.protocols import Chance
from ..types.records import RoundRecord, SequenceState
from .enumeration import exact_distribution
from .kits.policy import check_policy
from .kits.runner import TOLERANCE
from .reference import Source, distance, target_distribution

Build = Callable[[Any, Any, SpeculativeConfig, Chance | None], SpeculativeDecoder]
"""Makes a decoder of a target, a draft (or drafter), a configuration, and a chance."""

Report = Callable[[int, int, str], None]
"""Takes how many steps of a tier are done, of how many, and what is being done."""

PHILOX_ANSWERS = (
    "00000000 00000000 00000000 00000000 00000000 00000000 6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    "ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 408f276d 41c83b0e a20bc7c6 6d5451fd",
    "243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 d16cfe09 94fdcceb 5001e420 24126ea1",
)
"""Four words of a counter, two of a key, four of the block.

The vectors of the Random123 distribution for philox4x32 with 10 rounds.
"""


def distribution(
    build: Build,
    config: SpeculativeConfig,
    params: SamplingParams,
    models: Iterable[tuple[Runtime, Source, Any]],
) -> Finding:
    """The largest error in the probability of any output, by enumeration, over some models.

    Each is a target, its distribution computed apart, and a draft (or drafter).
    """
    error, prompt = 0.0, (0, 1, 2, 0, 1)
    for target, source, draft in models:
        found = exact_distribution(build(target, draft, config, None), prompt, params)
        error = max(error, distance(found, target_distribution(source, prompt, params)))
    return Finding("distribution", error < TOLERANCE, f"error {error:.1e}")


def through(look: Callable[[NDArray[np.uint64]], object], chance: Chance | None = None) -> Any:
    """Draw by a source of chance, or by Philox, under what a function makes of keys [B, 5]."""
    inner = chance or Philox4x32()

    def draw(distributions: Tensor, keys: NDArray[np.uint64]) -> Tensor:
        seen = keys.copy()
        look(seen)
        return inner.draw(distributions, seen)

    return SimpleNamespace(draw=draw)


def keys(build: Build, configs: Iterable[SpeculativeConfig]) -> Finding:
    """How many keys come twice within whole requests: rounds, choices and prompts together."""
    target, draft = mock_pair(3, 1)
    prompts = [(0, 1), (1, 1), (2,)]
    params = SamplingParams(max_tokens=10, seed=3, n=2)
    drawn = repeated = 0
    for config in configs:
        seen: list[NDArray[np.uint64]] = []
        build(target, draft, config, through(seen.append)).generate(prompts, params)
        drawn += sum(map(len, seen))
        repeated += sum(map(len, seen)) - len(np.unique(np.concatenate(seen), axis=0))
    return _counted("keys", repeated, drawn, "keys repeated")


def known_answers(philox: Callable[[Any, Any], Any]) -> Finding:
    """How many words of Philox4x32-10 differ from those published."""
    words = np.array([[int(word, 16) for word in line.split()] for line in PHILOX_ANSWERS]).T
    wrong = philox(words[:4], words[4:6]) != words[6:]
    return _counted("known answers", int(wrong.sum()), wrong.size, "words wrong")


def perfect_draft(build: Build, configs: Iterable[SpeculativeConfig]) -> Finding:
    """How many drafts of a draft that is the target are refused, over temperatures and filters."""
    target, _ = mock_pair(5, 2)
    drafted = refused = 0
    asked: tuple[Any, ...] = (0.3, 0.7, 1.0, 1.5), ({}, {"top_k": 3}, {"top_p": 0.8})
    for config, temperature, filters in product(configs, *asked):
        params = SamplingParams(max_tokens=16, temperature=temperature, seed=5, **filters)
        metrics = build(target, target, config, None).generate([0, 1], params).metrics
        drafted += metrics.drafted
        refused += metrics.drafted - metrics.accepted
    return _counted("perfect draft", refused, drafted, "refused")


def batches(build: Build, configs: Iterable[SpeculativeConfig]) -> Finding:
    """How many seeded requests emit other tokens in a batch than alone."""
    target, draft = mock_pair(4, 3)
    prompts = [[0], [1, 2], [3, 3, 3], [2, 0]]
    params = [SamplingParams(max_tokens=4 + 3 * i, seed=9 + i % 2) for i in range(len(prompts))]
    pairs: list[tuple[GenerationOutput, GenerationOutput]] = []
    for config in configs:
        together = build(target, draft, config, None).generate(prompts, params)
        for prompt, request, output in zip(prompts, params, together, strict=True):
            pairs.append((output, build(target, draft, config, None).generate(prompt, request)))
    return _changed("batches", pairs)


def _changed(name: str, pairs: Iterable[tuple[GenerationOutput, GenerationOutput]]) -> Finding:
    """How many texts of requests differ from others of the same requests."""
    changed = [
        first.token_ids != second.token_ids
        for one, two in pairs
        for first, second in zip(one.choices, two.choices, strict=True)
    ]
    return _counted(name, sum(changed), len(changed), "texts changed")


def coupled(build: Build, configs: Iterable[SpeculativeConfig]) -> Finding:
    """How many texts of coupled mode depend on the draft: they are those of plain keyed sampling.

    `configs` are of coupled mode; each is held against the engine without a drafter.
    """
    target, draft = mock_pair(5, 7, 0.3)
    prompts = [[0], [1, 2, 3], [4, 4]]
    params = SamplingParams(max_tokens=14, temperature=1.2, top_p=0.95, seed=8, n=3)
    pairs: list[tuple[GenerationOutput, GenerationOutput]] = []
    for config in configs:
        drafted, plain = (
            build(target, model, config, None).generate(prompts, params) for model in (draft, None)
        )
        pairs += zip(drafted, plain, strict=True)
    return _changed("coupled", pairs)


def metrics(build: Build, configs: Iterable[SpeculativeConfig], perfect: bool = False) -> Finding:
    """How many of a request's rounds, and of its totals, contradict what was emitted."""
    target, draft = mock_pair(4, 4)
    wrong = count = 0
    for config, stop in product(configs, ((), (1,))):
        decoder = build(target, target if perfect else draft, config, None)
        params = SamplingParams(max_tokens=12, stop_token_ids=stop, seed=6, n=8)
        live = decoder.start((0, 1), params)
        accepted = emitted = 0
        while live:
            step = decoder.step(decoder.pack(live))
            states = list(step.batch.states)
            accepted += sum(step.record.accepted)
            emitted += sum(step.record.emitted)
            rows = zip(live, states, range(len(live)), strict=True)
            wrong += sum(not _sound(before, after, step.record, row) for before, after, row in rows)
            count += len(live)
            live = [state for state in states if state.finish_reason is None]
        wrong += (decoder.metrics.accepted, decoder.metrics.emitted) != (accepted, emitted)
        count += 1
    return _counted("metrics", wrong, count, "records wrong")


def _sound(before: SequenceState, after: SequenceState, record: RoundRecord, row: int) -> bool:
    """Whether a row's record says what its states do."""
    drafted, accepted, emitted = record.drafted[row], record.accepted[row], record.emitted[row]
    output = len(after.prefix) - len(before.prefix)
    ended = after.finish_reason is not None
    return (
        emitted == output
        and 0 <= accepted <= record.depth[row] <= drafted
        and accepted <= emitted <= accepted + 1
        and (ended or emitted == accepted + 1)
        and record.depth[row] <= before.remaining - 1
        and emitted <= before.remaining
        and (before.remaining > output or ended)
    )


def policies(build: Build, configs: Iterable[SpeculativeConfig]) -> Finding:
    """How many properties of policies do not hold; see `kits.check_policy`."""
    target, draft = mock_pair(3, 1)
    made = [build(target, draft, config, None).policy for config in configs]
    found = [item for policy in made for item in check_policy(policy)]
    broken = [item.name for item in found if not item.passed]
    what = ", ".join(["properties broken", *dict.fromkeys(broken)])
    return _counted("policies", len(broken), len(found), what)


def _counted(name: str, wrong: int, count: int, what: str) -> Finding:
    """A check that passes if it looked at something and nothing of it is wrong."""
    return Finding(name, wrong == 0 and count > 0, f"{wrong:,} of {count:,} {what}")
