"""A trial: all candidates decode the same prompts, at one temperature, in batches of one size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from .. import SamplingParams
from ..drafters.base import nothing_drafted
from ..errors import InvalidConfigError
from ..types.prefix import Prefix
from .race import Enough, Run, Runner, Tokens, Watch, race
from .records import Measurement, Prompt, Workload, trial_label
from .speedup import Speedup, Stretch, gain

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
        repeats: how often every stretch is decoded.
    """

    workload: Workload
    sampling: SamplingParams
    batch: int = 1
    repeats: int = 1

    @property
    def label(self) -> str:
        """Names it as `Measurement.trial` does."""
        return trial_label(self.workload.name, self.sampling.temperature, self.batch)

    @property
    def stretches(self) -> list[tuple[Prompt, ...]]:
        """The prompts in batches, once; where they are too few for the last, some come twice."""
        prompts = self.workload.prompts
        return [
            tuple(prompts[(first + place) % len(prompts)] for place in range(self.batch))
            for first in range(0, len(prompts), self.batch)
        ]

    def params(self, prompts: Sequence[Prompt]) -> list[SamplingParams]:
        """Return the parameters of each request of a stretch."""
        most = [each.max_tokens or self.sampling.max_tokens for each in prompts]
        return [replace(self.sampling, max_tokens=each, ignore_eos=True) for each in most]


class TrialRace:
    """A trial on its way: stretch by stretch, until all are measured, `Enough` or an interrupt.

    The first runner decodes plainly. One that fails is dropped and named in `failed`; what it did
    does not count.
    """

    def __init__(self, trial: Trial, runners: Sequence[Runner], watch: Watch | None = None) -> None:
        self.trial = trial
        self.failed: dict[Runner, str] = {}
        self._watch = watch
        self._runners = list(runners)
        self._done: list[tuple[Sequence[Prompt], dict[Runner, Run]]] = []

    def run(self, done: Callable[[], object] = lambda: None) -> None:
        """Warm up, then decode all stretches; `done` is called after each."""
        # Prompts that share nothing with the timed ones.
        first = [
            replace(each, token_ids=each.token_ids[::-1], max_tokens=WARM_UP)
            for each in self.trial.stretches[0]
        ]
        self._race(first)
        for runner in self._runners:
            if runner.decoder is not None:
                runner.decoder.reset_metrics()
        with suppress(Enough):
            for index, prompts in enumerate(self.trial.stretches * self.trial.repeats):
                # All of a stretch counts, or an interrupt leaves it undone and nothing does.
                self._done.append((prompts, self._race(prompts, index, self._watch)))
                done()

    def _race(
        self, prompts: Sequence[Prompt], seed: int = 0, watch: Watch | None = None
    ) -> dict[Runner, Run]:
        ids = [prompt.token_ids for prompt in prompts]
        made = race(self._runners, ids, self.trial.params(prompts), seed, watch)
        runs = dict(zip(self._runners, made, strict=True))
        self.failed |= {runner: run.failure for runner, run in runs.items() if run.failure}
        self._runners = [runner for runner in self._runners if runner not in self.failed]
        return runs

    def measurements(self) -> list[Measurement]:
        """Return what it comes to: one measurement a candidate, none if no stretch was finished."""
        return [self._measurement(runner) for runner in self._runners if self._done]

    def compared(self, runner: Runner) -> list[Stretch]:
        """Return the finished stretches, decoded plainly and by a runner."""
        temperature, plain = self.trial.sampling.temperature, self._runners[0]
        return [
            Stretch.of(
                temperature, prompts, runs[runner].tokens, runs[plain].seconds, runs[runner].seconds
            )
            for prompts, runs in self._done
        ]

    def _measurement(self, runner: Runner) -> Measurement:
        trial, first = self.trial, self._runners[0]
        found = [(prompts, runs[runner], runs[first]) for prompts, runs in self._done]
        identical, errors = None, list[str]()
        if trial.sampling.temperature == 0 and not runner.candidate.lossy:
            identical = sum(run.token_ids == plain.token_ids for _, run, plain in found)
            errors = [
                self._error(*each)
                for prompts, run, plain in found
                for each in zip(prompts, run.token_ids, plain.token_ids, strict=True)
                if each[1] != each[2]
            ]
        whole = all(
            run.tokens == plain.tokens == sum(each.max_tokens for each in trial.params(prompts))
            for prompts, run, plain in found
        )
        speedup = Speedup(1.0) if runner is first else gain(self.compared(runner))
        return Measurement(
            candidate=runner.candidate,
            workload=trial.workload.name,
            temperature=trial.sampling.temperature,
            batch=trial.batch,
            seconds=tuple(run.seconds for _, run, _ in found),
            tokens=tuple(run.tokens for _, run, _ in found),
            speedup=speedup if whole else None,
            identical=identical,
            errors=tuple(filter(None, errors)),
            metrics=found[-1][1].metrics,
        )

    def _error(self, prompt: Prompt, found: Tokens, expected: Tokens) -> str:
        """Say where an output first differs from the greedy one; "" if rounding explains it."""
        pairs = enumerate(zip(found, expected, strict=False))
        place = next((place for place, (one, other) in pairs if one != other), None)
        if place is None:
            return f"{prompt.name}: {len(found)} tokens where plain has {len(expected)}"
        one, other = found[place], expected[place]
        decoder = self._runners[0].decoder
        assert decoder is not None
        target = decoder.target
        # Sequence ids below 0 are no decoder's.
        prefix = Prefix(-1, (*prompt.token_ids, *expected[:place]))
        with torch.inference_mode():
            scores = target.verify([prefix], nothing_drafted(1, target.device))
        logits = scores.logits[0, 0].double()
        target.release([-1], discard=True)
        gap = float(logits.max() - torch.minimum(logits[one], logits[other]))
        allowed = target.rounding * float(logits[logits.isfinite()].abs().max())
        if gap <= allowed:
            return ""
        return (
            f"{prompt.name}, token {place + 1}: id {one} where plain has {other}; their logits are "
            f"{gap:.2g} apart, and rounding explains {allowed:.2g}"
        )


def fitting(workload: Workload, max_tokens: int, room: int | None) -> Workload:
    """Leave out the prompts that are too long, with what they emit, for `room` tokens.

    Raises:
        InvalidConfigError: none is left.
    """
    kept, skipped = [], []
    for prompt in workload.prompts:
        length = len(prompt.token_ids)
        if room is None or length + max_tokens <= room:
            kept.append(prompt)
        else:
            said = f"{length} tokens and {max_tokens} to emit exceed the context of {room} tokens"
            skipped.append(f"{workload.name}, {prompt.name}: {said}")
    if not kept:
        expected = "shorter prompts, or fewer tokens to emit"
        raise InvalidConfigError("max_tokens", max_tokens, expected, given=skipped[-1])
    return Workload(workload.name, tuple(kept), tuple(skipped))
