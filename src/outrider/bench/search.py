"""The ways of decoding that a tuner chooses from, and the decoders that they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..config.params import LOSSY, SamplingParams
from ..engine.compatibility import parts_of
from ..engine.decoder import SpeculativeDecoder
from ..errors import InvalidConfigError
from ..types.protocols import Drafter, Target, Tokenizer, is_bounded
from .contending import DRAFTERS, PLAIN, config_of, drafter_of
from .records import Contender

DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
SHAPES = ((2, 1, 1), (2, 2, 1, 1), (4, 2, 1, 1))

_USUAL = ("hybrid", "draft_model", "ngram", "suffix")
"""Which of the drafters there are is used by default: the first."""


@dataclass(frozen=True, slots=True)
class Models:
    """A pair of models.

    Attributes:
        target: the target.
        drafter: drafts with a model; None if there is none.
        tokenizer: of both; None where prompts are token ids.
        dtype: of both, for reports.
    """

    target: Target
    drafter: Drafter | None = None
    tokenizer: Tokenizer | None = None
    dtype: str = "float32"

    def decoder(self, contender: Contender) -> SpeculativeDecoder:
        """A decoder that decodes as a contender does."""
        return SpeculativeDecoder(
            self.target,
            drafter_of(contender.drafter, self.drafter),
            tokenizer=self.tokenizer,
            config=config_of(contender),
        )

    def groups(self, contenders: Sequence[Contender], batch: int) -> list[list[Contender]]:
        """Contenders that decode side by side: as many as there are slots for, beside plain.

        Raises:
            InvalidConfigError: there is no room for two batches of this size.
        """
        parts = parts_of(self.target, self.drafter)
        cached = [part for part in parts if is_bounded(part)]
        room = min((part.max_sequences for part in cached), default=None)
        together = max(1, len(contenders)) if room is None else room // batch - 1
        if together < 1:
            raise InvalidConfigError(
                "batch", batch, f"at most {(room or 0) // 2}, half the models' max_sequences"
            )
        return [
            list(contenders[first : first + together])
            for first in range(0, len(contenders), together)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What a tuner looks at.

    Attributes:
        drafters: some of `DRAFTERS`.
        verifications: lossless methods, by name.
        depths: the depths of drafts.
        shapes: of trees, drafted by a draft model; none for chains alone.
        temperatures: of requests; what is recommended is the best over all of them.
        batch: sequences decoded together.
        params: of every request, but for the temperature; every text has all of `max_tokens`.
        checks: how many of the best are run for real, the adaptive default apart.
        verify: how many predictions are compared with a run, in all: those by formula or replay
            first, of all kinds and at all temperatures alike, as many as the best leave over. A
            prediction is of a configuration at one temperature.
        repeats: how often each prompt is decoded in such a run: twice or more tell how far a run
            may be off.

    Raises:
        InvalidConfigError: a value is not allowed.
    """

    drafters: tuple[str, ...] = DRAFTERS
    verifications: tuple[str, ...] = ("block", "token")
    depths: tuple[int, ...] = DEPTHS
    shapes: tuple[tuple[int, ...], ...] = SHAPES
    temperatures: tuple[float, ...] = (0.0, 0.8)
    batch: int = 1
    params: SamplingParams = field(
        default_factory=lambda: SamplingParams(max_tokens=96, ignore_eos=True)
    )
    checks: int = 3
    verify: int = 0
    repeats: int = 2

    def __post_init__(self) -> None:
        for name, values, allowed in (
            ("drafters", self.drafters, DRAFTERS),
            ("verifications", self.verifications, None),
            ("depths", self.depths, None),
            ("temperatures", self.temperatures, None),
        ):
            if not values or len(set(values)) < len(values):
                raise InvalidConfigError(name, values, "one or more, each once")
            for value in values:
                if allowed is not None and value not in allowed:
                    raise InvalidConfigError(name, value, f"some of {', '.join(allowed)}")
        for name, number, least in (
            ("batch", self.batch, 1),
            ("checks", self.checks, 1),
            ("verify", self.verify, 0),
            ("repeats", self.repeats, 1),
        ):
            if not isinstance(number, int) or number < least:
                raise InvalidConfigError(name, number, f"an integer >= {least}")
        if not self.params.ignore_eos or self.params.n > 1 or self.params.max_tokens < 2:
            raise InvalidConfigError(
                "params", self.params, "ignore_eos, n = 1 and max_tokens >= 2, to compare lengths"
            )
        for lossy in LOSSY.intersection(self.verifications):
            raise InvalidConfigError("verifications", lossy, "lossless methods")
        for depth in self.depths:
            if not isinstance(depth, int) or depth < 1:
                raise InvalidConfigError("depths", depth, "integers >= 1")
        for contender in self.contenders():
            config_of(contender)
        for temperature in self.temperatures:
            self.sampling(temperature)

    def sampling(self, temperature: float) -> SamplingParams:
        """The parameters of a request at a temperature."""
        return replace(self.params, temperature=temperature)

    def contenders(self) -> tuple[Contender, ...]:
        """Every configuration of a fixed depth, plain decoding first."""
        chains = [
            Contender("outrider", drafter, method, depth)
            for drafter in self.drafters
            for method in self.verifications
            for depth in self.depths
        ]
        trees = [
            Contender("outrider", "draft_model", method, len(shape), shape)
            for shape in self.shapes
            for method in self.verifications
            if "draft_model" in self.drafters
        ]
        return (PLAIN, *chains, *trees)

    def default(self) -> Contender:
        """What `outrider` does by default, with what may draft: an adaptive depth."""
        drafter = next(name for name in _USUAL if name in self.drafters)
        return Contender("outrider", drafter, "block")
