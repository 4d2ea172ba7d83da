"""A world without models: rounds whose acceptance and times are made up, on a clock of its own.

It calls `plan`, the stop rule, `remember` and `observe` as the engine does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider import SamplingParams
from outrider.policies import Policy
from outrider.types.prefix import Prefix
from outrider.types.records import MODEL, DraftPlan, RoundRecord, RowOutcome, SequenceState


@dataclass
class World:
    """How likely drafts are kept and what they cost; times are in plain rounds.

    Attributes:
        acceptance: of a model's token, given the round; a number or a function.
        step: what a draft step costs.
        blocks: whether one step drafts all tokens.
        token: what one more token costs to verify, for each row.
        spread: how far the probabilities of single tokens lie from their mean, which the draft's
            confidence reports; 0 makes confidences all alike.
        lookup: for a round, the tokens that can be looked up and the probability that each is kept.
        searching: what it costs to look for them.
        planning: what it costs to plan a round that is not plain from the outset.
        asking: what it costs to ask for a plan, whatever comes of it.
        learning: what it costs to learn from a round that drafted.
        draft_prefill: what a draft model takes for a new prompt, before its first draft.
        prefill: what the target's prefill of a new prompt costs.
        catching_up: what a draft pays for each token that it has to compute first.
        late_prefill: what a draft pays besides for a prompt that it did not prefill in the first
            round.
        noise: the standard deviation of the logarithm of times.
        plain_s: seconds of a plain round.
    """

    acceptance: float | Callable[[int], float] = 0.7
    step: float = 0.125
    blocks: bool = False
    token: float = 0.02
    spread: float = 0.0
    lookup: Callable[[int], tuple[int, float]] = lambda _: (0, 0.0)
    searching: float = 0.0
    planning: float = 0.0
    asking: float = 0.0
    learning: float = 0.0
    draft_prefill: float = 0.0
    prefill: float = 3.0
    catching_up: float = 0.002
    late_prefill: float = 0.0
    noise: float = 0.0
    plain_s: float = 0.02

    def steps(self, depth: int) -> int:
        """The draft steps that so many tokens take."""
        return min(depth, 1) if self.blocks else depth

    def accepted(self, number: int) -> float:
        """The mean acceptance of a model's tokens in a round."""
        return self.acceptance(number) if callable(self.acceptance) else self.acceptance


@dataclass
class Run:
    """What came of some rounds.

    Attributes:
        seconds: of each round, without noise.
        emitted: tokens emitted in each, by all rows together.
        plans: of each.
        states: after the last.
        knowledge: after the last.
    """

    states: list[SequenceState]
    knowledge: Any
    seconds: list[float] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    plans: list[DraftPlan] = field(default_factory=list)
    records: list[RoundRecord] = field(default_factory=list)

    @property
    def depths(self) -> list[int]:
        """How deep each round drafted."""
        return [max(record.depth) for record in self.records]


def sequences(rows: int, tokens: int = 256, first: int = 0, **params: Any) -> list[SequenceState]:
    """States of new requests, the `first` of them numbered so."""
    asked = SamplingParams(max_tokens=tokens, **params)
    return [
        SequenceState(Prefix(i, range(8)), 8, asked, frozenset(), i)
        for i in range(first, first + rows)
    ]


def decode(
    policy: Policy,
    world: World,
    states: Sequence[SequenceState],
    *,
    seed: int = 0,
    rounds: int | None = None,
    knowledge: Any = None,
    observe: Callable[..., Any] | None = None,
) -> Run:
    """Decode until all have ended, or for so many rounds.

    What happens to a row's drafts depends on the seed, the row and the round alone.
    """
    run = Run(list(states), policy.start() if knowledge is None else knowledge)
    clock = np.random.default_rng([seed, 2**31])
    while rounds is None or len(run.seconds) < rounds:
        live = [state for state in run.states if state.finish_reason is None]
        if not live:
            break
        plan = policy.plan(run.knowledge, live)
        after, record, seconds = play(policy, world, live, plan, len(run.seconds), seed, clock)
        run.knowledge = (observe or policy.observe)(run.knowledge, after, record)
        fresh = {state.prefix.sequence_id: state for state in after}
        run.states = [fresh.get(state.prefix.sequence_id, state) for state in run.states]
        run.plans.append(plan)
        run.records.append(record)
        run.seconds.append(seconds)
        run.emitted.append(sum(record.emitted))
    return run


def play(
    policy: Policy,
    world: World,
    states: Sequence[SequenceState],
    plan: DraftPlan,
    number: int,
    seed: int,
    clock: np.random.Generator,
) -> tuple[list[SequenceState], RoundRecord, float]:
    """Play one round: draft as the plan and its stop rule say, verify, and measure.

    Returns:
        The states after it, what it reports, and the seconds that it takes without noise.
    """
    random = [
        np.random.default_rng([seed, state.prefix.sequence_id, state.prefix.length])
        for state in states
        if plan.deepest
    ]
    rows = len(states)
    sources, depth, kept = (MODEL,) * rows, [0] * rows, [0] * rows
    confidence: list[list[float]] = [[]] * rows
    if plan.deepest:
        sources, depth, chances, confidence = _draft(world, plan, number, random)
        for row, rng in enumerate(random):
            kept[row] = int((rng.random(depth[row]) < chances[row][: depth[row]]).cumprod().sum())
    after, emitted, accepted = [], [], []
    for row, state in enumerate(states):
        outcome = RowOutcome(sources[row], depth[row], kept[row], tuple(confidence[row]))
        count = min(kept[row] + 1, state.remaining)
        signed = depth[row] if sources[row] == MODEL else -depth[row]
        after.append(
            replace(
                state,
                prefix=state.prefix.extended([0] * count),
                depths=(*state.depths, signed),
                history=policy.remember(state.history, outcome),
                finish_reason="length" if count == state.remaining else None,
            )
        )
        emitted.append(count)
        accepted.append(min(kept[row], count))
    drafted = tuple(depth)
    if plan.tree is not None:
        nodes = np.concatenate([[0], np.cumsum(plan.tree.levels)])
        drafted = tuple(nodes[depth].tolist())
    steps = max((d for d, s in zip(depth, sources, strict=True) if s == MODEL), default=0)
    steps = world.steps(steps)
    drafting = world.searching * (plan.deepest > 0) + world.step * steps
    if steps:
        missed = [_missed(state) for state in states]
        drafting += world.catching_up * max(missed)
        late = [state.round > 0 and max(state.depths) <= 0 for state in states]
        drafting += world.late_prefill * any(late)
        first = [
            max(state.depths, default=0) <= 0 and source == MODEL and drawn > 0
            for state, source, drawn in zip(states, sources, depth, strict=True)
        ]
        drafting += world.draft_prefill * sum(first)
    planning, learning = (
        world.planning * (plan.stop is not None) + world.asking,
        world.learning * (max(drafted) > 0),
    )
    seconds = 1 + world.token * len(states) * max(drafted) + drafting + planning
    seconds += world.prefill * any(state.round == 0 for state in states)
    seconds *= world.plain_s
    noise = float(np.exp(world.noise * clock.standard_normal()))
    record = RoundRecord(
        sequence_ids=tuple(state.prefix.sequence_id for state in states),
        drafted=drafted,
        depth=tuple(depth),
        accepted=tuple(accepted),
        emitted=tuple(emitted),
        bonus=tuple(k == d for k, d in zip(kept, depth, strict=True)),
        ceiling=(None,) * len(states),
        draft_failed=False,
        sources=sources,
        confidence=tuple(tuple(row) for row in confidence),
        cached=(),
        draft_s=drafting * world.plain_s * noise,
        target_s=0.0,
        total_s=seconds * noise,
        plan_s=planning * world.plain_s * noise,
        between_s=learning * world.plain_s * noise,
    )
    return after, record, seconds + learning * world.plain_s


def _draft(
    world: World, plan: DraftPlan, number: int, random: Sequence[np.random.Generator]
) -> tuple[tuple[str, ...], list[int], list[NDArray[np.float64]], list[list[float]]]:
    """Draft: each row's source, depth, and its tokens' probabilities and confidences."""
    rows, width = len(random), max(1, plan.deepest)
    mean = world.accepted(number)
    up = np.array([rng.random(64)[:width] < 0.5 for rng in random])
    spread = min(world.spread, mean, 1 - mean)
    chances = [*(mean + spread * np.where(up, 1.0, -1.0))]
    confidence = np.where(up, 0.9, 0.3) if world.spread else np.full((rows, width), 0.6)
    depth, sources = plan.model_depth.copy(), [MODEL] * rows
    found, likely = world.lookup(number)
    stop = plan.stop
    for row in range(rows):
        if stop is None:
            break
        count = min(found, int(plan.depth[row]))
        reach = np.cumprod(stop.kept("ngram", np.full((rows, count), likely))[row])
        used = stop.lookup(row, reach) if count else 0
        if used:
            sources[row], depth[row] = "ngram", used
            chances[row], confidence[row] = np.full(width, likely), likely
    model = np.array([source == MODEL for source in sources])
    for drawn in range(1, width):
        drafting = model & (depth > drawn)
        if stop is None or plan.tree is not None or not drafting.any():
            break
        goes_on = stop.continues(confidence[:, :drawn], drafting)
        depth = np.where(drafting & ~goes_on, drawn, depth)
    counts = depth.tolist()
    drawn_confidence = [confidence[row, : counts[row]].tolist() for row in range(rows)]
    return tuple(sources), counts, chances, drawn_confidence if stop else [[]] * rows


def _missed(state: SequenceState) -> int:
    """About how many tokens a draft model has not computed."""
    missed = 0
    for depth in reversed(state.depths):
        if depth > 0:
            return missed
        missed += 1
    return missed
