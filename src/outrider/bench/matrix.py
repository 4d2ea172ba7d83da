"""What is to be measured, and under which regimes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from ..config.params import SamplingParams
from ..errors import InvalidConfigError
from .records import Contender, Prompt, Workload


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
class Regime:
    """What all contenders of a comparison have in common.

    Attributes:
        workload: what is decoded.
        temperature: of every request.
        batch: sequences decoded together.
        dtype: of both models.
        max_tokens: to emit for a prompt that does not say itself.
    """

    workload: Workload
    temperature: float
    batch: int
    dtype: str
    max_tokens: int

    @property
    def label(self) -> str:
        """For people who wait."""
        batch = f", batch {self.batch}" if self.batch > 1 else ""
        return f"{self.workload.name}, temperature {self.temperature:g}{batch}"

    def stretches(self, repeats: int) -> list[tuple[Prompt, ...]]:
        """The batches of prompts, all of them `repeats` times.

        Where prompts are too few for the last batch, or for any, some come twice in it.
        """
        prompts = self.workload.prompts
        once = [
            tuple(prompts[(first + place) % len(prompts)] for place in range(self.batch))
            for first in range(0, self.batch * ceil(len(prompts) / self.batch), self.batch)
        ]
        return once * repeats

    def tokens(self, prompts: Sequence[Prompt]) -> int:
        """How many tokens a batch is to emit."""
        return sum(self._most(prompt) for prompt in prompts)

    def params(self, prompts: Sequence[Prompt], most: int | None = None) -> list[SamplingParams]:
        """The parameters of each request of a batch, of `most` tokens at most."""
        return [
            SamplingParams(
                max_tokens=min(self._most(prompt), most or self._most(prompt)),
                temperature=self.temperature,
                ignore_eos=True,
                prediction=prompt.prediction,
            )
            for prompt in prompts
        ]

    def _most(self, prompt: Prompt) -> int:
        return prompt.max_tokens or self.max_tokens
