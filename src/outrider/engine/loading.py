"""Load a target and a draft: the demo pair, or any two models by path or hub id."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..config.sources import DTYPES, model_source
from ..config.validation import integer
from ..drafters.hybrid import HybridDrafter
from ..drafters.model import ModelDrafter
from ..drafters.vocabulary.drafter import VocabularyDrafter
from ..errors import InvalidConfigError, ModelError, missing

with missing("transformers"):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from ..runtimes.transformers.model import TransformersModel

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pair:
    """A target, what drafts for it, and the target's tokenizer.

    Attributes:
        target: the target.
        model_drafter: the draft model alone; None if none was asked for.
        tokenizer: the target's.
        drafter: the draft model beside a look-up of what came before and of what is expected, as
            `HybridDrafter.usual` makes it; None without a draft model.
    """

    target: TransformersModel
    model_drafter: ModelDrafter | VocabularyDrafter | None
    tokenizer: Any
    drafter: HybridDrafter | None = field(init=False)

    def __post_init__(self) -> None:
        model = self.model_drafter
        usual = None if model is None else HybridDrafter.usual(model)
        object.__setattr__(self, "drafter", usual)


def load(
    target: str | Path = "demo",
    draft: str | Path | None = None,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype = "auto",
    max_sequences: int = 8,
) -> Pair:
    """Load a target, and a draft to speculate with.

    Args:
        target: "demo" for the pair of the `demo` extra (no network is used), a local path, or a hub
            id.
        draft: the draft model's path or hub id; None loads none, except with "demo". If its
            tokenizer is not the target's, a `VocabularyDrafter` goes between them.
        device: where both live, as torch names it; None takes CUDA if there is any, else the CPU.
        dtype: of both: "float32", "float64", "bfloat16", "float16", torch's own object for one of
            these, or "auto" for the checkpoints' own, and float32 for the demo pair.
        max_sequences: how many sequences may be decoded together.

    Raises:
        ModelError: a model cannot be found, read, or decoded speculatively.
        VocabMismatchError: the two models' tokenizers differ, and no token is common to both.
        InvalidConfigError: an argument is of the wrong type, or the device is not available.
        MissingExtraError: a package that this needs is not installed.
    """
    sources = [model_source("target", target)]
    sources.append("" if draft is None else model_source("draft", draft))
    place = _device(device)
    number = str(dtype).removeprefix("torch.")
    if not isinstance(dtype, str | torch.dtype) or number not in DTYPES:
        raise InvalidConfigError("dtype", dtype, f"one of {', '.join(DTYPES)}")
    integer("max_sequences", max_sequences, 1)
    shipped: dict[str, Any] = {}
    if str(target) == "demo":
        with missing("demo"):
            import outrider_demo as demo
        sources = [str(demo.TARGET), sources[1] or str(demo.DRAFT)]
        shipped = dict.fromkeys((str(demo.TARGET), str(demo.DRAFT)), demo.tokenizer())
        number = "float32" if number == "auto" else number
    tokenizers = [
        shipped[source] if source in shipped else _tokenizer(source)
        for source in filter(None, sources)
    ]
    loaded = _model("target", sources[0], place, number, max_sequences)
    if not sources[1]:
        return Pair(loaded, None, tokenizers[0])
    model = _model("draft", sources[1], place, number, max_sequences)
    tokenizer, draft_tokenizer = tokenizers
    if draft_tokenizer.get_vocab() == tokenizer.get_vocab():
        return Pair(loaded, ModelDrafter(model, loaded.vocab_size), tokenizer)
    drafter = VocabularyDrafter(model, draft_tokenizer, tokenizer, loaded.vocab_size)
    _LOG.info(
        "the tokenizers of target %r (%d tokens) and draft %r (%d tokens) differ and have %d "
        "tokens in common: drafting by %s",
        sources[0],
        len(tokenizer),
        sources[1],
        len(draft_tokenizer),
        drafter.common,
        drafter.match,
    )
    return Pair(loaded, drafter, tokenizer)


def _device(given: str | torch.device | None) -> torch.device:
    """Return a device that can be used."""
    if given is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    expected = "a device torch can use here, such as 'cpu'"
    if not isinstance(given, str | torch.device):
        raise InvalidConfigError("device", given, expected)
    try:
        device = torch.device(given)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        expected = f"{expected} ({_first_line(error)})"
        raise InvalidConfigError("device", given, expected) from error
    return device


def _model(
    role: str, source: str, device: torch.device, dtype: str, max_sequences: int
) -> TransformersModel:
    """Load one model."""
    with _loading(f"model {source!r}", "config.json and complete weights"):
        weights: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    try:
        return TransformersModel(weights.to(device), max_sequences=max_sequences)
    except ModelError as error:
        raise ModelError(f"the {role} {source!r} cannot be used: {error}") from error


def _tokenizer(source: str) -> Any:
    without = "tokenizer.json (without one TransformersModel(model) decodes token ids)"
    with _loading(f"tokenizer of {source!r}", without):
        return AutoTokenizer.from_pretrained(source)


@contextmanager
def _loading(what: str, files: str) -> Iterator[None]:
    """Raise a ModelError where transformers raises anything."""
    try:
        yield
    except Exception as error:
        raise ModelError(
            f"cannot load the {what}: {_first_line(error)}; expected a folder with {files}, or the "
            "id of a hub model that can be reached"
        ) from error


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
