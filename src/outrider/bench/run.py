"""The matrix: every contender under every regime, each beside plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil
from typing import Any

from ..config import SamplingParams
from ..errors import InvalidConfigError
from ..loading import Pair
from ..metrics import Tally
from . import peers
from .curve import forward_times
from .entrants import PLAIN, Entrant, OutriderEntrant
from .race import Racer, in_turn, speedup
from .records import BenchResult, Contender, ForwardTime, Measurement, Prompt, Workload

WARM_UP = 8
"""Tokens that every contender decodes under a regime before it is timed."""

Report = Callable[[int, int, str], None]
"""Is told how many stretches are done, of how many, and what is being measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """What is to be measured.

    Attributes:
        contenders: of Outrider; plain decoding takes part in any case.
        temperatures: of requests, each a regime.
        batches: how many sequences are decoded together, each a regime.
        dtypes: of both models, each a regime.
        max_tokens: to emit for a prompt that does not say itself; end-of-text is ignored.
        repeats: of every stretch.
        peers: other systems, of `peers.NAMES`. They decode one sequence at a time, and take part in
            batches of one.
        peer_depths: of their drafts; None is what they do by themselves.
        curve_rows: batch sizes for which the forward's time is measured; none leaves it out.

    Raises:
        InvalidConfigError: one of these is out of its range.
    """

    contenders: tuple[Contender, ...]
    temperatures: tuple[float, ...] = (0.0, 0.8)
    batches: tuple[int, ...] = (1,)
    dtypes: tuple[str, ...] = ("float32",)
    max_tokens: int = 128
    repeats: int = 1
    peers: tuple[str, ...] = ()
    peer_depths: tuple[int | None, ...] = (4, None)
    curve_rows: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        for name in ("temperatures", "batches", "dtypes"):
            if not getattr(self, name):
                raise InvalidConfigError(name, (), "at least one")
        for name in ("contenders", "temperatures", "batches", "dtypes", "peer_depths"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise InvalidConfigError(name, values, "each only once")
        for name, values in (
            ("batches", self.batches),
            ("curve_rows", self.curve_rows),
            ("max_tokens", (self.max_tokens,)),
            ("repeats", (self.repeats,)),
        ):
            for value in values:
                if not isinstance(value, int) or value < 1:
                    raise InvalidConfigError(name, value, "an integer >= 1")
        for temperature in self.temperatures:
            SamplingParams(temperature=temperature)
        if any(contender.plain for contender in self.contenders):
            raise InvalidConfigError("contenders", "none", "no plain one; it takes part by itself")


@dataclass(frozen=True, slots=True)
class _Regime:
    workload: Workload
    temperature: float
    batch: int
    dtype: str

    def stretches(self, repeats: int) -> list[tuple[Prompt, ...]]:
        """The batches of prompts, in order; where prompts are too few for a batch some come twice
        in it."""
        prompts = self.workload.prompts
        batches = ceil(len(prompts) / self.batch)
        once = [
            tuple(
                prompts[(first * self.batch + place) % len(prompts)] for place in range(self.batch)
            )
            for first in range(batches)
        ]
        return once * repeats


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
    be stopped within one. A contender's clock is that of `race.Lane`, a peer's that of `peers`.

    At temperature 0 the tokens are compared with plain decoding's; a near-tie may be flipped by
    rounding, which differs with the number of tokens in a forward, so that is reported and no
    error. In coupled mode they are compared with what the same seed gives without drafts.

    An interrupt (Ctrl-C) ends the run: what was measured until then is returned, marked as partial.

    Args:
        matrix: what to measure.
        workloads: on which prompts. Those that do not fit a model's context are skipped.
        load: gives the models in a dtype.
        provenance: goes into the result.
        report: is told how far things are.

    Raises:
        InvalidConfigError: contenders cannot be made of these models, or no prompt of a workload
            fits; before anything is measured in that dtype.
    """
    book = _Book(matrix, report, len(workloads))
    measurements: list[Measurement] = []
    curve: list[ForwardTime] = []
    partial = False
    try:
        for dtype in matrix.dtypes:
            report(*book.progress, f"preparing {dtype}")
            pair = load(dtype)
            field = _entrants(matrix, pair, book)
            fitting = [_fitting(workload, field, matrix, book) for workload in workloads]
            regimes = product(fitting, matrix.temperatures, matrix.batches)
            for workload, temperature, batch in regimes:
                regime = _Regime(workload, temperature, batch, dtype)
                measurements += book.measure(regime, field)
                if book.interrupted:
                    raise KeyboardInterrupt
            if matrix.curve_rows and not curve:
                report(*book.progress, "the target's forward, by its width")
                curve = forward_times(pair.target.hf_model, matrix.curve_rows)
    except KeyboardInterrupt:
        partial = True
    return BenchResult(
        provenance=provenance,
        measurements=tuple(measurements),
        curve=tuple(curve),
        missing=tuple(book.missing),
        skipped=tuple(book.skipped),
        partial=partial,
    )


def _entrants(matrix: Matrix, pair: Pair, book: _Book) -> list[Entrant]:
    """Plain decoding, Outrider's contenders, and the peers that can take part."""
    room = max(matrix.batches)
    own = [OutriderEntrant.of(each, pair, room) for each in (PLAIN, *matrix.contenders)]
    others, missing = peers.entrants(matrix.peers, pair, matrix.peer_depths)
    book.note_missing(missing)
    return [*own, *others]


def _fitting(workload: Workload, field: Sequence[Entrant], matrix: Matrix, book: _Book) -> Workload:
    """A workload without the prompts that are too long for a model.

    Raises:
        InvalidConfigError: none is left.
    """
    limits = [
        entrant.decoder.max_length for entrant in field if isinstance(entrant, OutriderEntrant)
    ]
    room = min(limit for limit in limits if limit is not None)
    kept, skipped = [], list(workload.skipped)
    for prompt in workload.prompts:
        tokens = prompt.max_tokens or matrix.max_tokens
        if len(prompt.token_ids) + tokens <= room:
            kept.append(prompt)
        else:
            skipped.append(
                f"{prompt.name}: {len(prompt.token_ids)} tokens and {tokens} to emit exceed the "
                f"context of {room} tokens"
            )
    if not kept:
        raise InvalidConfigError(
            "max_tokens", matrix.max_tokens, "fewer", given=f"{workload.name}: {skipped[-1]}"
        )
    book.note_skipped(f"{workload.name}, {each}" for each in skipped)
    return replace(workload, prompts=tuple(kept), skipped=tuple(skipped))


class _Score:
    """What an entrant has done under a regime."""

    def __init__(self, entrant: Entrant) -> None:
        self.entrant = entrant
        self.seconds: list[float] = []
        self.prompt_s: list[float] = []
        self.tokens: list[int] = []
        self.same: list[bool] = []
        self.tally = Tally(lossy=entrant.lossy)

    def add(self, lane: Racer, expected: tuple[tuple[int, ...], ...] | None) -> None:
        """Count a stretch; `expected` is what it should have emitted, where that is known."""
        self.seconds.append(lane.seconds)
        self.prompt_s.append(lane.prompt_s)
        self.tokens.append(sum(map(len, lane.token_ids)))
        if expected is not None:
            self.same.append(lane.token_ids == expected)
        for record in lane.records:
            self.tally.add(record)


class _Book:
    """Keeps count of a run."""

    def __init__(self, matrix: Matrix, report: Report, workloads: int) -> None:
        self._matrix = matrix
        self._report = report
        regimes = workloads * len(matrix.temperatures) * len(matrix.batches) * len(matrix.dtypes)
        self._regimes = regimes
        self._done = 0.0
        self.missing: list[str] = []
        self.skipped: list[str] = []
        self.interrupted = False

    @property
    def progress(self) -> tuple[int, int]:
        """Hundredths of regimes that are done, and that there are."""
        return round(100 * self._done), 100 * self._regimes

    def note_missing(self, why: Sequence[str]) -> None:
        """Peers that do not take part, named once."""
        self.missing += [each for each in why if each not in self.missing]

    def note_skipped(self, why: Iterator[str]) -> None:
        """Prompts that are left out, named once."""
        self.skipped += [each for each in why if each not in self.skipped]

    def measure(self, regime: _Regime, field: Sequence[Entrant]) -> list[Measurement]:
        """Race all entrants under a regime.

        After an interrupt `interrupted` is set, and what was measured of the regime is returned.
        """
        scores: list[_Score] = []
        stretches = regime.stretches(self._matrix.repeats)
        before = self._done
        try:
            self._say(regime, "warming up")
            scores = [_Score(entrant) for entrant in self._warmed_up(regime, field, stretches[0])]
            for index, prompts in enumerate(stretches):
                self._say(regime, f"{index + 1} of {len(stretches)}")
                self._race(regime, scores, prompts, index)
                self._done = before + (index + 1) / len(stretches)
        except KeyboardInterrupt:
            self.interrupted = True
        if not scores or not scores[0].seconds:
            return []
        asked = [self._tokens(prompts) for prompts in stretches[: len(scores[0].seconds)]]
        return [
            _measurement(score, scores[0], regime, asked, partial=self.interrupted)
            for score in scores
        ]

    def _say(self, regime: _Regime, what: str) -> None:
        where = f"{regime.workload.name}, temperature {regime.temperature:g}"
        if len(self._matrix.batches) > 1:
            where += f", batch {regime.batch}"
        self._report(*self.progress, f"{where}: {what}")

    def _tokens(self, prompts: Sequence[Prompt]) -> int:
        return sum(prompt.max_tokens or self._matrix.max_tokens for prompt in prompts)

    def _warmed_up(
        self, regime: _Regime, field: Sequence[Entrant], prompts: Sequence[Prompt]
    ) -> list[Entrant]:
        """The entrants that can decode under this regime, renewed, and after a few tokens."""
        ready: list[Entrant] = []
        for entrant in field:
            own = isinstance(entrant, OutriderEntrant)
            name = entrant.contender.label
            if not own and regime.batch > 1:
                self.note_missing([f"{name}: decodes one sequence at a time, not {regime.batch}"])
                continue
            entrant.renew()
            try:
                in_turn([self._lane(regime, entrant, prompts, 0, WARM_UP)])
            except Exception as error:
                if own:
                    raise
                # Other systems fail as they like; that is no reason to measure nothing.
                shown = " ".join(f"{type(error).__name__}: {error}".split())
                self.note_missing([f"{name}: {shown}"])
                continue
            ready.append(entrant)
        return ready

    def _lane(
        self,
        regime: _Regime,
        entrant: Entrant,
        prompts: Sequence[Prompt],
        seed: int,
        most: int | None = None,
    ) -> Racer:
        params = []
        for prompt in prompts:
            tokens = prompt.max_tokens or self._matrix.max_tokens
            tokens = tokens if most is None else min(tokens, most)
            params.append(
                SamplingParams(max_tokens=tokens, temperature=regime.temperature, ignore_eos=True)
            )
        return entrant.lane([prompt.token_ids for prompt in prompts], params, seed)

    def _race(
        self, regime: _Regime, scores: Sequence[_Score], prompts: Sequence[Prompt], index: int
    ) -> None:
        """A stretch: all of it counts, or an interrupt left it undone and nothing does."""
        whole = not all(isinstance(score.entrant, OutriderEntrant) for score in scores)
        if whole:
            lanes = []
            for place in range(len(scores)):
                score = scores[(place + index) % len(scores)]
                lanes.append(self._lane(regime, score.entrant, prompts, index))
                in_turn(lanes[-1:])
        else:
            rotated = [scores[(place + index) % len(scores)] for place in range(len(scores))]
            lanes = [self._lane(regime, score.entrant, prompts, index) for score in rotated]
            in_turn(lanes)
        shift = index % len(scores)
        lanes = [*lanes[len(lanes) - shift :], *lanes[: len(lanes) - shift]]
        plain = lanes[0].token_ids
        expected = [
            self._expected(regime, score.entrant, prompts, index, plain) for score in scores
        ]
        for score, lane, tokens in zip(scores, lanes, expected, strict=True):
            score.add(lane, tokens)

    def _expected(
        self,
        regime: _Regime,
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
            lane = self._lane(regime, entrant.undrafted(), prompts, seed)
            in_turn([lane])
            return lane.token_ids
        return None


def _measurement(
    score: _Score, plain: _Score, regime: _Regime, asked: Sequence[int], *, partial: bool
) -> Measurement:
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    if score.tokens == plain.tokens == list(asked):
        ratio, low, high = speedup(plain.seconds, plain.tokens, score.seconds, score.tokens)
    if len(asked) < 2:
        low = high = None
    return Measurement(
        contender=score.entrant.contender,
        workload=regime.workload.name,
        temperature=regime.temperature,
        batch=regime.batch,
        dtype=regime.dtype,
        seconds=tuple(score.seconds),
        tokens=tuple(score.tokens),
        metrics=score.tally.metrics(),
        identical=sum(score.same) if score.same else None,
        speedup=ratio,
        low=low,
        high=high,
        prompt_s=tuple(score.prompt_s),
        partial=partial,
    )
