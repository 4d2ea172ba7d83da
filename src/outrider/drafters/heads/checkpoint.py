"""Checkpoints of draft heads: what their configuration says, and their tensors.

Read are those of speculators, and of the authors of EAGLE-3 and DFlash, which say the same in other
words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...config.sources import is_gguf
from ...errors import ModelError, missing

KINDS = ("eagle3", "peagle", "dflash", "dspark", "dflash2", "xpress")
"""Kinds of heads that are drafted with."""

_MARKS = {
    # Names that begin like this, between quotation marks.
    **{f"'{kind}": kind for kind in ("hass", "domino", "jetspec", "lilicorr", "uno", "eagle4")},
    "conv_kernel_size": "dflash2",  # of later heads of DFlash's authors
    "dflash_config": "dflash",
    "draft_vocab_size": "eagle3",
    "eagle3": "eagle3",
    "eagle": "eagle",
    "medusa": "medusa",
    "mlpspeculator": "mlp_speculator",
}
"""Kinds of heads whose configuration names none, by what it is called and has; the first counts."""

_UNREAD: dict[str, Any] = {
    "attention_value_scale": 1.0,
    "final_logit_softcapping": None,
    "input_embedding_scale": 1.0,
    "output_multiplier": 1.0,
    "partial_rotary_factor": 1.0,
    "use_swa": False,
}
"""Fields that change what a head computes and are not heeded here, and when they change nothing."""


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """What a head's configuration says.

    Attributes:
        kind: "eagle3", "peagle", "dflash", "dspark", "dflash2", "xpress", or "mtp".
        decoder: of its layers, as transformers writes it.
        target_layers: after which of the target's layers its states are taken, 0 the embedding;
            empty where the configuration leaves it open.
        given: all of it, as it is written.
    """

    kind: str
    decoder: Any
    target_layers: tuple[int, ...]
    given: Mapping[str, Any] = field(default_factory=dict)

    def flag(self, name: str, usual: bool = False) -> bool:
        """Return whether a flag is set; the usual where it is absent or null."""
        return bool(self.number(name, usual))

    def number(self, name: str, usual: int) -> int:
        """Return a number; the usual one where it is absent or null."""
        value = self.given.get(name)
        return usual if value is None else int(value)

    @property
    def eagle(self) -> bool:
        """Whether it reads the state before each token."""
        return self.kind in ("eagle3", "peagle", "mtp")

    @property
    def blocks(self) -> bool:
        """Whether one forward drafts several tokens."""
        return self.kind not in ("eagle3", "mtp")

    @property
    def vocab_size(self) -> int:
        """How many tokens it drafts."""
        return self.number("draft_vocab_size", self.decoder.vocab_size)

    @property
    def target_width(self) -> int:
        """The width of the target's states."""
        return self.number("target_hidden_size", self.decoder.hidden_size)

    @property
    def anchored(self) -> bool:
        """Whether a block's first place drafts as well."""
        return self.flag("sample_from_anchor", self.eagle or self.kind == "dspark")

    @property
    def both_ways(self) -> bool:
        """Whether places of a block see those after them in sliding layers, too."""
        usual = self.kind == "dflash2" or not self.flag("is_causal", True)
        return self.flag("sliding_window_non_causal", usual)

    @property
    def most(self) -> int:
        """How many tokens a forward drafts."""
        return self.number("block_size", 1) - (not self.anchored)

    @property
    def windows(self) -> dict[str | None, int | None]:
        """How many tokens each kind of layer sees; None for all."""
        kinds = self.decoder.layer_types
        return {each: self.decoder.sliding_window if "sliding" in each else None for each in kinds}


def head_folder(source: str) -> Path | None:
    """Find the folder of a draft head that a path or a hub id names; None for other models.

    "demo-head" is that of the demo target. Heads of the hub are downloaded, if they are not there.
    """
    if is_gguf(source) or source == "demo":
        return None
    if source == "demo-head":
        with missing("demo"):
            import outrider_demo as demo
        return Path(demo.HEAD)
    try:
        kind = _kind(_given(folder_of(source, "config.json")))
    except ModelError:
        # What cannot be reached or read is reported where models are loaded.
        return None
    return folder_of(source, "*.json", "*.safetensors", "*.bin") if kind else None


def folder_of(source: str, *files: str, revision: str | None = None) -> Path:
    """Return a folder, or the one of a hub id, with these files.

    Raises:
        ModelError: the hub, or such a model, cannot be reached.
    """
    if Path(source).is_dir():
        return Path(source)
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(source, allow_patterns=list(files), revision=revision))
    except Exception as error:
        # The package raises what it likes.
        raise ModelError(f"the files of {source!r} cannot be reached: {error}") from error


def _given(folder: Path) -> dict[str, Any]:
    """Read a configuration."""
    try:
        given: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder} has no config.json that can be read: {error}") from error
    if not isinstance(given, dict):
        raise ModelError(f"{folder}/config.json is no object of fields")
    return given


def _kind(given: Mapping[str, Any]) -> str:
    """Name the kind of a head; "" for other models."""
    if said := given.get("speculators_model_type"):
        return str(said)
    names = ["architectures", "model_type", "draft_vocab_size", "medusa_num_heads"]
    names += ["dflash_config", "eagle_config"]
    fields = {name: given[name] for name in names if given.get(name) is not None}
    words = str(fields).lower().replace("-", "")
    return next((kind for mark, kind in _MARKS.items() if mark in words), "")


def read_config(folder: Path) -> HeadConfig:
    """Read a head's config.json.

    Raises:
        ModelError: it is missing, or no head that is drafted with.
    """
    given = _given(folder)
    kind = _kind(given)
    if "quantization_config" in given:
        raise ModelError(f"{folder} is a quantised head; take one whose weights are plain numbers")
    if kind not in KINDS:
        kind = kind or str(given.get("architectures"))
        raise ModelError(f"{folder} is a head of kind {kind!r}; expected one of {', '.join(KINDS)}")
    with missing("transformers"):
        from huggingface_hub.errors import StrictDataclassError
    try:
        return _read(kind, given)
    except (KeyError, TypeError, ValueError, AttributeError, StrictDataclassError) as error:
        said = " ".join(str(error).split())
        raise ModelError(f"{folder}/config.json cannot be used as a {kind} head: {said}") from error


def _read(kind: str, given: dict[str, Any]) -> HeadConfig:
    """Make a head's configuration of what is written; raise as it comes where that is wrong."""
    from transformers import AutoConfig

    given |= given.get("dflash_config") or {}
    layers = given.get("transformer_layer_config") or given
    stated = {**given, **layers, **(layers.get("rope_parameters") or {})}
    for name, neutral in _UNREAD.items():
        if (value := stated.get(name)) not in (None, neutral):
            raise ValueError(f"{name} {value} is not heeded here")
    eagle = kind in ("eagle3", "peagle")
    inner = {"attention_bias": False, "attention_dropout": 0.0, **layers}
    family = inner.pop("model_type", "llama" if eagle else "qwen3")
    if family not in ("llama", "qwen3"):  # rotary embeddings and norms of others differ
        raise ValueError(f"layers of {family!r}; expected those of llama or qwen3")
    decoder = AutoConfig.for_model(family, **inner)
    if not getattr(decoder, "layer_types", None):
        decoder.layer_types = ["full_attention"] * decoder.num_hidden_layers
    if other := sorted({*decoder.layer_types} - {"full_attention", "sliding_attention"}):
        raise ValueError(f"layers of type {', '.join(other)}; expected full or sliding ones")
    if kind == "peagle":
        proposals = (given.get("speculators_config") or {}).get("proposal_methods") or [{}]
        given["block_size"] = proposals[0].get("speculative_tokens") or 8
    for name in () if kind == "eagle3" else ("mask_token_id", "block_size"):
        if not isinstance(given.get(name), int):
            raise ValueError(f"{name} is {given.get(name)!r}; expected an integer")
    if "causal" in given:
        given["is_causal"] = given["causal"]
    if given.get("is_causal") and not eagle and "full_attention" in decoder.layer_types:
        raise ValueError("is_causal true beside full layers, as JetSpec's, is not heeded here")
    if given.get("markov_head_type", "vanilla") not in ("vanilla", "gated", "rnn"):
        raise ValueError(f"markov_head_type {given['markov_head_type']!r} is not known")
    made = HeadConfig(kind, decoder, _target_layers(given, eagle=eagle), given)
    if made.blocks and made.most < 1:
        raise ValueError(f"block_size {given['block_size']} leaves no token to draft")
    return made


def _target_layers(given: Mapping[str, Any], *, eagle: bool) -> tuple[int, ...]:
    """Read after which of the target's layers states are taken; none where EAGLE-3 is silent."""
    name = "eagle_aux_hidden_state_layer_ids" if eagle else "aux_hidden_state_layer_ids"
    # In the authors' own layouts layer 0 is the first one, not the embedding.
    own = (given.get("eagle_config") or given).get(name if eagle else "target_layer_ids") or ()
    layers = given.get(name) or [layer + 1 for layer in own]
    if not layers and not eagle:
        raise KeyError(name)
    return tuple(layers)


def read_tensors(folder: Path, begins: tuple[str, ...] = ("",)) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint whose names begin in one of some ways.

    Raises:
        ModelError: there are no files, or they cannot be read.
    """
    with missing("transformers"):
        from safetensors.torch import load_file
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
    if not files:
        raise ModelError(f"{folder} has no *.safetensors or *.bin file of a head's weights")
    found: dict[str, Tensor] = {}
    try:
        for file in files:
            if file.suffix == ".bin":
                every = torch.load(file, "cpu", weights_only=True, mmap=True)
            else:
                every = load_file(file)
            found |= {name: each for name, each in every.items() if name.startswith(begins)}
    except Exception as error:
        # The package raises what it likes.
        raise ModelError(f"the weights in {folder} cannot be read: {error}") from error
    return found
