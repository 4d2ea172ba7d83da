"""A trial: all candidates decode the same prompts, at one temperature, in batches of one size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from .. import SamplingParams, SpeculationMetrics
from ..errors import InvalidConfigError
from .race import OutriderRunner, Run, Runner, Tokens, race
from .records import Measurement, Prompt, Workload
from .speedup import latency, speedup

WARM_UP = 8
"""Tokens that every candidate decodes before it is timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What all candidates of a comparison have in common.

    Attributes:
        workload: the prompts.
        sampling: parameters of every request; end-of-text is ignored, and `max_tokens` is for
            prompts that do not say.
        batch: sequences decoded together.
        dtype: of both models, for the results.
        repeats: how often every stretch is decoded.
    """

    workload: Workload
    sampling: SamplingParams
    batch: int = 1
    dtype: str = "float32"
    repeats: int = 1

    @property
    def label(self) -> str:
        """For those who wait."""
        batch = f", batch {self.batch}" if self.batch > 1 else ""
        return f"{self.workload.name}, temperature {self.sampling.temperature:g}{batch}"

    @property
    def stretches(self) -> list[tuple[Prompt, ...]]:
        """The prompts in batches, once; where they are too few for the last, some come twice."""
        prompts = self.workload.prompts
        return [
            tuple(prompts[(first + place) % len(prompts)] for place in range(self.batch))
            for first in range(0, self.batch * ceil(len(prompts) / self.batch), self.batch)
        ]

    def params(self, prompts: Sequence[Prompt]) -> list[SamplingParams]:
        """The parameters of each request of a stretch."""
        return [
            replace(
                self.sampling,
                max_tokens=prompt.max_tokens or self.sampling.max_tokens,
                ignore_eos=True,
                prediction=prompt.prediction,
            )
            for prompt in prompts
        ]


@dataclass(slots=True)
class _Score:
    """The stretches of one runner so far."""

    runner: Runner
    runs: list[Run] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)
    metrics: SpeculationMetrics | None = None

    def add(self, run: Run, expected: tuple[Tokens, ...] | None) -> None:
        self.runs.append(run)
        if expected is not None:
            self.same.append(run.token_ids == expected)
        self.metrics = self.runner.metrics()


class TrialRace:
    """A trial on its way: stretch by stretch, until all are measured or an interrupt.

    A runner that fails is dropped and named in `failed`; what it did does not count.

    Args:
        trial: what all candidates have in common.
        runners: plain decoding first.
    """

    def __init__(self, trial: Trial, runners: Sequence[Runner]) -> None:
        self.trial = trial
        self.failed: dict[Runner, str] = {}
        self._scores = [_Score(runner) for runner in runners]
        self._partial = True

    def run(self, done: Callable[[], object] = lambda: None) -> None:
        """Warm up, then decode all stretches; `done` is called after each."""
        self._warm_up()
        stretches = self.trial.stretches * self.trial.repeats
        for index, prompts in enumerate(stretches):
            self._stretch(index, prompts)
            done()
        self._partial = False

    def _warm_up(self) -> None:
        """Decode a few tokens after prompts that share nothing with the timed ones."""
        prompts = self.trial.stretches[0]
        params = [replace(each, max_tokens=WARM_UP) for each in self.trial.params(prompts)]
        ids = [prompt.token_ids[::-1] for prompt in prompts]
        self._race(ids, params, 0)
        for score in self._scores:
            score.runner.forget_metrics()

    def _stretch(self, index: int, prompts: Sequence[Prompt]) -> None:
        """Race one stretch: all of it counts, or an interrupt left it undone and nothing does."""
        ids, params = [prompt.token_ids for prompt in prompts], self.trial.params(prompts)
        runs = self._race(ids, params, index)
        expected = {
            runner: self._expected(runner, ids, params, index, runs[self._scores[0].runner])
            for runner in runs
        }
        for score in self._scores:
            score.add(runs[score.runner], expected[score.runner])

    def _race(
        self, prompts: Sequence[Tokens], params: Sequence[SamplingParams], seed: int
    ) -> dict[Runner, Run]:
        runners = [score.runner for score in self._scores]
        runs = dict(zip(runners, race(runners, prompts, params, seed), strict=True))
        self.failed |= {
            runner: run.failure for runner, run in runs.items() if run.failure is not None
        }
        self._scores = [score for score in self._scores if score.runner not in self.failed]
        return runs

    def _expected(
        self,
        runner: Runner,
        prompts: Sequence[Tokens],
        params: Sequence[SamplingParams],
        seed: int,
        plain: Run,
    ) -> tuple[Tokens, ...] | None:
        """The tokens that a runner has to emit; None where there are many it may."""
        if runner.lossy:
            return None
        if self.trial.sampling.temperature == 0:
            return plain.token_ids
        if isinstance(runner, OutriderRunner) and runner.candidate.verification == "coupled":
            return runner.undrafted(prompts, params, seed)
        return None

    def measurements(self) -> list[Measurement]:
        """What it comes to: one measurement a candidate, none if no stretch was finished."""
        count = min(len(score.runs) for score in self._scores)
        stretches = (self.trial.stretches * self.trial.repeats)[:count]
        asked = [
            sum(each.max_tokens for each in self.trial.params(prompts)) for prompts in stretches
        ]
        return [self._measurement(score, asked) for score in self._scores if asked]

    def _measurement(self, score: _Score, asked: list[int]) -> Measurement:
        count, trial = len(asked), self.trial
        plain, own = self._scores[0].runs[:count], score.runs[:count]
        tokens = [run.tokens for run in own]
        gain = None
        if tokens == [run.tokens for run in plain] == asked:
            gain = speedup(
                [run.seconds for run in plain],
                tokens,
                [run.seconds for run in own],
                tokens,
                len(trial.stretches),
            )
        baseline = score is self._scores[0]
        rounds = [run.round_s for run in own if run.round_s]
        return Measurement(
            candidate=score.runner.candidate,
            workload=trial.workload.name,
            temperature=trial.sampling.temperature,
            batch=trial.batch,
            dtype=trial.dtype,
            seconds=tuple(run.seconds for run in own),
            prompt_s=tuple(run.prompt_s for run in own),
            tokens=tuple(tokens),
            speedup=None if gain is None else gain.ratio,
            low=None if baseline or gain is None else gain.low,
            high=None if baseline or gain is None else gain.high,
            identical=sum(score.same[:count]) if score.same else None,
            lossy=score.runner.lossy,
            metrics=score.metrics,
            latency=latency(rounds, [run.tokens // trial.batch for run in own if run.round_s]),
            partial=self._partial,
        )


def fitting(workload: Workload, max_tokens: int, room: int | None) -> Workload:
    """Leave out the prompts that are too long for a model, and say so in `skipped`.

    Args:
        workload: the prompts.
        max_tokens: to emit for a prompt that does not say.
        room: the longest sequence that the models take, in tokens; None for any.

    Raises:
        InvalidConfigError: none is left.
    """
    kept, skipped = [], []
    for prompt in workload.prompts:
        tokens = prompt.max_tokens or max_tokens
        if room is None or len(prompt.token_ids) + tokens <= room:
            kept.append(prompt)
        else:
            skipped.append(
                f"{workload.name}, {prompt.name}: {len(prompt.token_ids)} tokens and {tokens} to "
                f"emit exceed the context of {room} tokens"
            )
    if not kept:
        expected = "shorter prompts, or fewer tokens to emit"
        raise InvalidConfigError("max_tokens", max_tokens, expected, given=skipped[-1])
    return Workload(workload.name, tuple(kept), (*workload.skipped, *skipped))
