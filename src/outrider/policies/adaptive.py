"""Draft to the depth with the most expected tokens per second; stop where a step does not pay.

With s[b, j] the estimated probability that row b's j-th draft is kept together with all before it,
and t(rows, k) the time of a round of depth k, the planned depth is

    k* = argmax over k >= 0 of sum_b E[b, k] / t(rows, k),  E[b, k] = 1 + s[b, 1] + ... + s[b, k]

and its rate is g, tokens a second. `rule` says how a draft ends before, `account` what keeps a
drafter that does not pay from costing more than a small share of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..types.records import MODEL, DraftPlan, RoundRecord, RowOutcome, SequenceState
from .acceptance import Acceptance, rates
from .account import Account, Probes
from .base import Policy
from .costs import CLIP, COST_RATIO, TOKEN_RATIO, RoundCosts
from .fixed import Shape
from .rule import BreakEven

PLAIN_EVERY = 64
"""While drafting, one round in so many is plain, so that the time of one stays known."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class History:
    """What an adaptive policy remembers of one sequence.

    Attributes:
        acceptance: of its drafts.
        account: of what drafting has cost by the configured ratios, in plain rounds.
        probes: when to draft although that is not expected to pay.
        model_rounds: in how many rounds a model drafted for it.
    """

    acceptance: Acceptance = field(default_factory=Acceptance)
    account: Account = field(default_factory=Account)
    probes: Probes = field(default_factory=Probes)
    model_rounds: int = 0


_NEW = History()


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What an adaptive policy has learnt of all sequences.

    Attributes:
        acceptance: of drafts.
        account: of what drafting has cost.
        sizes: for each power of two of rows that was seen, in order.
    """

    acceptance: Acceptance = field(default_factory=Acceptance)
    account: Account = field(default_factory=Account)
    sizes: tuple[RoundCosts, ...] = ()

    @property
    def timed(self) -> tuple[RoundCosts, ...]:
        """Those of which at least a plain round was timed."""
        return tuple(costs for costs in self.sizes if costs.plain_rounds)

    @property
    def drafts_timed(self) -> bool:
        """Whether a round that drafted was timed."""
        return any(costs.drafts_timed for costs in self.timed)

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
        return Knowledge(acceptance, account, ordered)


class AdaptiveDepth(Policy):
    """Draft as far as pays by measured costs and acceptance, 0 included.

    Whatever the batch sizes, drafting loses at most 4 plain rounds of the largest batch, 2% of the
    time, and what the draft model takes to prefill the prompts of one round, beside plain decoding.
    Whole rounds are charged: planning, look-ups, prefill by the draft, and what is learnt after
    them. See `docs/concepts/depth.md` for the exceptions.

    A sampled request with a seed and without coupling goes by its own history and the cost ratio
    alone, so that its text does not depend on a clock or on other requests. Of each such request
    the same is promised, if a draft step costs what the ratio says.

    Args:
        shape: of the drafts.
        cost_ratio: a draft step beside a plain round: of such requests, and of others until
            rounds were timed.
        looks_up: whether some of the drafter's tokens take no step of a model.
        has_model: whether some do.
        steps: how many of them a draft of each depth takes.
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
        steps: Callable[[int], int] = int,
        coupled: bool = False,
        token_ratio: float = TOKEN_RATIO,
    ) -> None:
        self._shape = shape
        self._nodes = shape.nodes
        self._ratios = cost_ratio, token_ratio
        self._own_costs = RoundCosts(1, *self._ratios)
        self._looks_up = looks_up
        self._has_model = has_model
        self._steps_of = steps
        self._steps = np.array([self._steps_to(depth) for depth in range(shape.deepest + 1)])
        self._coupled = coupled

    def _steps_to(self, depth: int) -> int:
        """The draft steps of a draft so deep."""
        return self._steps_of(depth) if depth else 0

    def start(self) -> Knowledge:
        """Return the knowledge of a policy that has seen no round."""
        return Knowledge()

    def plan(self, knowledge: Knowledge, states: Sequence[SequenceState]) -> DraftPlan:
        """Plan a round: a depth for each state, and what ends a draft before. Change nothing."""
        by_others = any(state.replayed is not None or self._alone(state) for state in states)
        if not by_others and self._stopped(knowledge, len(states)):
            return DraftPlan(np.zeros(len(states), dtype=np.int64), self._shape.tree)
        most, by_model, recorded = self._shape.allowed(states)
        replayed = recorded >= 0
        alone = replayed | [self._alone(state) for state in states]
        histories = [state.history or _NEW for state in states]
        terms = self._terms(knowledge, states, histories, alone)
        if not (terms.affordable.any() or terms.looked_up.any() or replayed.any()):
            return DraftPlan(np.zeros_like(most), self._shape.tree)
        waiting = ~alone & [not history.model_rounds for history in histories]
        if terms.full and waiting.any():
            by_model = np.where(waiting, 0, by_model)
        remembered = [history.acceptance for history in histories]
        both = list(zip(remembered, alone.tolist(), strict=True))
        shared = [one if by_itself else knowledge.acceptance for one, by_itself in both]
        own = [Acceptance() if by_itself else one for one, by_itself in both]
        rule = self._choose(terms, states, by_model, recorded, shared, own)
        # What is looked up does not depend on how much of it is affordable.
        depth = np.where(replayed | (terms.looked_up > 0)[terms.group], most, rule.depths)
        return DraftPlan(depth, self._shape.tree, rule)

    def _terms(
        self,
        knowledge: Knowledge,
        states: Sequence[SequenceState],
        histories: Sequence[History],
        alone: NDArray[np.bool_],
    ) -> _Terms:
        """Find what each row that decides alone may spend, and last, all others together."""
        group = np.cumsum(alone) - 1
        own = [histories[row] for row in np.flatnonzero(alone).tolist()]
        costs = [self._own_costs] * len(own)
        accounts = [history.account for history in own]
        due = [history.probes.due for history in own]
        limit = [self._shape.deepest] * len(own)
        if not alone.all():
            group = np.where(alone, group, len(own))
            costs.append(knowledge.of(len(states), *self._ratios))
            accounts.append(knowledge.account)
            due.append(costs[-1].probes.due)
            limit.append(self._timed(knowledge, costs[-1], states))
        rows = np.array([1] * len(own) + [len(states)])[: len(costs)]
        c0, c1, c2 = np.array([each.coefficients for each in costs]).T[:, :, None]
        columns = c0 + c1 * rows[:, None] * (1.0 + self._nodes)
        columns[:, 0] = [each.plain for each in costs]
        seconds = columns + c2 * self._steps * self._has_model
        pairs = list(zip(accounts, costs, strict=True))
        slack = np.array([account.slack(each.plain) for account, each in pairs])
        limits = np.array(limit)
        looked_up = self._nodes[_affordable(columns, slack)] * (self._looks_up & (limits > 0))
        account, each = pairs[-1]
        return _Terms(
            group=group,
            rows=rows,
            seconds=seconds,
            step=c2[:, 0],
            token=c1[:, 0],
            affordable=np.minimum(limits, _affordable(seconds, slack)),
            looked_up=looked_up,
            due=np.array(due),
            full=account.slack(each.plain, prefills=True) < seconds[-1, 1:2].sum() - each.plain,
        )

    def _stopped(self, knowledge: Knowledge, rows: int) -> bool:
        """Whether the least draft of so many rows could lose more than may be lost.

        Such rounds are not planned, since that takes time as well, and are charged nothing: so what
        was lost is earned back in any case. So is what a probe of the model needs, once it is due:
        looking tokens up in vain must not put it off for good.
        """
        costs = knowledge.of(rows, *self._ratios)
        c0, c1, c2 = costs.coefficients
        least = c0 + c1 * rows * (1 + int(self._nodes[1]))
        if not self._looks_up or (costs.probes.due and knowledge.account.loss > 0):
            least += c2 * self._steps[1] * self._has_model
        return least - costs.plain > knowledge.account.slack(costs.plain)

    def _timed(
        self, knowledge: Knowledge, costs: RoundCosts, states: Sequence[SequenceState]
    ) -> int:
        """Return how deep to draft for the clock: 0 to time a plain round, 1 before a step was.

        A round in which a sequence is new times nothing, but there a draft model prefills the
        prompt. Until one that drafted was timed, only the first of all such rounds drafts: what
        others cost is not known.
        """
        if any(state.round == 0 for state in states):
            due = bool(knowledge.sizes) and not knowledge.drafts_timed
        else:
            due = not costs.plain_rounds or costs.since_plain >= PLAIN_EVERY - 1
        if due:
            return 0
        return self._shape.deepest if knowledge.drafts_timed else min(1, self._shape.deepest)

    def _choose(
        self,
        terms: _Terms,
        states: Sequence[SequenceState],
        most: Integers,
        recorded: Integers,
        shared: Sequence[Acceptance],
        own: Sequence[Acceptance],
    ) -> BreakEven:
        """Plan how deep a model drafts each row, at most `most` [B], and when a draft ends."""
        group, members = terms.group, np.bincount(terms.group)
        by_confidence, by_position = rates(shared, own, MODEL, self._shape.deepest)
        considered = terms.affordable * self._has_model
        best, rate = best_depths(group, by_position, most, terms.seconds, considered)
        probe = (best == 0) & terms.due & (terms.affordable > 0)
        planned = np.where(best > 0, best, probe & (considered > 0))
        step, token = rate * terms.step, rate * terms.token
        drafted = np.minimum(planned[group], most)
        reached = by_position.cumprod(1) * (np.arange(by_position.shape[1]) < drafted[:, None])
        cost = self._steps[drafted] * (step / members)[group] + self._nodes[drafted] * token[group]
        deepest = np.minimum(np.where(best > 0, terms.affordable, planned)[group], most)
        # A draft model prefills a new prompt while the target does, when nothing is timed. Where an
        # output is expected, the model may never be needed.
        new = np.array([state.round == 0 and state.prediction is None for state in states])
        return BreakEven(
            depths=np.where(recorded >= 0, most, deepest),
            recorded=recorded,
            group=group,
            rows=terms.rows,
            step=step,
            token=token,
            looked_up=terms.looked_up,
            probe=probe,
            gain=np.where(new & (deepest > 0), np.inf, reached.sum(1) - cost),
            by_confidence=by_confidence,
            by_position=by_position,
            columns=np.diff(self._nodes),
            steps=np.diff(self._steps),
            shared=shared,
            own=own,
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
        entering = any(state.round == 1 for state in states)
        depths = zip(record.depth, record.sources, strict=True)
        by_model = max((depth for depth, source in depths if source == MODEL), default=0)
        steps = float(self._steps_to(by_model))
        drafting = record.draft_s + record.plan_s
        if entering:  # What a draft model takes for prompts was seen before, or the target's share.
            usual = steps * costs.coefficients[2] + account.prefill
            drafting = min(drafting, CLIP * max(record.total_s - drafting, usual))
        if not any(record.depth):
            total = costs.plain + drafting if entering else costs.clipped(record.total_s)
            stopped = self._stopped(knowledge, len(states))
            fair = total if stopped else total - min(drafting, total)
            costs = costs if entering else costs.add_plain(fair)
            costs = replace(costs, probes=costs.probes.after_plain())
            if costs.plain_rounds:
                between = 0.0 if stopped else record.between_s
                account = account.add(total + between, fair, costs.plain)
        elif knowledge.timed:
            # The widest row decides how many columns are verified for each.
            tokens = float(len(states) * (1 + max(record.drafted)))
            prefill = 0.0
            if entering or any(map(_first_of_model, states, outcomes)):
                drafting += record.between_s
                total = costs.seconds(tokens, 0.0) + drafting
                prefill = max(0.0, drafting - steps * costs.coefficients[2])
            else:
                total = costs.clipped(record.total_s + record.between_s, tokens, steps)
                costs = costs.add_drafted(total, record.draft_s, tokens, steps)
            fair = costs.plain * sum(record.emitted) / len(states)
            costs = self._probed(costs, steps > 0, fair - total)
            asked = [not self._alone(state) and not _replayed(state) for state in states]
            if any(np.array(record.depth)[asked]):
                # The first round that drafted was not charged: no plain one had been timed.
                before = 0.0 if knowledge.drafts_timed else steps * costs.coefficients[2]
                account = account.add(total + before, fair, costs.plain, prefill)
            else:  # There is no point in a plain round for these rows: others would draft in it.
                costs = replace(costs, since_plain=0)
        return knowledge.after(costs, account, acceptance)

    def remember(self, history: History | None, outcome: RowOutcome) -> History:
        """Return the history of one sequence after a round, its account in plain rounds."""
        known, total, by_model = history or _NEW, 1.0, False
        fair = 1.0 + outcome.kept
        if outcome.depth:
            by_model = outcome.source == MODEL
            nodes, steps = self._shape.size(outcome.depth), self._steps_to(outcome.depth * by_model)
            total = self._own_costs.seconds(1 + nodes, steps)
        asked = outcome.depth > 0 and (by_model or not self._has_model)
        return History(
            known.acceptance.add([outcome]),
            known.account.add(total, fair, 1.0),
            known.probes.after_draft(fair - total) if asked else known.probes.after_plain(),
            known.model_rounds + by_model,
        )

    def _probed(self, costs: RoundCosts, by_model: bool, gain: float) -> RoundCosts:
        """Return the costs after a round that drafted; a probe is of the model, if there is one."""
        asked, probes = by_model or not self._has_model, costs.probes
        after = probes.after_draft(gain / costs.plain) if asked else probes.after_plain()
        return replace(costs, probes=after)

    def _alone(self, state: SequenceState) -> bool:
        """Whether a request's text would depend on what it is drafted by, and has to repeat."""
        params = state.params
        return params.seed is not None and not params.greedy and not self._coupled


@dataclass(frozen=True, slots=True)
class _Terms:
    """On what G groups of rows are planned: their costs, and what they may spend.

    Attributes:
        group: of each row, int64 [B].
        rows: padded to the widest draft of the group, int64 [G].
        seconds: of a round of each depth, float64 [G, K + 1].
        step, token: of a draft step, and of a token to verify in one row, float64 [G].
        affordable: the deepest draft that loses no more than may be lost, int64 [G].
        looked_up: the most tokens to look up for a row, likewise, int64 [G].
        due: whether a probe is due, bool [G].
        full: whether the draft model is to prefill no further prompt of the last group's.
    """

    group: Integers
    rows: Integers
    seconds: Floats
    step: Floats
    token: Floats
    affordable: Integers
    looked_up: Integers
    due: NDArray[np.bool_]
    full: bool


def best_depths(
    group: Integers, by_position: Floats, most: Integers, seconds: Floats, limit: Integers
) -> tuple[Integers, Floats]:
    """Find the depth with the most expected tokens per second for each of G groups of rows.

    Args:
        group: of each row, int64 [B].
        by_position: the rate at which each token is kept if those before are, float64 [B, K].
        most: each row's largest depth, int64 [B]; a row brings nothing beyond it.
        seconds: of a round of each depth, float64 [G, K + 1].
        limit: each group's largest depth, int64 [G].

    Returns:
        The depths, int64 [G], the least of those that are equal, and their tokens per second.
    """
    depths = np.arange(seconds.shape[1])
    reached = by_position.cumprod(1) * (depths[:-1] < most[:, None])
    tokens = np.zeros_like(seconds)
    np.add.at(tokens, group, np.concatenate([np.ones((len(group), 1)), reached], 1))
    speed = tokens.cumsum(1) / np.maximum(seconds, np.finfo(np.float64).tiny)
    speed[depths > limit[:, None]] = 0.0
    best = speed.argmax(1)
    return best, speed[np.arange(len(best)), best]


def _affordable(seconds: Floats, slack: Floats) -> Integers:
    """Return the largest depth that loses no more than `slack` [G] if nothing of it is kept.

    `seconds` are those of a round of each depth, [G, K + 1].
    """
    lost = np.maximum.accumulate(seconds, 1) - seconds[:, :1]
    found: Integers = np.maximum(0, (lost <= slack[:, None]).sum(1) - 1)
    return found


def _first_of_model(state: SequenceState, outcome: RowOutcome) -> bool:
    """Return whether a model drafted for a sequence for the first time in its last round."""
    first = state.history is not None and state.history.model_rounds == 1
    return first and outcome.source == MODEL and outcome.depth > 0


def _outcome(record: RoundRecord, row: int, state: SequenceState) -> RowOutcome:
    """Return what became of a row's draft; what lies behind a sequence's end was not refused."""
    kept = record.accepted[row]
    depth = record.depth[row] if state.finish_reason is None else kept
    return RowOutcome(record.sources[row], depth, kept, record.confidence[row][:depth])


def _replayed(state: SequenceState) -> bool:
    """Return whether the last round of a sequence was a replay."""
    return state.params.depths is not None and state.round <= len(state.params.depths)
