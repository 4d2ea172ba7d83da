"""The matrix, run: every contender under every regime, each beside plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from typing import Any

from ..engine.loading import Pair
from ..errors import InvalidConfigError
from . import peers
from .contending import PLAIN
from .curve import forward_times
from .entrants import Entrant, OutriderEntrant
from .matrix import Matrix, Regime
from .progress import Report
from .race import Racer, in_turn
from .records import BenchResult, ForwardTime, Measurement, Prompt, Workload
from .scores import Score

WARM_UP = 8
"""Tokens that every contender decodes under a regime before it is timed."""


def run(
    matrix: Matrix,
    workloads: Sequence[Workload],
    load: Callable[[str], Pair],
    provenance: dict[str, Any],
    report: Report,
) -> BenchResult:
    """Measure everything that a matrix asks for.

    Under every regime (workload, temperature, batch, dtype) all contenders decode the same prompts
    after a warm-up, in turn, in an order that rotates: a round of each, so that they meet the same
    noise. Where peers take part a turn is a whole request, of every contender, since a peer cannot
    be stopped within one; the provenance says under `turns` what it was. All clocks run as that of
    `race.Lane`; `peers` says how a peer's does.

    At temperature 0 the tokens are compared with plain decoding's; a near-tie may be flipped by
    rounding, which differs with the number of tokens in a forward, so that is reported and no
    error. In coupled mode they are compared with what the same seed gives without drafts.

    A peer that fails is named as missing: what it did under the regime in which it failed is left
    out, and it takes no part in later ones; all others are measured on.

    An interrupt (Ctrl-C) ends the run: what was measured until then is returned, marked as partial.

    Args:
        matrix: what to measure.
        workloads: on which prompts. Those that do not fit a model's context are skipped.
        load: gives the models in a dtype.
        provenance: goes into the result, with `turns` added.
        report: is told how far things are.

    Raises:
        InvalidConfigError: contenders cannot be made of these models, or no prompt of a workload
            fits; before anything is measured in that dtype.
    """
    course = _Course(matrix, report)
    curve: list[ForwardTime] = []
    partial = False
    try:
        for index, dtype in enumerate(matrix.dtypes):
            course.say(f"preparing {dtype}")
            pair = load(dtype)
            field = course.field(pair)
            fitting = [course.fitting(workload, field) for workload in workloads]
            regimes = [
                Regime(workload, temperature, batch, dtype, matrix.max_tokens)
                for workload, temperature, batch in product(
                    fitting, matrix.temperatures, matrix.batches
                )
            ]
            course.expect(regimes, len(matrix.dtypes) - index)
            for regime in regimes:
                course.measure(regime, field)
            if matrix.curve_rows and not curve:
                course.say("the target's forward, by its width")
                curve = forward_times(pair.target.hf_model, matrix.curve_rows)
    except KeyboardInterrupt:
        partial = True
    finally:
        partial = not course.close() or partial
    return BenchResult(
        provenance={**provenance, "turns": course.turns},
        measurements=tuple(course.measurements),
        curve=tuple(curve),
        missing=tuple(dict.fromkeys(course.missing)),
        skipped=tuple(dict.fromkeys(course.skipped)),
        partial=partial,
    )


class _Course:
    """A run on its way.

    Attributes:
        measurements: so far.
        missing: peers that do not take part, and why.
        skipped: prompts that are left out, and why.
    """

    def __init__(self, matrix: Matrix, report: Report) -> None:
        self._held = ExitStack()
        self._turns: dict[str, list[str]] = {}
        self.measurements: list[Measurement] = []
        self.missing: list[str] = []
        self.skipped: list[str] = []
        self._matrix = matrix
        self._report = report
        self._done = 0
        self._total = 1

    @property
    def turns(self) -> str:
        """What a turn was, and if that differs, under which regimes."""
        if len(self._turns) < 2:
            return "".join(self._turns)
        return "; ".join(f"{kind}: {', '.join(where)}" for kind, where in self._turns.items())

    def say(self, what: str) -> None:
        """Report progress."""
        self._report(self._done, self._total, what)

    def expect(self, regimes: Iterable[Regime], times: int) -> None:
        """Say how much is to come: these regimes, so many times."""
        stretches = sum(len(regime.stretches(self._matrix.repeats)) for regime in regimes)
        self._total = self._done + times * stretches

    def close(self) -> bool:
        """Free what peers hold, and whether that was not interrupted: nothing measured is lost."""
        try:
            self._free()
        except KeyboardInterrupt:
            return False
        return True

    def _free(self) -> None:
        try:
            self._held.close()
        except Exception as error:
            self.missing.append(f"something that a peer held was not freed: {_line(error)}")

    def field(self, pair: Pair) -> list[Entrant]:
        """Plain decoding, Outrider's contenders, and the peers that can take part.

        What peers of an earlier field hold is freed.
        """
        self._free()
        matrix = self._matrix
        room = max(matrix.batches)
        own = [OutriderEntrant.of(each, pair, room) for each in (PLAIN, *matrix.contenders)]
        others, missing = peers.entrants(
            matrix.peers, pair, matrix.peer_depths, self._held, self.say
        )
        self.missing += missing
        return [*own, *others]

    def fitting(self, workload: Workload, field: Sequence[Entrant]) -> Workload:
        """A workload without the prompts that are too long for a model.

        Raises:
            InvalidConfigError: none is left.
        """
        own = (entrant for entrant in field if isinstance(entrant, OutriderEntrant))
        lengths = (entrant.decoder.max_length for entrant in own)
        room = min(length for length in lengths if length is not None)
        kept, skipped = [], list(workload.skipped)
        for prompt in workload.prompts:
            tokens = prompt.max_tokens or self._matrix.max_tokens
            if len(prompt.token_ids) + tokens <= room:
                kept.append(prompt)
            else:
                skipped.append(
                    f"{prompt.name}: {len(prompt.token_ids)} tokens and {tokens} to emit exceed "
                    f"the context of {room} tokens"
                )
        if not kept:
            raise InvalidConfigError(
                "max_tokens",
                self._matrix.max_tokens,
                "shorter prompts, or fewer tokens to emit",
                given=f"{workload.name}: {skipped[-1]}",
            )
        self.skipped += [f"{workload.name}, {each}" for each in skipped]
        return replace(workload, prompts=tuple(kept), skipped=tuple(skipped))

    def measure(self, regime: Regime, field: list[Entrant]) -> None:
        """Race all entrants under a regime; an interrupt leaves the stretches before it.

        A peer that fails is taken out of the field.
        """
        stretches = regime.stretches(self._matrix.repeats)
        self.say(f"{regime.label}: warming up")
        scores = [Score(entrant) for entrant in self._warmed_up(regime, field, stretches[0])]
        whole = not all(isinstance(score.entrant, OutriderEntrant) for score in scores)
        try:
            for index, prompts in enumerate(stretches):
                self.say(f"{regime.label}: {index + 1} of {len(stretches)}")
                for entrant, why in _race(regime, scores, prompts, index, whole=whole):
                    self.missing.append(f"{entrant.contender.label}: {why}")
                    field.remove(entrant)
                    scores = [score for score in scores if score.entrant is not entrant]
                self._done += 1
        finally:
            plain = scores[0]
            if len(plain):
                kind = "whole requests" if whole else "rounds"
                self._turns.setdefault(kind, []).append(f"{regime.label}, {regime.dtype}")
            asked = [regime.tokens(prompts) for prompts in stretches[: len(plain)]]
            partial = len(plain) < len(stretches)
            self.measurements += [
                score.measurement(plain, regime, asked, len(regime.stretches(1)), partial=partial)
                for score in scores
                if len(plain)
            ]

    def _warmed_up(
        self, regime: Regime, field: Sequence[Entrant], prompts: Sequence[Prompt]
    ) -> list[Entrant]:
        """The entrants that can decode under this regime, renewed, and after a few tokens."""
        ready: list[Entrant] = []
        for entrant in field:
            own = isinstance(entrant, OutriderEntrant)
            contender = entrant.contender
            if not own and regime.batch > 1:
                why = f"not in batches of {regime.batch}, it decodes one at a time here"
                self.missing.append(f"{contender.system}: {why}")
                continue
            entrant.renew()
            lane = _lane(regime, entrant, prompts, 0, WARM_UP)
            in_turn([lane])
            if lane.failure is None:
                ready.append(entrant)
            else:
                self.missing.append(f"{contender.label}: {lane.failure}")
        return ready


def _lane(
    regime: Regime,
    entrant: Entrant,
    prompts: Sequence[Prompt],
    seed: int,
    most: int | None = None,
) -> Racer:
    ids = [prompt.token_ids for prompt in prompts]
    return entrant.lane(ids, regime.params(prompts, most), seed)


def _race(
    regime: Regime, scores: Sequence[Score], prompts: Sequence[Prompt], index: int, *, whole: bool
) -> list[tuple[Entrant, str]]:
    """A stretch: all of it counts, or an interrupt left it undone and nothing does.

    Returns:
        Who failed, and why: nothing of that one is counted.
    """
    order = [(place + index) % len(scores) for place in range(len(scores))]
    lanes = {place: _lane(regime, scores[place].entrant, prompts, index) for place in order}
    in_turn(list(lanes.values()), whole=whole)
    plain = lanes[0].token_ids
    expected = [_expected(regime, score.entrant, prompts, index, plain) for score in scores]
    failed = []
    for place, score in enumerate(scores):
        failure = lanes[place].failure
        if failure is None:
            score.add(lanes[place], expected[place])
        else:
            failed.append((score.entrant, failure))
    return failed


def _expected(
    regime: Regime,
    entrant: Entrant,
    prompts: Sequence[Prompt],
    seed: int,
    plain: tuple[tuple[int, ...], ...],
) -> tuple[tuple[int, ...], ...] | None:
    """The tokens that an entrant has to emit; None where there are many it may."""
    if entrant.lossy:
        return None
    if regime.temperature == 0:
        return plain
    if isinstance(entrant, OutriderEntrant) and entrant.coupled:
        lane = _lane(regime, entrant.undrafted(), prompts, seed)
        in_turn([lane])
        return lane.token_ids
    return None


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
