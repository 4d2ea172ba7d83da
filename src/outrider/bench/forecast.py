"""What configurations will do at a temperature, from what was measured there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median

import numpy as np

from .contending import LOOKUPS, PLAIN, WITH_MODEL, drafter_of
from .measure import Filler, RoundTime, usual_times
from .predict import EXACT, Cost, Costs, chain_rounds, expected_rounds, expected_seconds
from .progress import Report, Steps
from .records import Contender
from .regime import Regime, kind_of
from .replay import Drafted, Kept, Ratios, replayed
from .search import Models

ON_CHAINS = {"traversal": "block", "recursive": "token"}
"""Methods that have another name on chains."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a configuration will do.

    Attributes:
        contender: the configuration.
        temperature: of every request.
        tokens: of all texts.
        rounds: that sequences take part in, on average.
        seconds: that the texts take one after the other, batch by batch, without what the target
            needs to read prompts, where each round takes the median of its size.
        exact: whether `rounds` follow from the target's texts; otherwise they are those of a short
            run of the configuration itself.
    """

    contender: Contender
    temperature: float
    tokens: int
    rounds: float
    seconds: float
    exact: bool

    @property
    def tokens_per_s(self) -> float:
        """Tokens emitted a second."""
        return self.tokens / self.seconds

    @property
    def tokens_per_round(self) -> float:
        """Tokens that a sequence emits in a round, rounds that draft nothing included."""
        return self.tokens / self.rounds


def predict(
    models: Models, regime: Regime, contenders: Sequence[Contender], report: Report
) -> list[Prediction]:
    """What each configuration will do; those of which no round was seen are left out.

    Args:
        models: the pair that was measured.
        regime: what was measured.
        contenders: the configurations.
        report: is told of the progress.
    """
    steps = Steps(report, len(contenders), f"predicting at temperature {regime.temperature:g}")
    forecast = _Forecast(models, regime)
    predictions = []
    for contender in contenders:
        found = forecast.of(contender)
        if found is not None:
            predictions.append(found)
        steps.done()
    return predictions


class _Forecast:
    """All predictions from one regime."""

    def __init__(self, models: Models, regime: Regime) -> None:
        self._models = models
        self._regime = regime
        self._plain = self._usual(regime.watched[PLAIN].usual, lambda seen: seen.total_s)
        self._forwards = Costs(self._usual(regime.rounds, lambda seen: seen.target_s))
        # Rounds of what follows from the text alone are the same for every method.
        self._rounds: dict[tuple[str, int], list[list[list[Drafted]]]] = {}

    def of(self, contender: Contender) -> Prediction | None:
        """What a configuration will do; None if no round of it was seen."""
        regime, models = self._regime, self._models
        name, depth = contender.drafter, contender.num_speculative_tokens or 0
        method = ON_CHAINS.get(str(contender.verification), str(contender.verification))
        if contender.plain:
            nothing = [[np.zeros(len(text) - 1) for _, text in batch] for batch in regime.texts]
            return self._from_distributions(contender, nothing, 0, "block")
        if contender.tree_shape is not None:
            return self._from_run(contender)
        if name in LOOKUPS or (name == "draft_model" and regime.ratios is None):
            # What is drafted follows from the text before it, and nothing is drawn.
            if (name, depth) not in self._rounds:
                drafter = drafter_of(name, models.drafter)
                assert drafter is not None
                rounds = replayed(models.target, drafter, regime.texts, depth)
                self._rounds[name, depth] = rounds
            return self._from_rounds(contender, self._rounds[name, depth])
        if method not in EXACT or regime.ratios is None:
            return self._from_run(contender)
        if name == "draft_model":
            return self._from_distributions(contender, regime.ratios, depth, method)
        drafter = drafter_of(name, Filler(models.target.vocab_size))
        assert drafter is not None
        kept = Kept(method, regime.ratios)
        rounds = replayed(models.target, drafter, regime.texts, depth, kept)
        return self._from_rounds(contender, rounds)

    def _from_distributions(
        self, contender: Contender, ratios: Sequence[Sequence[Ratios]], depth: int, method: str
    ) -> Prediction:
        """By the distribution of rounds given the texts."""
        cost, _ = self._costs(contender)
        seconds = rounds = 0.0
        for index, batch in enumerate(ratios):
            rows = [chain_rounds(each, depth, method) for each in batch]
            width = max(int(row[0].argmax()) - 1 for row in rows)
            seconds += expected_seconds(rows, cost) + self._first(contender, index, width)
            rounds += sum(map(expected_rounds, rows))
        return self._prediction(contender, rounds, seconds)

    def _from_rounds(
        self, contender: Contender, batches: Sequence[Sequence[Sequence[Drafted]]]
    ) -> Prediction:
        """By rounds that are known: of each text of each batch."""
        stepped, stepless = self._costs(contender)
        seconds = 0.0
        for index, texts in enumerate(batches):
            for together in zip_longest(*texts):
                rows = [row for row in together if row is not None]
                cost = stepped if any(row.stepped for row in rows) else stepless
                seconds += cost(len(rows), max(row.width for row in rows))
            seconds += self._first(contender, index, max(rounds[0].width for rounds in texts))
        rounds = sum(len(rounds) for texts in batches for rounds in texts)
        return self._prediction(contender, rounds, seconds)

    def _from_run(self, contender: Contender) -> Prediction | None:
        """By the rounds of its depth, or all of a tree, in the run that represents it."""
        depth = contender.num_speculative_tokens
        rounds = [
            seen
            for batch in self._regime.watched[kind_of(contender)].rounds[: self._regime.batches]
            for seen in batch
            if not seen.first and (contender.tree_shape is not None or seen.planned == depth)
        ]
        if not rounds:
            return None
        times = defaultdict(list)
        for seen in rounds:
            times[seen.rows, seen.width, seen.stepped].append(seen.total_s)
        usual = {size: median(found) for size, found in times.items()}
        longer = self._regime.tokens / sum(seen.emitted for seen in rounds)
        seconds = longer * sum(usual[size] * len(found) for size, found in times.items())
        width = max(seen.width for seen in rounds)
        texts = range(len(self._regime.texts))
        seconds += sum(self._first(contender, index, width) for index in texts)
        taking_part = longer * sum(seen.rows for seen in rounds)
        return self._prediction(contender, taking_part, seconds, exact=False)

    def _prediction(
        self, contender: Contender, rounds: float, seconds: float, *, exact: bool = True
    ) -> Prediction:
        regime = self._regime
        return Prediction(contender, regime.temperature, regime.tokens, rounds, seconds, exact)

    def _costs(self, contender: Contender) -> tuple[Cost, Cost]:
        """Seconds of a configuration's rounds with steps of the draft model, and without."""
        if contender.plain:
            return Costs(self._plain), Costs(self._plain)
        own = self._regime.watched[kind_of(contender)].usual
        steps = self._usual([seen for seen in own if seen.stepped], lambda seen: seen.total_s)
        stepped = Costs(steps | self._plain)
        if contender.drafter == "draft_model":
            return stepped, Costs(self._plain)
        filled = self._usual(
            self._regime.filler[str(contender.verification)].usual,
            lambda seen: seen.total_s - seen.draft_s,
        )
        # Looking up takes about as long whatever it finds.
        looked = [seen.draft_s for seen in own if seen.planned and not seen.stepped]
        looking = median(looked) if looked else 0.0
        return stepped, Costs(filled | self._plain).shifted(looking)

    def _first(self, contender: Contender, index: int, width: int) -> float:
        """Seconds by which the first round of a batch's texts differs: the target's forward does
        not count there, and a draft model reads the prompts."""
        taken = self._regime.reading_s
        # The texts of one source follow those of another, batch by batch.
        reading = taken[index % len(taken)] if contender.drafter in WITH_MODEL else 0.0
        return reading - self._forwards(self._regime.batch, width)

    def _usual(
        self, rounds: Iterable[RoundTime], seconds: Callable[[RoundTime], float]
    ) -> dict[tuple[int, int], float]:
        return usual_times(rounds, seconds, {1, self._regime.batch})
