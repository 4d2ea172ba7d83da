"""Load a target and a draft: the demo pair, or any two models by path or hub id."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import torch

from ..config.params import SpeculativeConfig
from ..config.saved import read_saved
from ..config.sources import Dtype, RuntimeName, Weights, is_gguf, model_source
from ..config.validation import choice, integer
from ..drafters.base import Drafter
from ..drafters.heads.checkpoint import head_folder
from ..drafters.model import ModelDrafter
from ..errors import InvalidConfigError, missing
from ..runtimes.base import Runtime
from ..runtimes.loading import LoadOptions, load_model, load_tokenizer
from .methods import make_drafter

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pair:
    """A target, what drafts for it, and the target's tokenizer.

    Attributes:
        target: the target.
        model_drafter: the draft model alone; None if none was asked for.
        tokenizer: the target's.
        method: what is to draft; None takes the draft model beside look-ups, if there is one.
        config: how speculation is to be done, if `load` was given a file of settings.
        drafter: what `method` names: usually the draft model beside a look-up of what came before
            and of what is expected, as `HybridDrafter.usual` makes it; None without a draft model.
    """

    target: Runtime
    model_drafter: ModelDrafter | None
    tokenizer: Any
    method: str | None = None
    config: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    drafter: Drafter | None = field(init=False)

    def __post_init__(self) -> None:
        usual = "none" if self.model_drafter is None else "hybrid"
        drafter = make_drafter(self.method or usual, self.target, self.model_drafter)
        object.__setattr__(self, "drafter", drafter)


def load(
    target: str | Path = "demo",
    draft: str | Path | None = None,
    *,
    config: str | Path | None = None,
    runtime: RuntimeName = "auto",
    device: str | torch.device | None = None,
    dtype: str | torch.dtype = "auto",
    weights: Weights | None = None,
    max_sequences: int = 8,
    kv_cache_memory: int | None = None,
) -> Pair:
    """Load a target, and a draft to speculate with.

    Args:
        target: "demo" for the pair of the `demo` extra (no network is used), a local folder, a GGUF
            file, or a hub id.
        draft: the draft model likewise, "demo" being that pair's; None loads none, except with
            "demo". If its tokenizer is not the target's, a `VocabularyDrafter` goes between them.
            Or a draft head, as speculators and the authors of EAGLE-3 and DFlash save them: a
            folder, a hub id, or "demo-head" for the demo target's. Or "mtp": the layer for
            multi-token prediction in the target's own checkpoint.
        config: a file that `outrider tune --save` wrote: its models take the place of those above,
            and the pair has its drafter and `config`. None for none.
        runtime: what computes both. "auto" chooses for each: llama.cpp for a GGUF file; on a CPU
            OpenVINO, where it is installed and the model converts; else transformers, which with
            "openvino" or "transformers" also reads a GGUF file.
        device: where both live, as torch names it; None takes CUDA if there is any, else the CPU.
            With llama.cpp "cpu" keeps a GPU out, and a model of transformers beside it is on the
            CPU.
        dtype: of both: "float32", "float64", "bfloat16", "float16", torch's own object for one of
            these, or "auto" for the checkpoints' own, and float32 for the demo pair.
        weights: "int8" or "int4" rounds both models' weights, with runtime "openvino": other
            models then. None leaves them.
        max_sequences: how many sequences may be decoded together.
        kv_cache_memory: bytes that the keys and values of each model may take; None for what
            `max_sequences` of the longest texts need, or half of what is free. llama.cpp has a
            cache of its own, which grows with what is used of it.

    Raises:
        ModelError: a model cannot be found, read, or decoded speculatively.
        VocabMismatchError: the two models' tokenizers differ, and no token is common to both.
        InvalidConfigError: an argument is of the wrong type, does not suit the others, or the
            device is not available.
        MissingExtraError: a package that this needs is not installed.
    """
    if config is not None:
        given, method, speculation = read_saved(config)
        asked = {"max_sequences": max_sequences, "kv_cache_memory": kv_cache_memory} | given
        return replace(load(**asked), method=method, config=speculation)
    named = [model_source("target", target)]
    named += [] if draft is None else [model_source("draft", draft)]
    choice("runtime", runtime, get_args(RuntimeName))
    number = str(dtype).removeprefix("torch.")
    if not isinstance(dtype, str | torch.dtype) or number not in get_args(Dtype):
        raise InvalidConfigError("dtype", dtype, f"one of {', '.join(get_args(Dtype))}")
    if weights is not None:
        choice("weights", weights, get_args(Weights))
    integer("max_sequences", max_sequences, 1)
    if kv_cache_memory is not None:
        integer("kv_cache_memory", kv_cache_memory, 1)
    if named == ["demo"]:
        named.append("demo")
    if set(named) <= {"demo", "demo-head"} and number == "auto":
        number = "float32"
    place = _device(device)
    if runtime in ("auto", "llama_cpp") and any(map(is_gguf, named)):
        place = torch.device("cpu")  # where llama.cpp gives its logits
    accelerated = str(device) != "cpu"
    how = LoadOptions(runtime, place, number, weights, max_sequences, accelerated, kv_cache_memory)
    own = named[1:] == ["mtp"]
    if named[1:]:
        _LOG.info("loading %s", named[1])
    head = None if own or len(named) == 1 else head_folder(named[1])
    sources = list(map(_shipped, named[: 1 if head or own else 2], ("target", "draft")))
    tokenizers = [given or load_tokenizer(source, how) for source, given in sources]
    models = [
        load_model(role, source, how)
        for role, (source, _) in zip(("target", "draft"), sources, strict=False)
    ]
    loaded, tokenizer = models[0], tokenizers[0]
    if head is not None:
        from ..drafters.heads.loading import load_head

        headed = load_head(head, loaded, kv_cache_memory=kv_cache_memory)
        return Pair(loaded, headed, tokenizer)
    if own:
        from ..drafters.heads.loading import load_mtp

        return Pair(loaded, load_mtp(loaded, kv_cache_memory=kv_cache_memory), tokenizer)
    if len(models) == 1:
        return Pair(loaded, None, tokenizer)
    model, draft_tokenizer = models[1], tokenizers[1]
    if draft_tokenizer.get_vocab() == tokenizer.get_vocab():
        return Pair(loaded, ModelDrafter(model, loaded.vocab_size), tokenizer)
    from ..drafters.vocabulary.drafter import VocabularyDrafter

    drafter = VocabularyDrafter(model, draft_tokenizer, tokenizer, loaded.vocab_size)
    _LOG.info(
        "the tokenizers of target %r (%d tokens) and draft %r (%d tokens) differ and have %d "
        "tokens in common: drafting by %s",
        named[0],
        len(tokenizer),
        named[1],
        len(draft_tokenizer),
        drafter.common,
        drafter.match,
    )
    return Pair(loaded, drafter, tokenizer)


def _shipped(name: str, role: str) -> tuple[str, Any]:
    """Return where a model is, and its tokenizer if the demo pair brings it."""
    if name != "demo":
        return name, None
    with missing("demo"):
        import outrider_demo as demo
    with missing("transformers"):
        tokenizer = demo.tokenizer()
    return str(demo.TARGET if role == "target" else demo.DRAFT), tokenizer


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
        reason = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
        expected = f"{expected} ({reason})"
        raise InvalidConfigError("device", given, expected) from error
    return device
