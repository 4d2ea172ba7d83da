"""The steps of a search for the best configuration, each of which leaves what it found."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from statistics import fmean, median
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from .. import Pair, SpeculativeDecoder, SuffixDrafter
from ..config.params import WITH_MODEL
from ..engine.methods import make_drafter
from ..engine.metrics import SpeculationMetrics
from ..errors import InvalidConfigError
from .costs import DEPTHS, Costs, Timing, cycle
from .forecast import Forecast, Stretch, chosen
from .options import Progress, TuneOptions
from .race import Lane, OutriderRunner, config_of, drafter_of
from .records import PLAIN, Candidate, Measurement, Prompt, Workload
from .replay import Replay
from .run import grid
from .texts import Text, ended, written
from .trial import Trial, TrialRace

Item = TypeVar("Item")

TOGETHER = 4
"""So many texts are written at once."""

WRITING, CURVES = 0.4, 0.55
"""Parts of the budget after which no text and no larger batch is begun."""

CYCLE = 2 * (sum(DEPTHS) + len(DEPTHS)) + 4
"""Tokens that two rounds of each depth take at most."""

LEAST = 16
"""Tokens of a text that say something."""

REPEATS = 100
"""So often the prompts are raced at most."""

_EVERY = 20
"""Seconds after which it is said again that the budget is gone."""

FINALISTS = 2
"""So many configurations are raced beside plain decoding."""


def candidates(options: TuneOptions) -> list[Candidate]:
    """List what is tried: each drafter with adaptive depth, and at each fixed depth."""
    depths = (None, *options.depths)
    return grid(options.chosen_drafters, ("block",), depths, options.tree_shape)


class Search:
    """What is known so far.

    Attributes:
        costs: of rounds, by temperature and whether a model drafts.
        curves: of rounds at rising batch sizes, by whether a model drafts.
        measurements: of the race.
    """

    def __init__(
        self, options: TuneOptions, pair: Pair, workload: Workload, report: Progress
    ) -> None:
        self._options, self._pair, self._workload = options, pair, workload
        self._report = report
        self._start, self._step = perf_counter(), ""
        self._context: list[int] = []
        self._most = 0
        self._texts: list[Text] = []
        self._forecasts: list[Forecast] = []
        self._raced: dict[Candidate, list[Stretch]] = {}
        self._timings: dict[tuple[float, bool], Timing] = {}
        self.costs: dict[tuple[float, bool], Costs] = {}
        self.curves: dict[bool, list[Costs]] = {}
        self.measurements: list[Measurement] = []

    def run(self) -> None:
        """Time rounds, write texts, predict, and race the best as long as time is left."""
        self._time()
        self._write()
        self._timings.clear()
        found = self.forecasts()
        if not found:
            return
        best = chosen(found)
        field = [each.candidate for each in (*filter(None, [best]), *found)]
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
        budget, gone = round(self._options.budget), self._gone()
        seconds = gone * self._options.budget
        over = f", {seconds // _EVERY * _EVERY:.0f} s so far" if gone > 1 else ""
        self._report(min(round(seconds), budget), budget, self._step + over)

    def forecasts(self) -> list[Forecast]:
        """Predict all configurations from the texts and costs so far, the fastest first."""
        texts, done = self._usable(), {each.candidate for each in self._forecasts}
        for candidate in candidates(self._options) if texts and self.costs else ():
            late = candidate.depth is not None and self._gone() > 1
            if candidate not in done and not late and self._predictable(candidate):
                self._say(f"predicting {candidate.label}")
                self._forecasts.append(self._forecast(candidate, texts))
        wrong = {found.candidate for found in self.measurements if found.wrong}
        found = [
            replace(
                each,
                raced=tuple(self._raced.get(each.candidate, ())),
                wrong=each.candidate in wrong,
            )
            for each in self._forecasts
        ]
        return sorted(found, key=lambda each: each.estimate.ratio, reverse=True)

    def _predictable(self, candidate: Candidate) -> bool:
        """Whether its drafts follow from texts: not those of blocks, nor trees of what has none."""
        model = self._pair.model_drafter
        if model is None or candidate.drafter not in WITH_MODEL:
            return True
        return model.steps(2) == 2 and (model.branches or not candidate.tree)

    def _usable(self) -> list[Text]:
        """Return the texts that say something: of two tokens, or not at their end of some more."""
        least = {True: 2, False: LEAST}
        return [
            text
            for text in self._texts
            if len(text.token_ids) >= least[ended(text, self._pair.target)]
        ]

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was not predicted, and why."""
        model = self._pair.model_drafter
        usable = {text.prompt.name for text in self._usable()}
        short = [text for text in self._texts if ended(text, self._pair.target)]
        names = dict.fromkeys(text.prompt.name for text in short if text.prompt.name not in usable)
        said = [f"{name}: the target ends it at once" for name in names]
        if model is not None and model.steps(2) != 2:
            said.append("the draft head: it drafts blocks, which outrider bench measures")
        return tuple(said)

    def _forecast(self, candidate: Candidate, texts: Sequence[Text]) -> Forecast:
        """Predict what a configuration and plain decoding take for texts."""
        stretches: list[Stretch] = []
        batch, model_s, found = self._options.batch, 0.0, list[SpeculationMetrics]()
        for temperature in self._options.temp:
            own = [text for text in texts if text.temperature == temperature]
            own.sort(key=lambda text: self._workload.prompts.index(text.prompt))
            if own:
                replay = self._replay(candidate, own)
                stretches += [_stretch(temperature, *each) for each in replay.run(batch)]
                model_s += replay.model_s
                found.append(replay.metrics)
        rounds = sum(each.rounds for each in found)
        length = sum(each.emitted for each in found) / rounds
        drafted = sum(each.draft_rounds for each in found) / rounds
        return Forecast(candidate, tuple(stretches), model_s, length, drafted)

    def _replay(self, candidate: Candidate, texts: Sequence[Text]) -> Replay:
        """Make what decodes texts of one temperature again."""

        def drafter(model: Any) -> Any:
            suffix = SuffixDrafter(max_pool_tokens=0)
            return make_drafter(candidate.drafter, self._pair.target, model, suffix=suffix)

        apart = {each: abs(each - texts[0].temperature) for each, _ in self.costs}
        near = min(apart, key=lambda each: apart[each])
        rounds, drawn = self.costs[near, False], self.costs.get((near, True))
        ratio = self._pair.target.token_ratio
        return Replay(texts, drafter, config_of(candidate), rounds, drawn, ratio)

    def _time(self) -> None:
        """Begin to time rounds of each depth, without a model's drafts and with them.

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
        self._context = np.resize(np.concatenate(prompts), context).tolist()
        self._most = int(min(64 * len(DEPTHS), room - context))
        self._begin(options.temp[0])

    def _begin(self, temperature: float) -> None:
        """Make what times rounds at a temperature, and time them twice: the first time is cold.

        Once where that has taken long.
        """
        self._timings |= {
            (temperature, model): self._timing(
                temperature, self._options.batch, DEPTHS[: -1 if model else None], model=model
            )
            for model in (False, True)[: 1 + (self._pair.model_drafter is not None)]
        }
        self._again(temperature)
        if self._gone() < WRITING / 2:
            self._again(temperature)

    def _again(self, temperature: float) -> None:
        """Time rounds of each depth once more."""
        self._say(f"timing rounds of each depth, temperature {temperature:g}")
        own = {key: each for key, each in self._timings.items() if key[0] == temperature}
        cycle(list(own.values()), self._late)
        self.costs |= {key: each.costs for key, each in own.items()}

    def _late(self) -> bool:
        """Report how far time has gone, and whether it is late to go on timing rounds."""
        self._say()
        return self._gone() > WRITING

    def _timing(
        self, temperature: float, rows: int, depths: Sequence[int] = DEPTHS, *, model: bool
    ) -> Timing:
        """Prepare to time rounds at the context asked for."""
        target = self._pair.target.fresh(rows)
        candidate = Candidate("draft_model") if model else PLAIN
        drafter = drafter_of(candidate, self._pair, target, rows)
        params = replace(self._options.sampling(temperature), max_tokens=self._most)
        return Timing(target, drafter, self._context, params, rows, depths)

    def _curve(self, model: bool) -> None:
        """Time rounds at the batch sizes of a schedule, as long as there is time."""
        self._say("timing rounds of larger batches")
        known = self.costs[self._options.temp[0], model]
        for rows in sorted({1, *self._options.schedule}) if self._options.export else ():
            if rows == known.rows:
                self.curves.setdefault(model, []).append(known)
            elif self._gone() < (1 if rows == 1 else CURVES):
                timing = self._timing(self._options.temp[0], rows, (0, 1, 2, 4, 8), model=model)
                for _ in range(3):
                    cycle([timing], self._late)
                self.curves.setdefault(model, []).append(timing.costs)

    def _write(self) -> None:
        """Write a text for each prompt at each temperature, as long as there is time."""
        target = self._pair.target.fresh(TOGETHER)
        model = Candidate("draft_model" if self._pair.model_drafter else "none")
        decoder = SpeculativeDecoder(target, drafter_of(model, self._pair, target, TOGETHER))
        jobs, trees = self._jobs(), [each.tree or () for each in candidates(self._options)]
        children = max((most for tree in trees for most in tree), default=0)
        for place, group in enumerate(_groups(jobs, TOGETHER)):
            self._say(f"decoding plainly, {len(self._texts)} of {len(jobs)} texts{self._kept()}")
            prompts, temps = zip(*group, strict=True)
            params = list(map(self._options.sampling, temps))
            for turn, found in enumerate(written(decoder, prompts, params, children), 1):
                self._say()
                if turn == 1:
                    self._texts += found
                elif self._gone() > WRITING and turn >= 2 * LEAST:
                    break
            if self._gone() > WRITING:
                break
            temperature = self._options.temp[(place + 1) % len(self._options.temp)]
            if (temperature, False) in self._timings:
                self._again(temperature)
            else:
                self._begin(temperature)

    def _kept(self) -> str:
        """Say how much of what the draft model would have drafted is kept so far."""
        shares = [min(each, 1.0) for text in self._texts for each in text.ratios]
        known = shares and self._pair.model_drafter is not None
        return f"; {fmean(shares):.0%} of the draft model's tokens are kept" if known else ""

    def _jobs(self) -> list[tuple[Prompt, float]]:
        """Pair prompts with temperatures, so that prompts of a group differ."""
        temps = self._options.temp
        return [
            (prompt, temps[(place + shift) % len(temps)])
            for group in _groups(self._workload.prompts, TOGETHER)
            for shift in range(len(temps))
            for place, prompt in enumerate(group)
        ]

    def _race(self, finalists: Sequence[Candidate]) -> None:
        """Race the best beside plain decoding, at all temperatures in turn."""
        batch, temps = self._options.batch, self._options.temp
        for place, temperature in enumerate(temps):
            if self._gone() >= 1:
                return
            share = self._gone() + (1 - self._gone()) / (len(temps) - place)
            tokens = self._affordable(share - self._gone(), 1 + len(finalists))
            if tokens < LEAST:
                return
            labels = " and ".join(each.label for each in finalists)
            self._say(f"racing {labels} beside plain decoding, temperature {temperature:g}")
            trial = Trial(
                workload=replace(self._workload, prompts=self._known(temperature)),
                sampling=replace(self._options.sampling(temperature), max_tokens=tokens),
                batch=batch,
                repeats=REPEATS,
            )
            field = [OutriderRunner.of(each, self._pair, batch) for each in (PLAIN, *finalists)]
            race = TrialRace(trial, field, partial(self._until, share))
            try:
                with suppress(_TimeIsUp):
                    race.run()
            finally:
                self._keep(trial, race.measurements())

    def _affordable(self, share: float, lanes: int) -> int:
        """Return how many tokens of a text so many lanes can race twice in a part of the budget."""
        plain = next(iter(self.costs.values())).plain
        room = share * self._options.budget / (2 * lanes * plain)
        return int(min(self._options.max_tokens, room))

    def _known(self, temperature: float) -> tuple[Prompt, ...]:
        """Return the prompts of usable texts, to be gone on with as far as these."""
        known = {text.prompt.name for text in self._usable()}
        ends = {
            text.prompt.name: len(text.token_ids)
            for text in self._usable()
            if text.temperature == temperature and ended(text, self._pair.target)
        }
        return tuple(
            replace(each, max_tokens=ends.get(each.name))
            for each in self._workload.prompts
            if each.name in known
        )

    def _until(self, share: float, _lanes: Sequence[Lane]) -> None:
        self._say()
        if self._gone() > share:
            raise _TimeIsUp

    def _keep(self, trial: Trial, found: Sequence[Measurement]) -> None:
        """Keep what a race measured, as far as it came."""
        self.measurements += found
        for own in found[1:]:
            rows = zip(
                trial.stretches * trial.repeats,
                own.tokens,
                found[0].seconds,
                own.seconds,
                strict=False,
            )
            self._raced.setdefault(own.candidate, []).extend(
                _stretch(trial.sampling.temperature, *each) for each in rows
            )


class _TimeIsUp(Exception):
    """The budget is gone."""


def _stretch(
    temperature: float, prompts: Sequence[Prompt], tokens: int, plain: float, drafting: float
) -> Stretch:
    """Name a batch of prompts, with the tokens emitted and the seconds for it."""
    kinds = {prompt.kind for prompt in prompts}
    kind = kinds.pop() if len(kinds) == 1 else "mixed text"
    return Stretch(
        temperature, " + ".join(each.name for each in prompts), kind, tokens, plain, drafting
    )


def _groups(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Cut items into groups of a size; the last may be smaller."""
    return [items[first : first + size] for first in range(0, len(items), size)]
