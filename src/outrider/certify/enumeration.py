"""The exact distribution of what the shipped engine emits, by enumeration.

The engine is run under an enumerator in the place of chance. Each of its steps is walked through
every outcome of every draw, each with its exact probability; states that came out equal are merged,
and stepped again, until every sequence has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..config.params import SamplingParams
from ..engine.commit import StepResult
from ..engine.decoder import SpeculativeDecoder
from ..engine.requests import Prompt
from ..errors import DegenerateDistributionError, InvalidConfigError
from ..random import Enumerator
from ..types.records import FinishReason, Prefix, SequenceState

Key = tuple[tuple[int, ...], tuple[int, ...], FinishReason | None, Any]


def exact_distribution(
    decoder: SpeculativeDecoder,
    prompt: Prompt,
    params: SamplingParams | None = None,
    *,
    max_branches: int = 1_000_000,
    batch_size: int = 64,
    mates: Sequence[SequenceState] = (),
) -> dict[tuple[int, ...], float]:
    """Find the distribution of the tokens that a request emits, by enumeration.

    Args:
        decoder: the engine as it ships, over models small enough to enumerate.
        prompt: one prompt, text or token ids.
        params: its parameters; `n` must be 1.
        max_branches: how many paths through the engine's draws may be walked.
        batch_size: how many branches, in whatever states they are, share a step, as a ragged batch.
            The distribution does not depend on it. Cut to what the models have room for, and to 1
            where depths may depend on the batch.
        mates: unfinished states of other requests, stepped along in every batch; each takes the
            first outcome of every draw. The distribution does not depend on them either.

    Returns:
        Every possible output, the prompt excluded, with its exact probability. They sum to one.

    Raises:
        InvalidConfigError: `n` is not 1, more than `max_branches` would be walked, or the models
            have no room.
        KeyReuseError: the engine used one random key for two draws.
        DegenerateDistributionError: what the engine drew from is no distribution, or the total is
            not 1.
    """
    start, *others = decoder.start(prompt, params)
    if others:
        raise InvalidConfigError("n", 1 + len(others), "1, to enumerate one continuation")
    if decoder.max_sequences is not None:
        batch_size = min(batch_size, decoder.max_sequences - len(mates))
    if decoder.policy.learns and (start.params.seed is None or decoder.verifier.coupled):
        # Depths may depend on who shares a step, and have to be the same on every walk.
        batch_size = min(batch_size, 1)
    if batch_size < 1:
        raise InvalidConfigError("batch_size", batch_size, "room for one branch beside the mates")
    live = {_key(start): (start, 1.0)}
    distribution: dict[tuple[int, ...], float] = {}
    walked = 0
    while live:
        reached: dict[Key, tuple[SequenceState, float]] = {}
        for step, row, probability in outcomes(decoder, live.values(), batch_size, mates):
            state = step.batch.states[row]
            walked += 1
            if walked > max_branches:
                raise InvalidConfigError(
                    "max_branches",
                    max_branches,
                    f"more: {walked} branches were walked and {len(live)} states are not finished; "
                    "use a smaller vocabulary, fewer tokens, or a larger max_branches",
                )
            if state.finish_reason is not None:
                output = tuple(state.output_ids)
                distribution[output] = distribution.get(output, 0.0) + probability
                continue
            known = reached.get(_key(state), (state, 0.0))
            reached[_key(state)] = (known[0], known[1] + probability)
        live = reached
    total = sum(distribution.values())
    if not abs(total - 1) < 1e-9:
        raise DegenerateDistributionError(
            f"the outputs' probabilities sum to {total!r}; expected 1: the engine drew from "
            "something that is not a distribution"
        )
    return distribution


def outcomes(
    decoder: SpeculativeDecoder,
    live: Iterable[tuple[SequenceState, float]],
    batch_size: int,
    mates: Sequence[SequenceState] = (),
) -> Iterator[tuple[StepResult, int, float]]:
    """Walk every outcome of one round of some sequences, each with its probability.

    `batch_size` outcomes share a step with the `mates`.

    Yields:
        The step, its row that went through this outcome, and the outcome's probability.
    """
    ids = decoder.new_sequence_ids(batch_size + len(mates))
    work: list[tuple[SequenceState, float, tuple[int, ...]]]
    work = [(state, mass, ()) for state, mass in live]
    while work:
        chosen, work = work[-batch_size:], work[:-batch_size]
        together = [*(state for state, _, _ in chosen), *mates]
        chance = Enumerator([*(path for _, _, path in chosen), *(() for _ in mates)])
        states = [
            replace(state, stream_key=row, prefix=Prefix(ids[row], state.prefix.tokens))
            for row, state in enumerate(together)
        ]
        step = decoder.step(decoder.pack(states), chance)
        decoder.release(step.batch.states)
        work += [
            (*chosen[branch][:2], path) for branch, path in chance.siblings if branch < len(chosen)
        ]
        for row, (_, mass, _) in enumerate(chosen):
            yield step, row, mass * chance.probability[row]


def _key(state: SequenceState) -> Key:
    return tuple(state.output_ids), state.depths, state.finish_reason, state.history
