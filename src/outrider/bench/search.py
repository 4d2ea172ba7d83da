"""The ways of decoding that a tuner chooses from, and the decoders that they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..config import LOSSY, SamplingParams, SpeculativeConfig
from ..drafters.hybrid import HybridDrafter
from ..drafters.ngram import NgramDrafter
from ..drafters.prediction import PredictionDrafter
from ..drafters.suffix import SuffixDrafter
from ..engine import SpeculativeDecoder
from ..errors import InvalidConfigError
from ..protocols import DraftModel, TargetModel, Tokenizer
from .records import Contender

DRAFTERS = ("draft_model", "ngram", "suffix", "hybrid")
WITH_MODEL = ("draft_model", "hybrid")
LOOKUPS = ("ngram", "suffix")
DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
SHAPES = ((2, 1, 1), (2, 2, 1, 1), (4, 2, 1, 1))
PLAIN = Contender("outrider", "none")


@dataclass(frozen=True, slots=True)
class Models:
    """A pair of models.

    Attributes:
        target: the target.
        drafter: drafts with a model; None if there is none.
        tokenizer: of both; None where prompts are token ids.
        dtype: of both, for reports.
    """

    target: TargetModel
    drafter: DraftModel | None = None
    tokenizer: Tokenizer | None = None
    dtype: str = "float32"

    def drafter_of(self, name: str) -> DraftModel | None:
        """A drafter by its name on the command line, fresh where it remembers anything."""
        match name:
            case "none":
                return None
            case "ngram":
                return NgramDrafter()
            case "suffix":
                return SuffixDrafter()
            case "hybrid" if self.drafter is not None:
                return HybridDrafter(self.drafter, SuffixDrafter(), PredictionDrafter())
            case "draft_model" if self.drafter is not None:
                return self.drafter
        raise InvalidConfigError("drafter", name, "one that needs no draft model, or a pair")

    def decoder(self, contender: Contender) -> SpeculativeDecoder:
        """A decoder that decodes as a contender does."""
        return SpeculativeDecoder(
            self.target,
            self.drafter_of(contender.drafter),
            tokenizer=self.tokenizer,
            config=config_of(contender),
        )


def config_of(contender: Contender) -> SpeculativeConfig:
    """How a contender speculates; its depth is fixed if it says one."""
    config = SpeculativeConfig(
        num_speculative_tokens=contender.num_speculative_tokens,
        depth="adaptive" if contender.num_speculative_tokens is None else "fixed",
        tree_shape=contender.tree_shape,
    )
    if contender.verification is None:
        return config
    # A name that there is not is refused by the record.
    return replace(config, verification=contender.verification)  # type: ignore[arg-type]


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
        verify: how many configurations of all kinds are run, to compare with their predictions.
        repeats: how often each prompt is decoded in such a run.

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
        """What `outrider` does by default: an adaptive depth."""
        names: Sequence[str] = ("draft_model", *self.drafters)
        drafter = next(name for name in names if name in self.drafters)
        return Contender("outrider", drafter, "block")
