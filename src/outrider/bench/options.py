"""The options of `outrider bench` and `outrider tune`, as frozen records.

The command line makes its flags of these fields and their docstrings; tuples are written with
commas between their values. Nothing here loads a framework.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from ..config.params import LOSSY, WITH_MODEL, SamplingParams, Verification
from ..config.sources import Dtype, RuntimeName, Weights, model_source
from ..config.validation import Check, integer, real, shape_of, unreadable
from ..errors import InvalidConfigError

Progress = Callable[[int, int, str], object]
"""Receives the steps done, the steps in all, and what comes next."""

Workloads = Literal["code", "editing", "json", "chat", "random"]
TunedDrafters = Literal["draft_model", "ngram", "suffix", "hybrid"]
Depth = int | Literal["adaptive"]
Peers = Literal["transformers", "llama.cpp", "openvino-genai", "none"]
Engines = Literal["vllm", "sglang", "tensorrt-llm", "llama.cpp"]


def silent(_done: int, _total: int, _what: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """What both commands ask for: models, and files of prompts."""

    target: str = "demo"
    """The target model: `demo`, a local folder, a GGUF file or a hub id."""
    draft: str | None = None
    """The draft model: a local folder, a GGUF file or a hub id; or a draft head."""
    runtime: RuntimeName = "auto"
    """What computes both models."""
    dtype: Dtype | None = None
    """Type of both models' weights (default: as `outrider.load`)."""
    device: str | None = None
    """The device, as torch names it (default: cuda if there is one)."""
    weights: Weights | None = None
    """What openvino rounds both models' weights to (default: nothing)."""
    prompts: tuple[Path, ...] = ()
    """Files, with commas between them, in place of built-in prompts: JSONL with rows that have a
    prompt, of Spec-Bench, or OpenAI batch requests; any other text file is one prompt."""

    def __post_init__(self) -> None:
        """Check all fields, and the items of tuples; None is the default."""
        for item in fields(self):
            name, value = item.name, getattr(self, item.name)
            if value == () and name not in _MAY_BE_EMPTY:
                raise InvalidConfigError(name, value, "at least one value")
            items = value if isinstance(value, tuple) else (value,)
            if len(set(items)) < len(items):
                raise InvalidConfigError(name, value, "each value only once")
            for each in items:
                if each is not None and name in _CHECKS:
                    _CHECKS[name](name, each)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions(_Options):
    """What `outrider bench` measures.

    Raises:
        InvalidConfigError: a value is out of its range, or two contradict each other.
    """

    quick: bool = False
    """A small matrix that takes minutes: three workloads, adaptive depth, 40 tokens."""
    workloads: tuple[Workloads, ...] | None = None
    """Kinds of built-in prompts (default: all; with --quick code, json and random)."""
    prompts_per_workload: int = 4
    """How many built-in prompts of each kind."""
    max_tokens: int | None = None
    """Tokens to emit for each prompt (default: 128; with --quick 40)."""
    drafters: tuple[TunedDrafters, ...] | None = None
    """What drafts (default: draft_model and hybrid, or without a draft suffix and ngram)."""
    verification: tuple[Verification, ...] = ("block",)
    """Verification methods."""
    k: tuple[Depth, ...] | None = None
    """Depths: tokens drafted in a row, or adaptive (default: 4,adaptive; with --quick adaptive)."""
    trees: tuple[str, ...] = ()
    """Trees, as children at each depth, such as 2x2x1."""
    temps: tuple[float, ...] = (0.0, 0.8)
    """Temperatures, each measured in turn."""
    batches: tuple[int, ...] = (1,)
    """How many sequences are decoded together, each measured in turn."""
    repeats: int = 1
    """How often every prompt is decoded."""
    peers: tuple[Peers, ...] = ("transformers",)
    """Other systems on the same weights, or none, at the fixed depths of -k, else 4; llama.cpp and
    openvino-genai take a GGUF file as the target."""

    def __post_init__(self) -> None:
        _Options.__post_init__(self)
        if self.lossy and "hybrid" in (self.drafters or ()):
            expected = f"draft_model beside {self.lossy[0]}, which takes a model's drafts alone"
            raise InvalidConfigError("drafters", "hybrid", expected)

    @property
    def lossy(self) -> tuple[str, ...]:
        """The verification methods that change the output's distribution."""
        return tuple(name for name in self.verification if name in LOSSY)

    @property
    def chosen_workloads(self) -> tuple[str, ...]:
        """The kinds of built-in prompts, defaults filled in."""
        quick = ("code", "json", "random")
        return self.workloads or (quick if self.quick else get_args(Workloads))

    @property
    def tokens(self) -> int:
        """`max_tokens`, defaults filled in."""
        return self.max_tokens or (40 if self.quick else 128)

    @property
    def depths(self) -> tuple[int | None, ...]:
        """`k` with defaults filled in; None is adaptive."""
        given = self.k or (("adaptive",) if self.quick else (4, "adaptive"))
        return tuple(None if depth == "adaptive" else depth for depth in given)

    def chosen_drafters(self, has_model: bool) -> tuple[str, ...]:
        """Return what drafts, defaults filled in, for a pair with or without a draft model."""
        if self.drafters is not None:
            return self.drafters
        if not has_model:
            return ("suffix", "ngram")
        return ("draft_model",) if self.lossy else ("draft_model", "hybrid")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions(_Options):
    """Which configurations `outrider tune` tries, and on what.

    Raises:
        InvalidConfigError: a value is out of its range, or two contradict each other.
    """

    budget: float = 180.0
    """Seconds that it may take, loading apart."""
    max_prompts: int = 8
    """How many of the prompts are used."""
    drafters: tuple[TunedDrafters, ...] | None = None
    """What may draft (default: all that the models allow)."""
    depths: tuple[int, ...] = (1, 2, 4, 8)
    """Tokens drafted in a row; the adaptive depth always takes part."""
    tree_shape: tuple[str, ...] = ()
    """Trees to try beside chains, as children at each depth, such as 2x2x1."""
    context: int | None = None
    """Tokens before those that are timed (default: as many as the prompts have)."""
    batch: int = 1
    """How many sequences are decoded together."""
    temp: tuple[float, ...] = (0.0, 0.8)
    """Temperatures of requests; the recommendation is the best over all of them."""
    top_p: float = 1.0
    """Keep the most likely tokens up to this mass, in (0, 1]."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this many times as likely as the most likely one, in [0, 1]."""
    max_tokens: int = 64
    """Tokens of each text; end-of-text is ignored."""
    export: tuple[Engines, ...] = get_args(Engines)
    """Engines in whose words the recommendation is written, too."""
    schedule: tuple[int, ...] = (1, 4, 16)
    """Batch sizes for which these are given depths, as far as there is time to measure them."""

    def __post_init__(self) -> None:
        _Options.__post_init__(self)
        integer("max_tokens", self.max_tokens, 16)
        if not self.has_model and (models := set(self.drafters or ()) & set(WITH_MODEL)):
            raise InvalidConfigError("drafters", min(models), "a draft model beside it")

    def sampling(self, temperature: float) -> SamplingParams:
        """Return the parameters of every request at a temperature."""
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            ignore_eos=True,
        )

    @property
    def has_model(self) -> bool:
        """Whether there is a draft model."""
        return self.draft is not None or self.target == "demo"

    @property
    def chosen_drafters(self) -> tuple[str, ...]:
        """What may draft, defaults filled in."""
        lookups = ("ngram", "suffix")
        return self.drafters or ((*WITH_MODEL, *lookups) if self.has_model else lookups)


def _there(name: str, value: Path) -> object:
    if not value.exists():
        raise unreadable(name, value, "files of prompts")
    return value


def _depth(name: str, value: object) -> object:
    expected = "integers >= 1, or adaptive; plain decoding always takes part"
    return value == "adaptive" or integer(name, value, 1, expected=expected)


def _temperature(name: str, value: object) -> object:
    expected = "0, or a number from 1e-6 to 1e30"
    return real(name, value, expected, lambda each: each == 0 or 1e-6 <= each <= 1e30)


_MAY_BE_EMPTY = ("prompts", "trees", "tree_shape", "export", "schedule")
_COUNTS = ("prompts_per_workload", "max_tokens", "repeats", "batches", "max_prompts", "batch")
_CHECKS: dict[str, Check] = {
    **dict.fromkeys(("target", "draft"), model_source),
    **dict.fromkeys((*_COUNTS, "depths", "context", "schedule"), partial(integer, low=1)),
    **dict.fromkeys(("temps", "temp"), _temperature),
    **dict.fromkeys(("trees", "tree_shape"), shape_of),
    "prompts": _there,
    "k": _depth,
    "budget": partial(real, expected="seconds, at least 1", allowed=lambda each: each >= 1),
}
"""What is refused of a field of either record, or of an item of it."""
