"""Draft to the depth with the most expected tokens per second; stop where a step does not pay.

With s[b, j] the estimated probability that row b's j-th draft is kept together with all before it,
and t(rows, k) the time of a round of depth k, the planned depth is

    k* = argmax over k >= 0 of sum_b E[b, k] / t(rows, k),  E[b, k] = 1 + s[b, 1] + ... + s[b, k]

and its rate is g, tokens a second. `rule` says how a draft ends before, `account` what keeps a
drafter that does not pay from costing more than a small share of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..types.records import MODEL, DraftPlan, RoundRecord, RowOutcome, SequenceState
from .acceptance import BUCKETS, Acceptance, rates
from .account import Account
from .base import Policy
from .costs import COST_RATIO, TOKEN_RATIO, RoundCosts
from .fixed import Shape
from .rule import BreakEven, Choice

PLAIN_EVERY = 64
"""While drafting, one round in so many is plain, so that the time of one stays known."""

ENTERED = 8
"""Rounds in a row with a new sequence after which they are timed like others."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What an adaptive policy has learnt of all sequences, or of one.

    Attributes:
        acceptance: of drafts.
        account: of what drafting has cost.
        sizes: for each power of two of rows that was seen, in order.
        entered: how many rounds in a row a new sequence was in.
    """

    acceptance: Acceptance = field(default_factory=Acceptance)
    account: Account = field(default_factory=Account)
    sizes: tuple[RoundCosts, ...] = ()
    entered: int = 0

    @property
    def timed(self) -> tuple[RoundCosts, ...]:
        """Those of which at least a plain round was timed."""
        return tuple(costs for costs in self.sizes if costs.plain_rounds)

    @property
    def drafts_timed(self) -> bool:
        """Whether a round that drafted was timed."""
        return any(costs.fitted for costs in self.timed)

    def of(self, rows: int, step_ratio: float, token_ratio: float) -> RoundCosts:
        """Return what is known of rounds of so many rows, or what the nearest others let expect."""
        rows = 1 << (rows.bit_length() - 1)
        known = {costs.rows: costs for costs in self.sizes}
        if not self.timed:
            return known.get(rows, RoundCosts(rows, step_ratio, token_ratio))
        near = min(self.timed, key=lambda costs: abs(costs.rows.bit_length() - rows.bit_length()))
        if near.rows == rows:
            return near
        _, token, step = near.coefficients
        return RoundCosts(rows, step / near.plain, token * near.rows / near.plain, near.plain)

    def after(self, costs: RoundCosts, account: Account, acceptance: Acceptance) -> Knowledge:
        """Return the knowledge with these in the place of what was known."""
        sizes = {each.rows: each for each in (*self.sizes, costs)}
        ordered = tuple(sizes[rows] for rows in sorted(sizes))
        return Knowledge(acceptance, account, ordered, self.entered)


class AdaptiveDepth(Policy):
    """Draft as far as pays by measured costs and acceptance, 0 included.

    Whatever the batch sizes, rounds that draft lose at most 4 plain rounds of the largest batch and
    2% of the time, beside plain decoding. What a draft model takes to read a prompt is not counted,
    nor is what the target takes.

    A sampled request with a seed and without coupling goes by its own history and the cost ratio
    alone, so that its text does not depend on a clock or on other requests. Of each such request
    the same is promised, if a draft step costs what the ratio says.

    Args:
        shape: of the drafts.
        cost_ratio: a draft step beside a plain round: of such requests, and of others until
            rounds were timed.
        looks_up: whether some of the drafter's tokens take no step of a model.
        has_model: whether some do.
        coupled: whether outputs do not depend on what is drafted.
        token_ratio: likewise, one more token to verify.
    """

    learns = True

    def __init__(
        self,
        shape: Shape,
        cost_ratio: float = COST_RATIO,
        *,
        looks_up: bool = False,
        has_model: bool = True,
        coupled: bool = False,
        token_ratio: float = TOKEN_RATIO,
    ) -> None:
        self._shape = shape
        self._nodes = shape.nodes
        self._ratios = cost_ratio, token_ratio
        self._looks_up = looks_up
        self._has_model = has_model
        self._coupled = coupled

    def start(self) -> Knowledge:
        """Return the knowledge of a policy that has seen no round."""
        return Knowledge()

    def plan(self, knowledge: Knowledge, states: Sequence[SequenceState]) -> DraftPlan:
        """Plan a round: a depth for each state, and what ends a draft before. Change nothing."""
        most, by_model, recorded = self._shape.allowed(states)
        replayed = recorded >= 0
        alone = replayed | [self._alone(state) for state in states]
        histories = [state.history or Knowledge() for state in states]
        deepest = self._shape.deepest
        # Each row by itself, and last, together, those that share what is known.
        groups = [([row], histories[row], 1, deepest) for row in np.flatnonzero(alone).tolist()]
        together = np.flatnonzero(~alone).tolist()
        if together:
            groups.append((together, knowledge, len(states), self._timed(knowledge, states)))
        group = np.zeros(len(states), dtype=np.int64)
        by_confidence = np.empty((len(states), BUCKETS))
        by_position = np.empty((len(states), deepest))
        choices = []
        gain = np.empty(len(states))
        known = [(history.acceptance, Acceptance()) for history in histories]
        for row in together:
            known[row] = (knowledge.acceptance, histories[row].acceptance)
        for index, (rows, learnt, size, limit) in enumerate(groups):
            own = [known[row][1] for row in rows]
            by_confidence[rows], by_position[rows] = rates(learnt.acceptance, own, MODEL, deepest)
            choices.append(self._choose(learnt, by_position[rows], most[rows], size, limit))
            group[rows], gain[rows] = index, choices[-1].gain
        planned = np.minimum([choices[index].depth for index in group], most)
        by_model = np.where(replayed, by_model, planned)
        # A draft model reads a new prompt while the target does, when nothing is timed. Where an
        # output is expected, the model may never be needed.
        new = np.array([state.round == 0 and state.prediction is None for state in states])
        gain[new & (planned > 0)] = np.inf
        looked_up = np.array([choices[index].looked_up > 0 for index in group])
        # What is looked up does not depend on how much of it is affordable.
        depth = np.where(replayed | looked_up, most, by_model)
        rule = BreakEven(
            depths=by_model,
            recorded=recorded,
            group=group,
            choices=tuple(choices),
            by_confidence=by_confidence,
            by_position=by_position,
            gain=gain,
            columns=np.diff(self._nodes),
            known=tuple(known),
        )
        return self._shape.plan(depth, rule)

    def _timed(self, knowledge: Knowledge, states: Sequence[SequenceState]) -> int:
        """Return how deep to draft for the clock: 0 to time a plain round, 1 before a step was.

        A round in which a sequence is new times nothing, but there a draft model reads the prompt.
        Where one is new in every round, their reading is a part of all of them, and of their times.
        """
        costs = knowledge.of(len(states), *self._ratios)
        due = not costs.plain_rounds or costs.since_plain >= PLAIN_EVERY - 1
        if due and (knowledge.entered >= ENTERED or all(state.round for state in states)):
            return 0
        return self._shape.deepest if knowledge.drafts_timed else min(1, self._shape.deepest)

    def _choose(
        self, known: Knowledge, by_position: Floats, most: NDArray[np.int64], rows: int, limit: int
    ) -> Choice:
        """Plan rows that go by the same knowledge, no deeper than `limit`.

        Args:
            known: of all sequences, or of this one.
            by_position: see `best_depth`.
            most: see `best_depth`.
            rows: whose tokens are verified beside theirs.
            limit: 0 drafts nothing.
        """
        costs, nodes = known.of(rows, *self._ratios), self._nodes
        slack = known.account.slack(costs.plain)
        seconds = costs.of_depths(rows, nodes, by_model=self._has_model)
        affordable = min(limit, _affordable(seconds, slack))
        considered = affordable if self._has_model else 0
        best, rate = best_depth(by_position, most, seconds[: considered + 1])
        probe = not best and costs.probes.due and affordable > 0
        planned = best or (considered and int(probe))
        columns = costs.of_depths(rows, nodes, by_model=False)
        looks_up = self._looks_up and limit > 0
        _, token, step = rate * np.array(costs.coefficients)
        drafted = np.minimum(planned, most)
        reached = by_position.cumprod(1) * (np.arange(by_position.shape[1]) < drafted[:, None])
        cost = drafted * step / len(by_position) + nodes[drafted] * token
        return Choice(
            depth=affordable if best else planned,
            looked_up=int(nodes[_affordable(columns, slack)]) if looks_up else 0,
            step=float(step),
            token=float(token),
            rows=rows,
            probe=probe,
            gain=reached.sum(1) - cost,
        )

    def observe(
        self, knowledge: Knowledge, states: Sequence[SequenceState], record: RoundRecord
    ) -> Knowledge:
        """Return the knowledge after a round."""
        if record.draft_failed or not states:
            return knowledge
        outcomes = [_outcome(record, row, state) for row, state in enumerate(states)]
        acceptance = knowledge.acceptance.add(outcomes)
        costs, account = knowledge.of(len(states), *self._ratios), knowledge.account
        entered = knowledge.entered + 1 if any(state.round == 1 for state in states) else 0
        new = 0 < entered <= ENTERED
        if not any(record.depth):
            total = costs.plain + record.draft_s if new else costs.clipped(record.total_s)
            looking = min(record.draft_s, total)  # For tokens to look up, in vain.
            costs = costs if new else costs.add_plain(total - looking)
            costs = replace(costs, probes=costs.probes.after_plain())
            if costs.plain_rounds:
                account = account.add(total, total - looking, costs.plain)
        elif knowledge.timed:
            # The widest row decides how many columns are verified for each.
            tokens, steps = float(len(states) * (1 + max(record.drafted))), float(record.steps)
            total = costs.seconds(tokens, steps)
            if not new:
                total = costs.clipped(record.total_s, tokens, steps)
                costs = costs.add_drafted(total, tokens, steps)
            fair = costs.plain * sum(record.emitted) / len(states)
            costs = self._probed(costs, steps > 0, fair - total)
            asked = [not self._alone(state) and not _replayed(state) for state in states]
            if any(np.array(record.depth)[asked]):
                # The first round that drafted was not charged: no plain one had been timed.
                before = 0.0 if knowledge.drafts_timed else steps * costs.coefficients[2]
                account = account.add(total + before, fair, costs.plain)
            else:  # There is no point in a plain round for these rows: others would draft in it.
                costs = replace(costs, since_plain=0)
        return replace(knowledge, entered=entered).after(costs, account, acceptance)

    def remember(self, history: Knowledge | None, outcome: RowOutcome) -> Knowledge:
        """Return the history of one sequence after a round, its account in plain rounds."""
        known = history or Knowledge()
        costs, total, fair = known.of(1, *self._ratios), 1.0, 1.0 + outcome.kept
        if outcome.depth:
            steps = outcome.depth if outcome.source == MODEL else 0
            total = costs.seconds(1 + self._shape.size(outcome.depth), steps)
            costs = self._probed(costs, steps > 0, fair - total)
        else:
            costs = replace(costs, probes=costs.probes.after_plain())
        account = known.account.add(total, fair, costs.plain)
        return known.after(costs, account, known.acceptance.add([outcome]))

    def _probed(self, costs: RoundCosts, by_model: bool, gain: float) -> RoundCosts:
        """Return the costs after a round that drafted; a probe is of the model, if there is one."""
        asked, probes = by_model or not self._has_model, costs.probes
        after = probes.after_draft(gain / costs.plain) if asked else probes.after_plain()
        return replace(costs, probes=after)

    def _alone(self, state: SequenceState) -> bool:
        """Whether a request's text would depend on what it is drafted by, and has to repeat."""
        params = state.params
        return params.seed is not None and not params.greedy and not self._coupled


def best_depth(by_position: Floats, most: NDArray[np.int64], seconds: Floats) -> tuple[int, float]:
    """Find the depth with the most expected tokens per second.

    Args:
        by_position: the rate at which each token is kept if those before are, float64 [B, K].
        most: each row's largest depth, int64 [B]; a row brings nothing beyond it.
        seconds: of a round of each depth, float64 [k + 1], k <= K.

    Returns:
        The depth, the least of those that are equal, and its tokens per second.
    """
    depths = np.arange(len(seconds) - 1)
    reached = by_position[:, : len(depths)].cumprod(1) * (depths < most[:, None])
    tokens = len(by_position) + np.concatenate([[0.0], reached.sum(0).cumsum()])
    speed = tokens / np.maximum(seconds, np.finfo(np.float64).tiny)
    best = int(speed.argmax())
    return best, float(speed[best])


def _affordable(seconds: Floats, slack: float) -> int:
    """Return the largest depth that loses no more than `slack` if nothing of it is kept."""
    fits = np.maximum.accumulate(seconds) - seconds[0] <= slack
    return max(0, int(fits.sum()) - 1)


def _outcome(record: RoundRecord, row: int, state: SequenceState) -> RowOutcome:
    """Return what became of a row's draft; what lies behind a sequence's end was not refused."""
    kept = record.accepted[row]
    depth = record.depth[row] if state.finish_reason is None else kept
    return RowOutcome(record.sources[row], depth, kept, record.confidence[row][:depth])


def _replayed(state: SequenceState) -> bool:
    """Return whether the last round of a sequence was a replay."""
    return state.params.depths is not None and state.round <= len(state.params.depths)
