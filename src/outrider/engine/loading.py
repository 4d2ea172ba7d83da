"""Loading a target and a draft: the pair that ships, or any two models by path or hub id."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import outrider_demo as demo

from ..drafters.hybrid import HybridDrafter
from ..drafters.model import ModelDrafter
from ..drafters.vocabulary.drafter import VocabularyDrafter
from ..errors import InvalidConfigError, ModelError
from ..runtimes.transformers.model import TransformersModel

_LOG = logging.getLogger(__name__)
_DTYPES = ("auto", "float32", "float64", "bfloat16", "float16")


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
    device: str | None = None,
    dtype: str | torch.dtype | None = "auto",
    max_sequences: int = 8,
) -> Pair:
    """Load a target, and a draft to speculate with.

    Args:
        target: "demo" for the pair that ships with the package (no network is used), a local path,
            or a hub id.
        draft: the draft model's path or hub id; None loads none, except with "demo". If its
            tokenizer is not the target's, a `VocabularyDrafter` goes between them.
        device: where both live, as torch names it; None takes CUDA if there is any, else the CPU.
        dtype: of both: "float32", "float64", "bfloat16", "float16", or torch's name for one of
            these. "auto" and None take each checkpoint's own, and float32 for the pair that ships,
            so that its texts are the same everywhere.
        max_sequences: how many sequences may be decoded together.

    Raises:
        ModelError: a model cannot be found, read, or decoded speculatively.
        VocabMismatchError: the two models' tokenizers differ, and no token is common to both.
        InvalidConfigError: the device or dtype is not available.
    """
    for name, source in (("target", target), ("draft", draft)):
        if not isinstance(source, str | Path | None):
            raise InvalidConfigError(name, source, "'demo', a path or a hub id")
    place = _device(device)
    number = "auto" if dtype is None else str(dtype).removeprefix("torch.")
    if number not in _DTYPES:
        raise InvalidConfigError("dtype", number, f"one of {', '.join(_DTYPES)}")
    if str(target) == "demo":
        number = "float32" if number == "auto" else number
        paths = str(demo.TARGET), str(draft or demo.DRAFT)
        tokenizer = demo.tokenizer()
        draft_tokenizer = tokenizer if draft is None else _tokenizer(paths[1])
    else:
        paths = _source(target), "" if draft is None else _source(draft)
        tokenizer = _tokenizer(paths[0])
        draft_tokenizer = _tokenizer(paths[1]) if paths[1] else None
    loaded = _model("target", paths[0], place, number, max_sequences)
    if not paths[1]:
        return Pair(loaded, None, tokenizer)
    model = _model("draft", paths[1], place, number, max_sequences)
    if draft_tokenizer.get_vocab() == tokenizer.get_vocab():
        return Pair(loaded, ModelDrafter(model, loaded.vocab_size), tokenizer)
    drafter = VocabularyDrafter(model, draft_tokenizer, tokenizer, loaded.vocab_size)
    _LOG.info(
        "the tokenizers of target %r (%d tokens) and draft %r (%d tokens) differ and have %d "
        "tokens in common: drafting by %s",
        paths[0],
        len(tokenizer),
        paths[1],
        len(draft_tokenizer),
        drafter.common,
        drafter.match,
    )
    return Pair(loaded, drafter, tokenizer)


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidConfigError(
            "device", name, f"a device torch can use here, such as 'cpu' ({_first_line(error)})"
        ) from error
    return device


def _model(
    role: str,
    source: str,
    device: torch.device,
    dtype: str,
    max_sequences: int,
) -> TransformersModel:
    weights = _weights(source, device, dtype)
    try:
        return TransformersModel(weights, max_sequences=max_sequences)
    except ModelError as error:
        raise ModelError(f"the {role} {source!r} cannot be used: {error}") from error


def _weights(source: str, device: torch.device, dtype: str) -> Any:
    _refuse_missing(source)
    try:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    except Exception as error:
        raise ModelError(
            f"cannot load the model {source!r}: {_first_line(error)}; expected a folder with "
            "config.json and complete weights, or the id of a hub model that can be reached"
        ) from error
    return model.to(device)


def _tokenizer(source: str) -> Any:
    _refuse_missing(source)
    try:
        return AutoTokenizer.from_pretrained(source)
    except Exception as error:
        raise ModelError(
            f"cannot load the tokenizer of {source!r}: {_first_line(error)}; expected a folder "
            "with tokenizer.json, or the id of a hub model that can be reached"
        ) from error


def _source(given: str | Path) -> str:
    """As transformers takes it; a `Path` is no hub id, and looks like none."""
    if not str(given):
        raise InvalidConfigError("target or draft", given, "'demo', a path or a hub id")
    return (
        os.path.expanduser(given) if isinstance(given, str) else str(given.expanduser().absolute())
    )


def _refuse_missing(source: str) -> None:
    """A path that is not there is no hub id: one slash at most, and none at the ends."""
    path = Path(source)
    if path.is_file():
        raise ModelError(f"{source!r} is a file; expected a folder with config.json, or a hub id")
    like_a_path = source.startswith(".") or source.endswith("/") or "\\" in source
    if not path.exists() and (path.is_absolute() or like_a_path or source.count("/") > 1):
        raise ModelError(
            f"there is no model at {source!r}; expected an existing folder with config.json, a "
            "hub id such as 'owner/name', or 'demo'"
        )
    if path.is_dir() and not (path / "config.json").is_file():
        raise ModelError(
            f"the folder {source!r} has no config.json; expected a model saved by transformers"
        )


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
