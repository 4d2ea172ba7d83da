"""The depth with the most expected tokens a second, 0 included.

A round at depth k emits E(k) = 1 + a_1 + a_1 a_2 + ... tokens on average, where a_i is the chance
that the i-th is kept if the one before is, and takes t(k) seconds. Both are estimated from the
rounds so far, and the k with the largest sum of E over t is drafted: one k for all rows of a batch
that draft, which wait for each other. Where a batch waits for its last row, those ahead rest.

Where the drafter can end a draft early, the k of a row that shares it with no other is decided anew
after every token, by how sure the draft has been so far: `WorthAStep`. Rows that share one are not
all sure at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, inf, log

import numpy as np

from ..types.acceptance import expected_tokens
from ..types.records import DraftPlan, RoundRecord, SequenceState
from .alone import own_choice
from .choices import Choice, Choices, Decision
from .costs import COST_RATIO, Costs, Prices
from .drafted import Drafted
from .last_to_end import Counts, LastToEnd
from .levels import Levels, allowed
from .looking import Looking
from .outlook import MARGIN, Outlook
from .pricing import Pricing
from .purse import LONGEST, ONE_FIRST, SHARE, Purse
from .seen import Seen, mean_length, stepped_of
from .shown import Shown
from .standing import DRAFTING, Standing, plain_rounds
from .sureness import Steps, worth_a_step

_LENIENT = 0.02
"""How much less is enough where a depth is drafted: tokens refused by chance are no verdict."""

_STAY = 32
"""In how many rounds what the drafter has to read before has to be made up for."""

_IDLE = 0.98
"""What is known of a sequence weighs beside the same a round later in which nothing was drafted: a
few refusals are no verdict on the rest of its text, if others kept more."""

_RARELY = 64
"""After how many rounds, times what drafting gains, one is plain to know what that costs; and after
half as many, one drafts a single token."""

_SOON = 8
"""The same where too few plain rounds of so many sequences were measured, some of which were slow,
to be sure of the gain."""

_SURE = 1.0
"""How many standard errors of what a plain round takes a gain has to be."""

_CAUTION = 0.6
"""By how many standard errors of what rounds take a depth has to look better, and tries worse."""

_LOOKS = 0.002
"""What plain rounds may lose of the time where drafting gains so little that they come sooner: it
may have been a slow moment that made them look worse."""


class AdaptiveDepth:
    """Draft as far as is expected to pay, or not at all.

    Three kinds of rows. A request that carries `depths` is drafted as it says. A sampled request
    with a seed, whose text depends on its depths, is drafted by its own history and the cost ratio
    alone, so that it repeats: where drafts end, too. All others share measured costs, what was
    learnt from each other, and where they end.

    These draft one token until one was kept. Where nothing is expected to pay, one is tried now and
    then, the more rarely the more that costs, and sooner in a text that is new: for about 1.2% of
    the time, decisions included, of several rows less; reading prompts for that may take .6% more.
    Where not even a token that is always kept would pay, one is tried after 512 plain rounds.

    Args:
        levels: the shape of a draft.
        cost_ratio: a draft step beside a plain forward of the target; None for .125. Measured costs
            take its place for the rows that may use them.
        coupled: whether no text depends on its depths.
        looks_up: whether the drafter has tokens to propose that take no step of a model. Depths are
            then the most that may be proposed, and the plan says how many steps are worth taking,
            and what tokens without one have to bring.
        ends_early: whether the drafter ends chains where the plan says so. That of a row which
            shares its depth with no other is planned deeper than pays, and what is learnt of
            acceptance counts a token that was not drafted since it was not worth it as refused.
        ragged: whether chains are verified without what would pad rows to the longest.
        one_first: whether a step proposes a token, so that one tells as much as several.
    """

    def __init__(
        self,
        levels: Levels,
        cost_ratio: float | None = None,
        *,
        coupled: bool = False,
        looks_up: bool = False,
        ends_early: bool = False,
        ragged: bool = False,
        one_first: bool = True,
    ) -> None:
        self.learns = True
        self._ragged = ragged and levels.chains
        self._levels = levels
        self._cost_ratio = COST_RATIO if cost_ratio is None else cost_ratio
        self._coupled = coupled
        self._looks_up = looks_up
        self._ends_early = ends_early and levels.chains
        self._shown = Shown(one_first)
        self._steps = Steps()
        self._costs = Costs()
        self._pricing = Pricing(self._costs, levels, self._cost_ratio)
        self._since_draft = 0
        self._since_plain = 0
        self._trying = self._due = False
        self._purse = Purse(ONE_FIRST if one_first else SHARE)
        self._seen = Seen(self._ragged)
        self._planned: dict[int, int] = {}
        self._looking = Looking()
        self._looks = looks_up
        self._together: Choices | None = None
        self._later: list[tuple[Sequence[SequenceState], RoundRecord, bool]] = []
        self._pays = self._settled = False
        self._usual: Prices | None = None
        self._standing, self._ending = Standing(), LastToEnd()

    @property
    def calibrated(self) -> bool:
        """Whether costs were measured, plain and drafting."""
        return self._costs.known

    def plan(self, states: Sequence[SequenceState]) -> DraftPlan:
        """The depth of each sequence's next round."""
        self._trying = self._due = False
        unusual = self._since_plain == _RARELY // 2 or self._costs.puzzled
        standing = None if unusual else self._standing.choices(states)
        self._settled = standing is not None and self._standing.goes_on
        self._usual = standing.prices if standing and self._costs.known else None
        decision = Decision.standing(standing, states) if standing else self._decision(states)
        steps, together, rule = decision.steps, decision.together, decision.rule
        self._planned = {each.prefix.sequence_id: k for each, k in zip(states, steps, strict=True)}
        if not self._looks_up:
            return self._levels.plan(steps, keep_going=rule, repeats=decision.repeats)
        # A row that is by itself, or new, finds what there is for it; and where no model drafts,
        # it is not known what rounds bring without it.
        alike = self._levels.chains and len(decision.shared) == len(states)
        known = alike and self._costs.known and all(state.round for state in states)
        self._together = together if known else None
        self._looks = self._together is None or self._looking.wanted()
        if not self._looks:
            return self._levels.plan(steps, keep_going=rule, looks=False)
        if self._together:
            self._together = self._ending.weighed(self._together, states)
        depths = [
            steps[row]
            if self._levels.replayed(state) is not None and not self._is_local(state)
            else max(steps[row], allowed(self._levels.deepest, state))
            for row, state in enumerate(states)
        ]
        worth = replace(decision, together=self._together or together).worth(self._ragged)
        return self._levels.plan(depths, steps, worth, rule, decision.repeats)

    def _decision(self, states: Sequence[SequenceState]) -> Decision:
        """What is planned for each row, by itself and together."""
        self._catch_up()
        choices, shared = list[Choice | None]([None] * len(states)), list[int]()
        # Until a step of a model has been measured, depths that are asked for are to show one.
        replays = 0.0 if self._costs.known else inf
        repeats = [-1] * len(states)
        for row, state in enumerate(states):
            wanted = self._levels.replayed(state)
            if self._is_local(state):
                choice = own_choice(state, self._levels.deepest, self._cost_ratio, self._ends_early)
                if wanted is not None:
                    # A replay looks tokens up, and learns, as the run that it repeats did.
                    repeats[row] = allowed(choice.steps if self._ends_early else wanted, state)
                    choice = replace(choice, steps=wanted, likely=wanted, pace=0.0)
                choices[row] = choice
            elif wanted is not None:
                choices[row] = Choice(wanted, replays, 0.0, wanted)
            else:
                shared.append(row)
        pairs = zip(choices, states, strict=True)
        steps = [0 if choice is None else allowed(choice.steps, state) for choice, state in pairs]
        pairs = zip(choices, states, strict=True)
        others = max(allowed(choice.likely, state) if choice else 0 for choice, state in pairs)
        # Depths that are asked for may be greater than what is planned otherwise.
        prices = self._pricing.prices(states, max(self._levels.deepest, others, *steps))
        together = None
        if shared:
            together = self._shared_choices([states[row] for row in shared], prices, others)
            for row, choice in zip(shared, together.rows, strict=True):
                choices[row] = choice
                steps[row] = allowed(choice.steps, states[row])
        chosen = [choice for choice in choices if choice is not None]
        rule = None
        if self._ends_early:
            depths, local = np.arange(len(prices.rounds)), list(map(self._is_local, states))
            shared_s = prices.rounds[depths.clip(others)]
            own_s = np.asarray(1 + self._cost_ratio * depths, dtype=np.float64)
            pace = together.pace or None if together else None
            paces = [
                chosen[row].pace if steps[row] and alone else pace if row in shared else None
                for row, alone in enumerate(local)
            ]
            rule = worth_a_step(
                [self._shown.sureness.chances(*pair) for pair in zip(states, local, strict=True)],
                paces,
                [own_s if alone else shared_s for alone in local],
            )
        if together and len(shared) == len(states):
            self._standing.decide(states, replace(together, rule=rule))
        own = repeats if max(repeats) >= 0 else None
        return Decision(chosen, steps, shared, together, rule, own)

    def observe(self, states: Sequence[SequenceState], record: RoundRecord) -> None:
        """Learn from a round.

        Args:
            states: the sequences after it.
            record: what it did.
        """
        if record.draft_failed:
            self._observe_failure(states, record)
            return
        self._standing.happened(states)
        self._pricing.happened(states)
        self._ending.happened(states, record.emitted)
        if self._together and len(self._together.rows) == len(states):
            self._looking.count_round(self._looks, record, self._together, self._ragged)
        # A plain round in the place of which tokens were looked up is due again a little later.
        self._since_plain = self._since_plain + 1 - _SOON * self._due if any(record.drafted) else 0
        if self._waits(states, record):
            self._later.append((states, record, self._looks))
            return
        self._catch_up()
        self._learn(states, record, self._looks)

    def _waits(self, states: Sequence[SequenceState], record: RoundRecord) -> bool:
        """Whether a round may be learnt from later, since the next of these rows is planned.

        All of it takes a fifth of the time in one go, since what a forward leaves of a processor's
        caches is little. Nothing is decided by it before. Not one that overthrows what is known.
        """
        usual, ended = self._usual, any(state.finish_reason for state in states)
        if ended or not self._settled or self._costs.puzzled:
            return False
        return not any(record.drafted) or bool(usual and not usual.startling(record, self._ragged))

    def _catch_up(self) -> None:
        """Learn from the rounds that wait."""
        for waiting in self._later:
            self._learn(*waiting)
        self._later.clear()

    def _learn(self, states: Sequence[SequenceState], record: RoundRecord, looked: bool) -> None:
        """Learn from a round that looked tokens up or did not."""
        seen = self._seen.round(states, record, looked)
        self._costs.add(seen)
        for state in states:
            if state.finish_reason is not None:
                self._purse.ended(state.round)
        rows, width, steps, free = len(states), max(record.drafted), 0, list[int]()
        any_kept = self._shown.any_kept
        stepped = stepped_of(record)
        if width or any(record.ended):
            free = [row for row, state in enumerate(states) if self._is_free(state)]
            steps = max((stepped[row] for row in free), default=0)
            self._shown.add(states, record, stepped, [self._is_local(state) for state in states])
        new = [state.remaining for state in states if state.round == 1]
        self._purse.fill(not steps, new, rows)
        if not steps:
            self._since_draft += 1
            return
        self._since_draft = 0
        if len(free) == 1 and record.entropies[free[0]]:
            self._steps.add(stepped[free[0]])
        guessed = seen.caught_up > 0 and not any_kept
        if (self._trying or guessed) and self._costs.known:
            others = max((step for row, step in enumerate(stepped) if row not in free), default=0)
            deep = max(others, *stepped)
            widths = [*map(self._levels.width, range(deep + 1)), seen.tokens / rows - 1]
            prices = self._costs.prices(rows, widths, seen.length)
            draft_s = max(record.draft_s - prices.looking * looked, 0.0)
            took = draft_s + max(prices.verifying[-1], prices.verifying[others])
            emitted = sum(record.emitted[row] for row in free) / len(free)
            lost = took / (plain := prices.rounds[others]) + _CAUTION * prices.doubt(-1) - emitted
            beyond = max(draft_s - float(prices.drafting[deep]), 0.0) / plain
            read, on = (beyond, 0.0) if seen.caught_up else (0.0, beyond * bool(seen.behind))
            self._purse.read(read, prices.reading(seen.caught_up) / plain)
            if self._trying:
                self._purse.spend(lost - read, on, record.plan_s / plain)

    def measure(
        self, states: Sequence[SequenceState], record: RoundRecord, reading: bool = True
    ) -> None:
        """Learn what a round on made-up tokens costs, of which none are looked up, and no more.

        Args:
            states: the sequences after it.
            record: what it did; its drafter has not failed.
            reading: whether to learn what reading prompts takes.
        """
        self._costs.add(self._seen.round(states, record, looked=False), reading)

    def _observe_failure(self, states: Sequence[SequenceState], record: RoundRecord) -> None:
        """Learn from a round whose drafter failed: what it took, and that it is not worth it."""
        self._catch_up()
        self._standing.end()
        self._pricing.end()
        self._since_plain += 1
        self._since_draft = 0
        self._shown.add_failed(states, record, self._planned, list(map(self._is_local, states)))
        if self._trying and self._costs.plain_known:
            plain = self._costs.prices(len(states), [0], mean_length(states)).rounds[0]
            lost = (record.total_s - record.plan_s) / plain - sum(record.emitted) / len(states)
            self._purse.spend(lost, decided=record.plan_s / plain)

    def _is_free(self, state: SequenceState) -> bool:
        """Whether the round that a sequence has been through was planned by what all have shown."""
        asked = state.params.depths or ()
        return not self._is_local(state) and state.round > len(asked)

    def _is_local(self, state: SequenceState) -> bool:
        return state.params.seed is not None and not state.params.greedy and not self._coupled

    def _shared_choices(self, states: list[SequenceState], prices: Prices, deepest: int) -> Choices:
        """By measured costs, and what all sequences were seen to accept.

        Args:
            states: those that share a depth.
            prices: of rounds of all sequences that take part in them.
            deepest: how many steps are taken for the others in any case.
        """
        most = self._levels.deepest
        outlook, counts = self._outlook(states, prices, deepest)
        best, likely, ending = outlook.best, outlook.likely, outlook.ending
        rate, trial, wait, drafted = outlook.pace, 0, 0, outlook.drafted
        gain, plain_s = outlook.gain, drafted.seconds[0]
        drafting = [state for state, own in zip(states, drafted.rows, strict=True) if own]
        behind = prices.reading_on(self._seen.behind(drafting)) / plain_s
        doubt = _CAUTION * prices.doubt(min(best, ceil(likely)))
        # Rows that join others in steps that are taken anyway do not end apart for that.
        apart = 0 if deepest else self._ending.apart(states, counts is not None)
        enough = max(MARGIN, 1 + doubt) + apart
        enough -= _LENIENT * self._pays
        self._pays = pays = best > 0 and gain >= enough + behind / _STAY
        if not pays:
            unread = self._seen.behind(states)
            dearer = prices.reading_on(unread) / plain_s
            dearer += _CAUTION * prices.doubt(min(1, most))
            rate, whole = outlook.plain, outlook.whole
            trial, wait = self._trial(whole, dearer, enough, not unread)
            self._trying, drafted, counts = bool(trial), whole, None
        widths = rate * prices.looked_up[: most + 1]
        own, bare = rate / len(states), widths[0] / len(states)
        more = max(widths[-1] - widths[0], 0.0)
        token = more / max(int(prices.widths[most]), 1) / len(states)
        choice = Choice(best, bare, token, best, planned=own * outlook.usual)
        patience = ceil(self._patience(prices, gain)) if pays else 0
        stands = max(min(DRAFTING, patience - self._since_plain - 1), 0)
        if not pays:
            stands = 0 if trial else plain_rounds(len(states), wait)
            choice = replace(choice, steps=trial, likely=trial, planned=1.0)
            likely, gain, ending = trial, 1.0, False
        elif not deepest and self._since_plain >= patience:
            choice, ending, stands = replace(choice, steps=0, likely=0), False, 0
            self._due = True
        elif self._since_plain == _RARELY // 2:
            choice, ending, stands = replace(choice, steps=1, likely=1), False, 0
        idle = replace(choice, steps=0, planned=1.0)
        read = [True] * len(states)
        if self._costs.known:
            believed = max(gain / enough, 1.0) if pays and self._shown.any_kept else 1.0
            since = self._since_draft
            read = self._purse.worth_reading(states, prices, believed, since, drafted.rows)
        if trial and not any(read):
            self._trying, likely, stands = False, 0, plain_rounds(len(states))
        choices = [choice if able else idle for able in read]
        if counts:
            # They differ more than where all draft, and what they count is seen to elsewhere.
            steps = np.arange(most + 1)
            choices = [
                replace(one, planned=float(np.interp(likely, steps, tokens))) if one.steps else one
                for one, tokens in zip(choices, outlook.each, strict=True)
            ]
        deep, step_pace = float(max(likely, deepest)), outlook.pace if ending else 0.0
        backlog, reading_on = (rate * part for part in prices.unread())
        return Choices(
            choices,
            prices,
            widths,
            float(np.interp(deep, range(most + 1), widths)),
            backlog,
            rate,
            step_pace,
            stands,
            deep * sum(drafted.rows) / len(states),
            reading_on=reading_on,
            **({} if counts is None else counts.named),
        )

    def _outlook(
        self, states: list[SequenceState], prices: Prices, deepest: int
    ) -> tuple[Outlook, Counts | None]:
        """What drafts are expected to bring, and what tokens count if not all alike."""
        most, recent = self._levels.deepest, _IDLE**self._since_draft
        prior = self._shown.chances(most)
        chances = [one.acceptance.chances(most, prior, recent) for one in states]
        each = np.array([expected_tokens(row) for row in chances])
        tried = self._shown.deepest(most, states)
        # With others in the batch it is not known when all of it ends.
        alone = prices.rows == len(states) and not deepest
        rests = self._ragged and self._costs.known and alone and most > 0
        counts = self._ending.counts(states, prices) if rests else None
        drafted = whole = Drafted.all_of(each, prices, deepest)
        if counts and counts.weights is not None:
            some = self._pricing.of_some(states, prices)
            drafted = Drafted.some_of(each, counts.weights, whole.seconds[0], *some, tried)
        ends = self._ends_early and len(states) == 1 and tried == most
        return Outlook.of(each, drafted, whole, tried, self._steps if ends else None), counts

    def _patience(self, prices: Prices, gain: float) -> float:
        """After how many rounds a plain one is put in."""
        if self._costs.plain_missing or self._costs.puzzled:
            return 0
        rarely = _RARELY * gain if log(gain) > _SURE * prices.doubt() else _SOON
        return min(rarely, max((gain - 1) / _LOOKS, _SOON))

    def _trial(
        self, whole: Drafted, dearer: float, enough: float, up_to_date: bool
    ) -> tuple[int, int]:
        """One token where that is due and could pay, or none; and for how many rounds none."""
        tokens, seconds = whole.tokens, whole.at_least
        left = LONGEST - self._since_draft
        kept = ((k + 1) * seconds[0] / took for k, took in enumerate(seconds) if k)
        if self._costs.puzzled or not self._levels.deepest:
            return 0, 0
        if left > 0 and not any(gain > enough for gain in kept):
            return 0, left
        price = dearer + seconds[1] / seconds[0] - tokens[1] / tokens[0]
        affords = self._purse.affords(price, up_to_date)
        return (1, 0) if affords else (0, self._purse.wait(len(whole.rows)))
