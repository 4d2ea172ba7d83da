"""A trial: all candidates decode the same prompts, at one temperature, in batches of one size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import ceil

import torch

from .. import SamplingParams, SpeculationMetrics
from ..engine.readback import nothing_drafted
from ..errors import InvalidConfigError
from ..runtimes.base import Runtime
from ..types.prefix import Prefix
from .race import Lane, OutriderRunner, Run, Runner, Tokens, race
from .records import Difference, Measurement, Prompt, Workload
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
        """Return the parameters of each request of a stretch."""
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
    compared: bool = False
    differences: list[list[Difference]] = field(default_factory=list)
    metrics: SpeculationMetrics | None = None


class TrialRace:
    """A trial on its way: stretch by stretch, until all are measured or an interrupt.

    A runner that fails is dropped and named in `failed`; what it did does not count.

    Args:
        trial: what all candidates have in common.
        runners: plain decoding first.
        watch: called with the lanes of a stretch after each turn.
    """

    def __init__(
        self,
        trial: Trial,
        runners: Sequence[Runner],
        watch: Callable[[Sequence[Lane]], object] | None = None,
    ) -> None:
        self.trial = trial
        self.failed: dict[Runner, str] = {}
        self._watch = watch
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
        self._race([prompt.token_ids[::-1] for prompt in prompts], params, 0)
        for score in self._scores:
            score.runner.forget_metrics()

    def _stretch(self, index: int, prompts: Sequence[Prompt]) -> None:
        """Race one stretch: all of it counts, or an interrupt left it undone and nothing does."""
        ids, params = [prompt.token_ids for prompt in prompts], self.trial.params(prompts)
        runs = self._race(ids, params, index, self._watch)
        plain = runs[self._scores[0].runner]
        expected = {
            runner: self._expected(runner, ids, params, index, plain.token_ids) for runner in runs
        }
        found = {
            runner: self._differences(prompts, runs[runner].token_ids, ids)
            for runner, ids in expected.items()
            if ids is not None
        }
        for score in self._scores:
            score.runs.append(runs[score.runner])
            score.compared = score.runner in found
            score.differences.append(found.get(score.runner, []))
            score.metrics = score.runner.metrics()

    def _race(
        self,
        prompts: Sequence[Tokens],
        params: Sequence[SamplingParams],
        seed: int,
        watch: Callable[[Sequence[Lane]], object] | None = None,
    ) -> dict[Runner, Run]:
        runners = [score.runner for score in self._scores]
        runs = dict(zip(runners, race(runners, prompts, params, seed, watch), strict=True))
        self.failed |= {
            runner: run.failure for runner, run in runs.items() if run.failure is not None
        }
        self._scores = [score for score in self._scores if score.runner not in self.failed]
        return {score.runner: runs[score.runner] for score in self._scores}

    def _expected(
        self,
        runner: Runner,
        prompts: Sequence[Tokens],
        params: Sequence[SamplingParams],
        seed: int,
        plain: tuple[Tokens, ...],
    ) -> tuple[Tokens, ...] | None:
        """Return the tokens that a runner has to emit; None where there are many it may."""
        if runner.lossy:
            return None
        if self.trial.sampling.temperature == 0:
            return plain
        if isinstance(runner, OutriderRunner) and runner.candidate.verification == "coupled":
            return runner.undrafted(prompts, params, seed)
        return None

    def _differences(
        self, prompts: Sequence[Prompt], found: Sequence[Tokens], expected: Sequence[Tokens]
    ) -> list[Difference]:
        """Find where outputs first differ, and at temperature 0 whether rounding explains it."""
        plain = self._scores[0].runner
        greedy = self.trial.sampling.temperature == 0
        differences = []
        for prompt, own, right in zip(prompts, found, expected, strict=True):
            for place, (token, due) in enumerate(zip_longest(own, right)):
                if token == due:
                    continue
                first = Difference(prompt.name, place, token, due)
                if greedy and None not in (token, due) and isinstance(plain, OutriderRunner):
                    before = (*prompt.token_ids, *right[:place])
                    gap, allowed = _apart(plain.decoder.target, before, token, due)
                    first = replace(first, gap=gap, allowed=allowed)
                differences.append(first)
                break
        return differences

    def measurements(self) -> list[Measurement]:
        """Return what it comes to: one measurement a candidate, none if no stretch was finished."""
        count = min(len(score.runs) for score in self._scores)
        stretches = (self.trial.stretches * self.trial.repeats)[:count]
        asked = [
            sum(each.max_tokens for each in self.trial.params(prompts)) for prompts in stretches
        ]
        return [self._measurement(score, asked) for score in self._scores if asked]

    def _measurement(self, score: _Score, asked: list[int]) -> Measurement:
        count, trial = len(asked), self.trial
        plain, own = self._scores[0].runs[:count], score.runs[:count]
        differences = score.differences[:count]
        found = Measurement(
            candidate=score.runner.candidate,
            workload=trial.workload.name,
            temperature=trial.sampling.temperature,
            batch=trial.batch,
            dtype=trial.dtype,
            seconds=tuple(run.seconds for run in own),
            prompt_s=tuple(run.prompt_s for run in own),
            tokens=tuple(run.tokens for run in own),
            speedup=None,
            identical=sum(not each for each in differences) if score.compared else None,
            differences=tuple(each for stretch in differences for each in stretch),
            lossy=score.runner.lossy,
            metrics=score.metrics,
            latency=latency(
                [run.round_s for run in own if run.round_s],
                [run.tokens // trial.batch for run in own if run.round_s],
            ),
            partial=self._partial,
        )
        if not list(found.tokens) == [run.tokens for run in plain] == asked:
            return found
        if score is self._scores[0]:
            return replace(found, speedup=1.0)
        gain = speedup([run.seconds for run in plain], found.seconds, len(trial.stretches))
        return replace(found, speedup=gain.ratio, low=gain.low, high=gain.high)


def _apart(target: Runtime, tokens: Sequence[int], one: int, other: int) -> tuple[float, float]:
    """See `Difference`: the gap between the likeliest token and these, and the gap allowed."""
    # Sequence ids below 0 are no decoder's.
    prefix = Prefix(-1, tokens)
    with torch.inference_mode():
        logits = target.verify([prefix], nothing_drafted(1, target.device)).logits[0, 0]
    target.release([-1], discard=True)
    eps = torch.finfo(logits.dtype).eps
    logits = logits.double()
    gap = float(logits.max() - torch.minimum(logits[one], logits[other]))
    largest = float(logits[logits.isfinite()].abs().max())
    return gap, 2 * max(8 * eps, eps**0.75) * largest


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
