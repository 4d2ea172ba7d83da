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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..types.records import MODEL, DraftPlan, RoundRecord, RowOutcome, SequenceState
from .acceptance import Acceptance, rates_by_confidence, rates_by_position
from .account import FIRST_WAIT, Account
from .base import Policy
from .costs import COST_RATIO, TOKEN_RATIO, RoundCosts, times
from .rule import BreakEven
from .shape import Shape, looked_up_rows, replayed_rows

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Batches:
    """What is known of rounds of about one number of rows.

    Attributes:
        costs: of such rounds.
        account: of what drafting in them has cost.
    """

    costs: RoundCosts
    account: Account = field(default_factory=Account)


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What an adaptive policy has learnt.

    Attributes:
        acceptance: of all sequences.
        batches: for each power of two of rows that was seen, in order.
    """

    acceptance: Acceptance = field(default_factory=Acceptance)
    batches: tuple[Batches, ...] = ()

    @property
    def drafts_timed(self) -> bool:
        """Whether a round that drafted was timed."""
        return any(batches.costs.drafts_timed for batches in self.batches)

    def of(self, rows: int, step_ratio: float) -> Batches:
        """Return what is known of rounds of so many rows, or what the nearest others let expect."""
        rows = 1 << (rows.bit_length() - 1)
        known = {batches.costs.rows: batches for batches in self.batches}
        if rows in known:
            return known[rows]
        timed = [each for each in known.values() if each.costs.plain_rounds]
        if not timed:
            return Batches(RoundCosts.prior(rows, step_ratio))
        near = min(timed, key=lambda each: abs(np.log2(each.costs.rows / rows))).costs
        column = near.token_s * near.rows / near.plain
        return Batches(RoundCosts.prior(rows, near.step_s / near.plain, column))

    def with_batches(self, batches: Batches) -> Knowledge:
        """Return the knowledge with these in the place of those of as many rows."""
        known = {each.costs.rows: each for each in self.batches} | {batches.costs.rows: batches}
        return replace(self, batches=tuple(known[rows] for rows in sorted(known)))


@dataclass(frozen=True, slots=True)
class Choice:
    """What is planned for some rows.

    Attributes:
        depth: the most tokens that a model drafts in a row.
        planned: the depth k* with the most tokens per second, or 1 in a probe.
        looked_up: the most tokens that are looked up.
        step, token: tokens that a draft step, and a verified token, has to bring.
        probe: whether they draft although that is not expected to pay.
    """

    depth: int = 0
    planned: int = 0
    looked_up: int = 0
    step: float = 0.0
    token: float = 0.0
    probe: bool = False


class AdaptiveDepth(Policy):
    """Draft as far as pays by measured costs and acceptance, 0 included.

    A sampled request with a seed and without coupling goes by its own history and the cost ratio
    alone, so that its text does not depend on a clock or on other requests.

    Args:
        shape: of the drafts.
        cost_ratio: a draft step beside a plain round: of such requests, and of others until
            rounds were timed.
        looks_up: whether some of the drafter's tokens take no step of a model.
        has_model: whether some do.
        coupled: whether outputs do not depend on what is drafted.
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
    ) -> None:
        self._shape = shape
        self._cost_ratio = cost_ratio
        self._looks_up = looks_up
        self._has_model = has_model
        self._coupled = coupled
        self._nodes = shape.nodes

    def start(self) -> Knowledge:
        """Return the knowledge of a policy that has seen no round."""
        return Knowledge()

    def plan(self, knowledge: Knowledge, states: Sequence[SequenceState]) -> DraftPlan:
        """Plan a round: a depth for each state, and what ends a draft before. Change nothing."""
        most = self._shape.allowed(states)
        replayed, looked_up = replayed_rows(states), looked_up_rows(states)
        alone = np.array([self._alone(state) for state in states], dtype=np.bool_) & ~replayed
        own = tuple(state.history or Acceptance() for state in states)
        rates = rates_by_position(knowledge.acceptance, own, MODEL, self._shape.deepest)
        by_confidence = rates_by_confidence(knowledge.acceptance, own, MODEL)
        together = ~alone & ~replayed
        choices = [Choice()] * len(states)
        if together.any():
            choice = self._together(knowledge, states, rates[together], most[together])
            choices = [choice] * len(states)
        for row in np.flatnonzero(alone).tolist():
            rates[row] = rates_by_position(None, [own[row]], MODEL, self._shape.deepest)[0]
            by_confidence[row] = rates_by_confidence(None, [own[row]], MODEL)[0]
            choices[row] = self._by_itself(states[row], rates[row : row + 1], most[row : row + 1])
        by_model = np.array([choice.depth for choice in choices], dtype=np.int64)
        by_model = np.where(replayed, np.where(looked_up, 0, most), np.minimum(by_model, most))
        looked = np.array([choice.looked_up for choice in choices], dtype=np.int64)
        depth = np.where(replayed, most, np.minimum(np.maximum(by_model, looked), most))
        planned = np.array([choice.planned for choice in choices], dtype=np.int64)
        rule = BreakEven(
            depths=by_model,
            planned=np.minimum(planned, by_model),
            alone=alone,
            replayed=replayed,
            looked_up=looked_up,
            probe=any(choice.probe for choice in choices),
            by_confidence=by_confidence,
            by_position=rates,
            step=np.array([choice.step for choice in choices]),
            token=np.array([choice.token for choice in choices]),
            columns=np.diff(self._nodes),
            shared=knowledge.acceptance,
            own=own,
        )
        return self._shape.plan(depth, rule)

    def _together(
        self, knowledge: Knowledge, states: Sequence[SequenceState], rates: Floats, most: Any
    ) -> Choice:
        """Plan the rows that share what is known."""
        batches = knowledge.of(len(states), self._cost_ratio)
        costs, account = batches.costs, batches.account
        new = any(state.round == 0 for state in states)
        if self._plain_only(batches, new=new):
            return Choice()
        seconds = times(costs, len(states), self._nodes, by_model=self._has_model)
        slack = account.slack(costs.plain)
        affordable = _affordable(seconds, slack)
        if not knowledge.drafts_timed:
            affordable = min(affordable, 1)  # What a step costs is only assumed.
        considered = affordable if self._has_model else 0
        best, rate = best_depth(rates, most, seconds[: considered + 1])
        probe = not best and account.probes and affordable > 0
        planned = 1 if probe else best
        deepest = affordable if best else planned
        columns = times(costs, len(states), self._nodes, by_model=False)
        return Choice(
            depth=deepest if self._has_model else 0,
            planned=planned if self._has_model else 0,
            looked_up=_affordable(columns, slack) if self._looks_up else 0,
            step=rate * costs.step_s,
            token=rate * costs.token_s,
            probe=probe,
        )

    def _by_itself(self, state: SequenceState, rates: Floats, most: Any) -> Choice:
        """Plan a row that goes by its own history, in units of plain rounds."""
        steps = self._cost_ratio * np.arange(len(self._nodes))
        considered = len(self._nodes) if self._has_model else 1
        seconds = 1 + steps + TOKEN_RATIO * self._nodes
        best, rate = best_depth(rates, most, seconds[:considered])
        planned = best or int(_idle(state) >= FIRST_WAIT)
        return Choice(
            depth=(self._shape.deepest if best else planned) if self._has_model else 0,
            planned=planned if self._has_model else 0,
            looked_up=self._shape.deepest if self._looks_up else 0,
            step=rate * self._cost_ratio,
            token=rate * TOKEN_RATIO,
        )

    def observe(
        self, knowledge: Knowledge, states: Sequence[SequenceState], record: RoundRecord
    ) -> Knowledge:
        """Return the knowledge after a round."""
        if record.draft_failed or not states:
            return knowledge
        outcomes = [_outcome(record, row, state) for row, state in enumerate(states)]
        acceptance = knowledge.acceptance.add(outcomes)
        batches = self._charged(knowledge, states, record)
        return replace(knowledge.with_batches(batches), acceptance=acceptance)

    def _charged(
        self, knowledge: Knowledge, states: Sequence[SequenceState], record: RoundRecord
    ) -> Batches:
        """Return the costs and the account of rounds of so many rows after one of them."""
        batches = knowledge.of(len(states), self._cost_ratio)
        costs, account = batches.costs, batches.account
        new = any(state.round == 1 for state in states)
        together = [not self._alone(state) and not _was_replayed(state) for state in states]
        drafted = any(record.depth)
        plain_only = self._plain_only(batches, new=new)
        looked = self._looks_up and any(together) and not plain_only
        # The widest row decides how many columns are verified for each.
        tokens, steps = float(len(states) * (1 + max(record.drafted))), float(record.steps)
        if not costs.plain_rounds and (new or drafted or looked):
            return Batches(costs, replace(account, owed=account.owed + steps))
        expected = costs.seconds(tokens, steps) if drafted else costs.plain
        seconds = expected if new else costs.clipped(record.total_s, tokens, steps)
        if not drafted and not looked:
            account = account.add_plain(seconds, timed=not new)
            return Batches(costs if new else costs.add_plain(seconds), account)
        if any(together) and (looked or any(np.array(record.depth)[together])):
            fair = costs.plain * sum(record.emitted) / len(states)
            model = bool(steps) if self._has_model else drafted
            account = account.add_drafted(seconds, fair, costs.plain, model=model)
        # A draft that read more than it will have to says something only where nothing is known.
        fair_time = not costs.drafts_timed or not any(map(_behind, states, record.sources))
        if drafted and not new and fair_time:
            costs = costs.add_drafted(seconds, tokens, steps)
            loss = account.loss + account.owed * costs.step_s
            account = replace(account, loss=loss, owed=0.0)
        return Batches(costs, account)

    def remember(self, history: Acceptance | None, outcome: RowOutcome) -> Acceptance:
        """Return the history of one sequence after a round."""
        return (history or Acceptance()).add([outcome])

    def _alone(self, state: SequenceState) -> bool:
        """Whether a request's text would depend on what it is drafted by, and has to repeat."""
        params = state.params
        return params.seed is not None and not params.greedy and not self._coupled

    def _plain_only(self, batches: Batches, *, new: bool) -> bool:
        """Whether nothing is drafted: to time a plain round, or because drafting has lost too much.

        A round in which a sequence is new times nothing, but there a draft model reads the prompt.
        """
        costs, account = batches.costs, batches.account
        if not new and (account.plain_due or not costs.plain_rounds):
            return True
        tokens = costs.rows * float(1 + self._nodes[1])
        cheapest = costs.seconds(tokens, float(not self._looks_up)) - costs.plain
        return account.slack(costs.plain) < max(0.0, cheapest)


def best_depth(rates: Floats, most: Any, seconds: Floats) -> tuple[int, float]:
    """Find the depth with the most expected tokens per second.

    Args:
        rates: at which each place's token is kept if those before are, float64 [B, K].
        most: each row's largest depth, int64 [B]; a row brings nothing beyond it.
        seconds: of a round of each depth, float64 [k + 1], k <= K.

    Returns:
        The depth, the least of those that are equal, and its tokens per second.
    """
    depths = np.arange(len(seconds) - 1)
    reached = rates[:, : len(depths)].cumprod(1) * (depths < most[:, None])
    tokens = len(rates) + np.concatenate([[0.0], reached.sum(0).cumsum()])
    speed = tokens / np.maximum(seconds, np.finfo(np.float64).tiny)
    best = int(speed.argmax())
    return best, float(speed[best])


def _affordable(seconds: Floats, slack: float) -> int:
    """Return the largest depth that loses no more than `slack` if nothing of it is kept."""
    return int(np.searchsorted(np.maximum.accumulate(seconds) - seconds[0], slack, "right")) - 1


def _outcome(record: RoundRecord, row: int, state: SequenceState) -> RowOutcome:
    """Return what became of a row's draft; what lies behind a sequence's end was not refused."""
    kept = record.accepted[row]
    depth = record.depth[row] if state.finish_reason is None else kept
    return RowOutcome(record.sources[row], depth, kept, record.confidence[row][:depth])


def _was_replayed(state: SequenceState) -> bool:
    """Return whether the last round of a sequence was a replay."""
    return state.params.depths is not None and state.round <= len(state.params.depths)


def _behind(state: SequenceState, source: str) -> bool:
    """Return whether a model had to read more than a token or two before it drafted."""
    *earlier, last = state.depths[-3:]
    return source == MODEL and last > 0 and not any(depth > 0 for depth in earlier)


def _idle(state: SequenceState) -> int:
    """Return the number of rounds since the sequence was last drafted for."""
    for rounds, depth in enumerate(reversed(state.depths)):
        if depth:
            return rounds
    return len(state.depths)
