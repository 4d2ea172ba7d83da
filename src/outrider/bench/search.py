"""The steps of a search for the best configuration, each of which leaves what it found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf
from statistics import median
from time import perf_counter

import numpy as np

from .. import Pair, SpeculativeDecoder
from ..config.params import WITH_MODEL
from ..errors import InvalidConfigError
from .costs import DEPTHS, Costs, Timing, cycle
from .forecast import Forecast, chosen, schedule
from .options import Progress, TuneOptions
from .race import Enough, Lane, OutriderRunner, config_of
from .records import PLAIN, Candidate, Measurement, Prompt, Workload
from .replay import Replay
from .run import grid
from .speedup import Stretch
from .texts import LEAST, Text, written
from .trial import Trial, TrialRace

TOGETHER = 4
"""So many texts are written at once."""

WRITING, CURVES = 0.4, 0.55
"""Parts of the budget after which no text and no larger batch is begun."""

CYCLE = 2 * (sum(DEPTHS) + len(DEPTHS)) + 4
"""Tokens that two rounds of each depth take at most."""

REPEATS = 100
"""So often the prompts are raced at most."""

FINALISTS = 2
"""So many configurations are raced beside plain decoding."""


def candidates(options: TuneOptions) -> list[Candidate]:
    """List what is tried: each drafter with adaptive depth, and at each fixed depth."""
    depths = (None, *options.depths)
    return grid(options.chosen_drafters, ("block",), depths, options.tree_shape)


def predictable(candidate: Candidate, pair: Pair) -> bool:
    """Whether its drafts follow from texts: not those of blocks, nor trees of what has none."""
    model = pair.model_drafter
    if model is None or candidate.drafter not in WITH_MODEL:
        return True
    return model.steps(2) == 2 and (model.branches or not candidate.tree)


class Search:
    """What is known so far.

    Attributes:
        costs: of rounds, by temperature and whether a model drafts.
        measurements: of the race.
        interrupted: whether no more is predicted than has to be.
    """

    def __init__(
        self, options: TuneOptions, pair: Pair, workload: Workload, report: Progress
    ) -> None:
        self._options, self._pair, self._workload = options, pair, workload
        self._report = report
        self._start, self._step = perf_counter(), ""
        self.interrupted = False
        self._texts: list[Text] = []
        self._forecasts: dict[Candidate, Forecast] = {}
        self._timings: dict[float, list[Timing]] = {}
        self._curves: dict[bool, list[Costs]] = {}
        self.costs: dict[tuple[float, bool], Costs] = {}
        self.measurements: list[Measurement] = []

    def run(self) -> None:
        """Time rounds, write texts, predict, and race the best as long as time is left.

        Raises:
            InvalidConfigError: the model's context has no room to time rounds in.
        """
        self._time(self._options.temp[0])
        self._write()
        self._timings.clear()
        found = self.forecasts()
        if not found:
            return
        field = [each.candidate for each in (chosen(found), *found) if each is not None]
        finalists = list(dict.fromkeys(field))[:FINALISTS]
        for model in dict.fromkeys(each.drafter in WITH_MODEL for each in finalists):
            self._curve(model)
        self._race(finalists)

    def _gone(self) -> float:
        """Return the part of the budget that is gone."""
        return (perf_counter() - self._start) / self._options.budget

    def _say(self, what: str | None = None) -> None:
        """Report a step, or how far time has gone in the last one."""
        self._step = what or self._step
        budget, gone = self._options.budget, self._gone()
        over = ", beyond the budget" if gone > 1 else ""
        ending = "interrupted (once more ends it at once); " * self.interrupted
        self._report(round(min(gone, 1.0) * budget), round(budget), ending + self._step + over)

    def _late(self, part: float = WRITING) -> bool:
        """Report how far time has gone, and return whether this part of the budget is gone."""
        self._say()
        return self._gone() > part

    def forecasts(self) -> list[Forecast]:
        """Predict all configurations from the texts and costs so far, the fastest first."""
        texts = self._usable
        for candidate in candidates(self._options) if texts and self.costs else ():
            late = candidate.depth is not None and (self.interrupted or self._gone() > 1)
            if candidate not in self._forecasts and not late and predictable(candidate, self._pair):
                self._say(f"predicting {candidate.label}")
                self._forecasts[candidate] = self._forecast(candidate, texts)
        found = self._forecasts.values()
        return sorted(found, key=lambda each: each.estimate.ratio, reverse=True)

    @property
    def _usable(self) -> list[Text]:
        return [text for text in self._texts if text.usable]

    @property
    def short(self) -> bool:
        """Whether the target ended all texts so far at once."""
        return any(text.ended for text in self._texts) and not self._usable

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was not predicted, and why."""
        model = self._pair.model_drafter
        ended = dict.fromkeys(text.prompt for text in self._texts if text.ended)
        kept = {text.prompt for text in self._usable}
        said = [f"{each.name}: the target ends it at once" for each in ended if each not in kept]
        if model is not None and model.steps(2) != 2:
            said.append("the draft head: it drafts blocks, which outrider bench measures")
        return tuple(said)

    def _forecast(self, candidate: Candidate, texts: Sequence[Text]) -> Forecast:
        """Predict what a configuration and plain decoding take for texts."""
        stretches, model_s, counts = list[Stretch](), 0.0, np.zeros(3)
        for temperature in dict.fromkeys(text.temperature for text in texts):
            own = [text for text in texts if text.temperature == temperature]
            own.sort(key=lambda text: self._workload.prompts.index(text.prompt))
            near = min((at for at, _ in self.costs), key=lambda at: abs(at - temperature))
            replay = Replay(
                own,
                candidate.drafter,
                config_of(candidate),
                self.costs[near, False],
                self.costs.get((near, True)),
                self._pair.target.token_ratio,
            )
            stretches += replay.run(self._options.batch)
            model_s += replay.model_s
            made = replay.metrics
            counts += made.rounds, made.emitted, made.draft_rounds
        rounds, emitted, drafting = counts.tolist()
        cold = all(each.cold for each in self.costs.values())
        length, drafted = emitted / rounds, drafting / rounds
        return Forecast(candidate, tuple(stretches), model_s, length, drafted, cold=cold)

    def _time(self, temperature: float) -> None:
        """Time rounds of each depth once more; at first, which is cold, twice if there is time."""
        self._say(f"timing rounds of each depth, temperature {temperature:g}")
        own = self._timings.setdefault(temperature, [])
        cold = not own
        if cold:
            own += [self._timing(temperature, self._options.batch, DEPTHS, model=False)]
            if self._pair.model_drafter is not None:
                own += [self._timing(temperature, self._options.batch, DEPTHS[:-1], model=True)]
        for _ in range(1 + cold):
            cycle(own, self._late)
            for model, timing in zip((False, True), own, strict=False):
                self.costs[temperature, model] = timing.costs
            if self._gone() >= WRITING / 2:
                return

    def _timing(
        self, temperature: float, rows: int, depths: Sequence[int], *, model: bool
    ) -> Timing:
        """Prepare to time rounds at the context asked for, or as long as prompts are.

        Raises:
            InvalidConfigError: the model's context has no room for that.
        """
        options, room = self._options, self._pair.target.max_length or inf
        prompts = [prompt.token_ids for prompt in self._workload.prompts]
        usual = round(median(map(len, prompts)) + options.max_tokens / 2)
        most = room - CYCLE
        context = options.context or int(max(1, min(usual, most)))
        if context > most:
            expected = f"at most {most}: rounds are timed with {CYCLE} tokens more"
            raise InvalidConfigError("context", context, expected)
        tokens = int(min(64 * len(DEPTHS), room - context))
        drafter = self._pair.model_drafter
        return Timing(
            self._pair.target.fresh(rows),
            drafter.fresh(rows) if drafter is not None and model else None,
            np.resize(np.concatenate(prompts), context).tolist(),
            replace(options.sampling(temperature), max_tokens=tokens),
            rows,
            depths,
        )

    def _curve(self, model: bool) -> None:
        """Time rounds at the batch sizes of a schedule, as long as there is time."""
        self._say("timing rounds of larger batches")
        known = self.costs[self._options.temp[0], model]
        found = self._curves.setdefault(model, [])
        for rows in sorted({1, *self._options.schedule}) if self._options.export else ():
            if rows == known.rows:
                found.append(known)
            elif self._gone() < (1 if rows == 1 else CURVES):
                timing = self._timing(self._options.temp[0], rows, (0, 1, 2, 4, 8), model=model)
                for _ in range(3):
                    cycle([timing], self._late)
                found.append(timing.costs)

    def schedule(self, best: Candidate) -> tuple[tuple[int, int], ...]:
        """Return batch sizes that were timed, and the best fixed depth for a drafter at each."""
        drafter, model = best.drafter, self._pair.model_drafter
        if drafter in WITH_MODEL and model is not None and model.hidden_layers:
            return ()  # a head has another name in each engine
        if drafter == "hybrid" and any(each.drafter == "draft_model" for each in self._forecasts):
            drafter = "draft_model"  # other engines have no hybrid
        found = list(self._forecasts.values())
        return schedule(found, drafter, self._curves.get(drafter in WITH_MODEL, ()))

    def _write(self) -> None:
        """Write a text for each prompt at each temperature, as long as there is time."""
        model, temps = self._pair.model_drafter, self._options.temp
        drafter = None if model is None else model.fresh(TOGETHER)
        decoder = SpeculativeDecoder(self._pair.target.fresh(TOGETHER), drafter)
        tried = candidates(self._options)
        children = max((most for each in tried for most in each.tree or ()), default=0)
        pairs = [
            (prompt, temps[(place + shift) % len(temps)])
            for shift in range(len(temps))
            for place, prompt in enumerate(self._workload.prompts)
        ]
        for first in range(0, len(pairs), TOGETHER):
            self._say(f"decoding plainly, {len(self._texts)} of {len(pairs)} texts")
            group, at = zip(*pairs[first : first + TOGETHER], strict=True)
            params = list(map(self._options.sampling, at))
            for turn, found in enumerate(written(decoder, group, params, children), 1):
                if turn == 1:
                    self._texts += found
                if self._late() and turn >= 2 * LEAST:
                    break
            if self._gone() > WRITING:
                break
            self._time(temps[(first // TOGETHER + 1) % len(temps)])

    def _race(self, finalists: Sequence[Candidate]) -> None:
        """Race the best beside plain decoding, at all temperatures in turn."""
        options, lanes = self._options, (PLAIN, *finalists)
        labels = " and ".join(each.label for each in finalists)
        for place, temperature in enumerate(options.temp):
            gone = self._gone()
            share = (1 - gone) / (len(options.temp) - place)
            # What all lanes can decode twice.
            plain = next(iter(self.costs.values())).plain
            room = share * options.budget / (2 * len(lanes) * plain)
            tokens = int(min(options.max_tokens, room))
            if tokens < LEAST:
                return
            self._say(f"racing {labels} beside plain decoding, temperature {temperature:g}")
            trial = Trial(
                workload=replace(self._workload, prompts=self._known(temperature)),
                sampling=replace(options.sampling(temperature), max_tokens=tokens),
                batch=options.batch,
                repeats=REPEATS,
            )
            field = [OutriderRunner.of(each, self._pair, options.batch) for each in lanes]
            race = TrialRace(trial, field, partial(self._until, gone + share))
            try:
                race.run()
            finally:
                made = race.measurements()
                self.measurements += made
                for runner, found in zip(field[1:], made[1:], strict=False):
                    known = self._forecasts[runner.candidate]
                    raced = (*known.raced, *race.compared(runner))
                    changed = replace(known, raced=raced, wrong=known.wrong or found.wrong)
                    self._forecasts[runner.candidate] = changed

    def _known(self, temperature: float) -> tuple[Prompt, ...]:
        """Return the prompts of usable texts, to be gone on with as far as these."""
        ends = {text.prompt: None for text in self._usable} | {
            text.prompt: len(text.token_ids)
            for text in self._usable
            if text.temperature == temperature and text.ended
        }
        prompts = [each for each in self._workload.prompts if each in ends]
        return tuple(replace(each, max_tokens=ends[each]) for each in prompts)

    def _until(self, part: float, _lanes: Sequence[Lane]) -> None:
        if self._late(part):
            raise Enough
