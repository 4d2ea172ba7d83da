"""What rounds cost before the first request: a few of them, timed on made-up tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ..config.params import SamplingParams
from ..policies import AdaptiveDepth, policy_of
from ..types.protocols import CachedModel, Chance, HasSlots
from ..types.records import DraftPlan
from .batch import Batch, Step
from .rounds import Stopwatch

if TYPE_CHECKING:
    from .decoder import SpeculativeDecoder

DEPTHS = (0, 0, 0, 0, 4, 4, 1, 1, 0, 8, 8, 4, 0, 0, 0, 1)
"""How many tokens the rounds of one sequence draft: each depth twice or more, since one may be a
slow moment, and plain ones, which all others are compared with, throughout."""

ABREAST = (0, 1, 1, 1, 0, 0, 1, 3, 3, 3, 0, 0)
"""The same of several sequences, most drafts after another, with nothing to be read on before."""

BATCHES = (4, 16)
"""Of how many, where slots are empty: what so many take is not told by what one takes."""

_PROMPT, _LEAST = 128, 16
"""Tokens of their prompts, and at least where a model's context is short: attention to what came
before is a good part of what a batch takes, and more of a wide round than of a plain one."""

_LOG = logging.getLogger(__name__)


@torch.inference_mode()
def calibrate(
    decoder: SpeculativeDecoder,
    run: Callable[[Batch, DraftPlan, Chance | None, Stopwatch], Step],
    models: Sequence[CachedModel],
) -> None:
    """Let a decoder's policy measure a few rounds, plain ones and some that draft.

    It learns what they cost, and not what of their made-up tokens is kept. Nothing else of the
    decoder changes: metrics do not count them, drafters do not learn from them. Models whose
    context is too short for that are not calibrated, nor those that have no room or fail at such
    tokens, and a decoder whose drafter fails: its policy is then as it was. If only a batch fails,
    what was measured before stays. Nothing is raised and nobody is warned, which is left to the
    rounds of requests: they may never meet such tokens. No text that a slot holds is lost to a
    batch. All slots have room for more than 128 tokens afterwards.

    Args:
        decoder: with no sequence live; its models may have those of other decoders. A policy that
            is not an `AdaptiveDepth` measures nothing.
        run: a round of its, which raises where the drafter fails.
        models: those of its that have slots.
    """
    policy = decoder.policy
    most = decoder.max_length
    longest = max(sum(depth + 1 for depth in depths) for depths in (DEPTHS, ABREAST))
    prompt = _PROMPT if most is None else min(_PROMPT, most - longest)
    if not isinstance(policy, AdaptiveDepth) or prompt < _LEAST:
        return
    if not _measured(decoder, run, policy, prompt, 1, DEPTHS):
        decoder.policy = policy_of(decoder.config, decoder.drafter, decoder.target)
        return
    for rows in BATCHES:
        empty = [model.empty_slots if isinstance(model, HasSlots) else 0 for model in models]
        if rows > min(empty) or not _measured(decoder, run, policy, prompt, rows, ABREAST):
            return


def _measured(
    decoder: SpeculativeDecoder,
    run: Callable[[Batch, DraftPlan, Chance | None, Stopwatch], Step],
    policy: AdaptiveDepth,
    prompt: int,
    rows: int,
    depths: tuple[int, ...],
) -> bool:
    """Whether rounds of so many sequences, of which no two in a row are as long, were measured.

    The longest prompts have `prompt` tokens.
    """
    length = sum(depth + 1 for depth in depths)
    params = SamplingParams(max_tokens=length, temperature=0, ignore_eos=True, depths=depths)
    tokens = [place % decoder.target.vocab_size for place in range(prompt)]
    prompts = [tokens[: prompt - row % 3] for row in range(rows)]
    batch = decoder.pack(decoder.start(each, params)[0] for each in prompts)
    try:
        for _ in depths:
            watch = Stopwatch(batch.device)
            # What made-up tokens find, and what that takes, is no other text's.
            plan = replace(policy.plan(batch.states), looks=False)
            watch.planned()
            step = run(batch, plan, decoder.chance, watch)
            # What several prompts share a drafter reads once, which would make reading look cheap.
            policy.measure(step.batch.states, step.record, reading=rows == 1)
            batch = replace(step.batch, noise=None)
    except Exception:
        _LOG.debug("costs of %d sequences were not measured ahead", rows, exc_info=True)
        return False
    finally:
        decoder.release(batch.states, discard=True)
    return True
