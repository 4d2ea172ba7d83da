"""Load a model by path or hub id, in the runtime that suits it, and its tokenizer."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ..config.sources import RuntimeName, Weights, is_gguf
from ..errors import InvalidConfigError, ModelError, missing
from . import kept
from .base import Runtime

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How models are to be loaded.

    Attributes:
        runtime: what computes them; "auto" takes what suits each.
        device: where models of transformers live.
        dtype: the name of a type, or "auto" for the checkpoint's own.
        weights: to what openvino rounds the weights; None leaves them.
        max_sequences: how many sequences may be decoded together.
        accelerated: whether llama.cpp may use what it was built for beside the processor.
        kv_cache_memory: bytes for keys and values, of all runtimes but llama.cpp; None for the
            usual.
    """

    runtime: RuntimeName
    device: torch.device
    dtype: str
    weights: Weights | None
    max_sequences: int
    accelerated: bool = True
    kv_cache_memory: int | None = None

    def __post_init__(self) -> None:
        if self.runtime == "openvino" and (self.device.type != "cpu" or self.dtype == "float64"):
            wanted = f"transformers for {self.dtype} on {self.device}"
            raise InvalidConfigError("runtime", self.runtime, wanted)
        if self.runtime == "openvino":
            with missing("openvino"):
                import_module("openvino")
        if self.weights is not None and self.runtime != "openvino":
            expected = "None, or runtime='openvino' (--runtime openvino) beside it"
            raise InvalidConfigError("weights", self.weights, expected)

    def by_llama_cpp(self, source: str) -> bool:
        """Whether a model is left to llama.cpp.

        Raises:
            InvalidConfigError: it is to be, and is no GGUF file; or is to have another type.
        """
        if self.runtime == "llama_cpp" and not is_gguf(source):
            expected = f"another one for {source!r}: llama.cpp takes files such as model.gguf"
            raise InvalidConfigError("runtime", self.runtime, expected)
        chosen = is_gguf(source) and self.runtime in ("auto", "llama_cpp")
        if chosen and self.dtype != "auto":
            expected = (
                "auto for a GGUF file on llama.cpp, or runtime='openvino' or 'transformers' "
                "(--runtime), which convert it"
            )
            raise InvalidConfigError("dtype", self.dtype, expected)
        if chosen and self.kv_cache_memory is not None:
            expected = "None for a GGUF file on llama.cpp, which has a cache of its own"
            raise InvalidConfigError("kv_cache_memory", self.kv_cache_memory, expected)
        return chosen


def load_model(role: str, source: str, asked: LoadOptions) -> Runtime:
    """Load one model.

    Args:
        role: of the model, for messages.
        source: a folder, a GGUF file or a hub id.
        asked: how.

    Raises:
        ModelError: it cannot be found, read, converted or decoded speculatively.
        InvalidConfigError: the runtime or the type does not suit it.
        MissingExtraError: a package that this needs is not installed.
    """
    _LOG.info("loading %s", source)
    try:
        if asked.by_llama_cpp(source):
            from .llama_cpp.model import LlamaCppModel

            layers = -1 if asked.accelerated else 0
            return LlamaCppModel(source, max_sequences=asked.max_sequences, gpu_layers=layers)
        return _of_transformers(source, asked)
    except ModelError as error:
        raise ModelError(f"the {role} {source!r} cannot be used: {error}") from error


def load_tokenizer(source: str, asked: LoadOptions) -> Any:
    """Load the tokenizer of a model: a GGUF file carries its own.

    Raises:
        ModelError: there is none.
    """
    if asked.by_llama_cpp(source):
        from .llama_cpp.tokenizer import LlamaCppTokenizer

        return LlamaCppTokenizer(source)
    with missing("transformers"):
        from transformers import AutoTokenizer
    files = "tokenizer.json (without one TransformersModel(model) decodes token ids)"
    with _loading(f"tokenizer of {source!r}", files):
        tokenizer = _pretrained(AutoTokenizer, source)
        if len(tokenizer) <= len(tokenizer.all_special_ids):  # as transformers makes it of none
            raise ValueError("it has no token of a text")
        return tokenizer


def _of_transformers(source: str, asked: LoadOptions) -> Runtime:
    with missing("transformers"):
        from transformers import AutoModelForCausalLM

        from .transformers.model import TransformersModel
    if is_gguf(source):
        with missing("gguf"):
            for package in ("accelerate", "gguf"):  # transformers wants both
                import_module(package)
    with _loading(f"model {source!r}", "config.json and complete weights"):
        weights = _pretrained(AutoModelForCausalLM, source, dtype=asked.dtype)
    weights = weights.to(asked.device)
    suits = asked.device.type == "cpu" and weights.dtype != torch.float64
    if asked.runtime == "openvino" or (asked.runtime == "auto" and suits and find_spec("openvino")):
        from .openvino.model import OpenVinoModel

        try:
            return OpenVinoModel(
                weights,
                max_sequences=asked.max_sequences,
                kv_cache_memory=asked.kv_cache_memory,
                weights=asked.weights,
                fingerprint=_fingerprint(weights.config.name_or_path),
            )
        except ModelError as error:
            if asked.runtime == "openvino":
                raise
            _LOG.warning("%s runs on transformers: %s", source, error)
    return TransformersModel(
        weights, max_sequences=asked.max_sequences, kv_cache_memory=asked.kv_cache_memory
    )


def _pretrained(auto: Any, source: str, **settings: Any) -> Any:
    """Load what `auto` names; of a GGUF file it is converted once, and kept as transformers does.

    With many tokens transformers takes long to read such a file: it is done for the configuration
    and for the weights.
    """
    if not is_gguf(source):
        return auto.from_pretrained(source, **settings)
    import transformers

    file, kind = Path(source), auto.__name__
    key = kept.key_of(kept.fingerprint(file), kind, settings, transformers.__version__)
    place = kept.default_folder() / "gguf" / key
    if not kept.find(place):
        given = {"gguf_file": file.name, **settings}
        if auto is not transformers.AutoConfig:
            given["config"] = _pretrained(transformers.AutoConfig, source)
        _LOG.info("converting %s for transformers, once: %s", file.name, kind)
        made = auto.from_pretrained(str(file.parent), **given)
        quantizer = getattr(made, "hf_quantizer", None)
        if quantizer is not None:
            quantizer.remove_quantization_config(made)  # its weights are plain numbers now
        if not kept.keep(place, partial(made.save_pretrained, save_jinja_files=False)):
            return made
    if auto is transformers.AutoTokenizer:
        return _kept_tokenizer(place)
    return auto.from_pretrained(str(place), **settings)


def _kept_tokenizer(place: Path) -> Any:
    """Load a tokenizer as it was kept. `from_pretrained` would take its file apart in Python."""
    from transformers import PreTrainedTokenizerFast

    settings = json.loads((place / "tokenizer_config.json").read_text(encoding="utf-8"))
    return PreTrainedTokenizerFast(tokenizer_file=str(place / "tokenizer.json"), **settings)


def _fingerprint(source: str) -> str | None:
    """Make a key of the weights that a folder or a hub id names.

    Those of a folder are named by what its files hold, those of the hub by their commit.

    Returns:
        None where they are elsewhere, or not all of them.
    """
    folder, key = Path(source), None
    if folder.is_dir():
        files = sorted(each for kind in ("*.safetensors", "*.bin") for each in folder.glob(kind))
        key = kept.fingerprint(*files) if files else None
    else:
        from huggingface_hub import try_to_load_from_cache

        config = try_to_load_from_cache(source, "config.json")
        if isinstance(config, str):
            folder = Path(config).parent
            key = kept.key_of(source, folder.name)
    return None if (folder / "adapter_config.json").exists() else key


@contextmanager
def _loading(what: str, files: str) -> Iterator[None]:
    """Raise a ModelError where transformers raises anything."""
    try:
        yield
    except Exception as error:
        first = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
        raise ModelError(
            f"cannot load the {what}: {first}; expected a folder with {files}, a GGUF file, or the "
            "id of a hub model that can be reached"
        ) from error
