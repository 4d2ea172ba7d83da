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

REFUSED = ("medusa", "hass", "domino", "jetspec", "lilicorr", "uno", "eagle4", "mlp_speculator")
"""Kinds that are known, and not drafted with."""

UNREAD = (
    *("output_multiplier", "final_logit_softcapping", "attention_value_scale", "use_swa"),
    "partial_rotary_factor",
)
"""Fields that change what a head computes, and are not heeded here."""

_ORIGINAL = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
"""Architectures of EAGLE-3 as its authors write it."""


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """What a head's configuration says.

    Attributes:
        kind: "eagle3", "peagle", "dflash", "dspark", "dflash2" or "xpress".
        decoder: of its layers, as transformers writes it.
        target_layers: after which of the target's layers its states are taken, 0 the embedding;
            empty where the configuration leaves it open.
        target_width: of the target's states.
        vocab_size: how many tokens it drafts.
        block_size: tokens of a block, the last one of the text included.
        mask_token: stands for those that are drafted.
        sample_from_anchor: whether a block's first place drafts as well.
        given: the rest, as it is written: what a kind alone has.
    """

    kind: str
    decoder: Any
    target_layers: tuple[int, ...]
    target_width: int
    vocab_size: int
    block_size: int = 1
    mask_token: int = 0
    sample_from_anchor: bool = False
    given: Mapping[str, Any] = field(default_factory=dict)

    def flag(self, name: str, usual: bool = False) -> bool:
        """Return whether a flag is set."""
        return bool(self.given.get(name, usual))

    def number(self, name: str, usual: int) -> int:
        """Return a number."""
        return int(self.given.get(name, usual))

    @property
    def both_ways(self) -> bool:
        """Whether places of a block see those after them in sliding layers, too."""
        usual = self.kind == "dflash2" or not self.flag("is_causal", True)
        return self.flag("sliding_window_non_causal", usual)

    @property
    def most(self) -> int:
        """How many tokens a block drafts."""
        return self.block_size - (not self.sample_from_anchor)

    def layers_of(self, count: int) -> tuple[int, ...]:
        """Return `target_layers`, or the usual ones of a target with so many layers."""
        return self.target_layers or (2, count // 2, count - 3)

    @property
    def blocks(self) -> bool:
        """Whether one forward drafts several tokens."""
        return self.kind != "eagle3"


def head_folder(source: str) -> Path | None:
    """Find the folder of a draft head that a path or a hub id names; None for other models.

    Heads of the hub are downloaded, if they are not there.
    """
    if is_gguf(source) or source == "demo":
        return None
    folder = Path(source)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(source, allow_patterns="config.json"))
        except Exception:
            # What cannot be reached is reported where models are loaded.
            return None
        if _is_head(folder):
            folder = Path(snapshot_download(source))
    return folder if _is_head(folder) else None


def _is_head(folder: Path) -> bool:
    """Say whether a configuration is a draft head's."""
    try:
        given = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    marks = ("speculators_model_type", "dflash_config", "draft_vocab_size", "eagle_config")
    named = " ".join(given.get("architectures") or ()).lower()
    return any(mark in given for mark in marks) or "eagle" in named or "medusa" in named


def read_config(folder: Path) -> HeadConfig:
    """Read a head's config.json.

    Raises:
        ModelError: it is missing, or no head that is drafted with.
    """
    try:
        given = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder} has no config.json that can be read: {error}") from error
    kind = _kind(given, folder)
    if kind not in KINDS:
        kinds = ", ".join(KINDS)
        raise ModelError(f"{folder} is a head of kind {kind!r}; drafted with are {kinds}")
    given = {**given, **(given.get("dflash_config") or {})}
    if unread := [name for name in UNREAD if given.get(name) not in (None, False, 1.0)]:
        raise ModelError(f"{folder} sets {', '.join(unread)}, which is not heeded here")
    try:
        common = _common(kind, given)
        own = _eagle(kind, given) if kind in ("eagle3", "peagle") else _dflash(kind, given)
        return HeadConfig(kind=kind, **common, **own)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"{folder}/config.json cannot be used as a {kind} head: {error}"
        ) from error


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a checkpoint, by name.

    Raises:
        ModelError: there are none, or they cannot be read.
    """
    with missing("transformers"):
        from safetensors.torch import load_file
    files = sorted(folder.glob("*.safetensors"))
    pickled = [] if files else sorted(folder.glob("*.bin"))
    if not files and not pickled:
        raise ModelError(
            f"{folder} has no *.safetensors or *.bin file, which hold a head's weights"
        )
    found: dict[str, Tensor] = {}
    try:
        for file in files:
            found |= load_file(file)
        for file in pickled:
            found |= torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        # The package raises what it likes.
        raise ModelError(f"the weights in {folder} cannot be read: {error}") from error
    return found


def _kind(given: Mapping[str, Any], folder: Path) -> str:
    """Name the kind of a head."""
    architectures = given.get("architectures") or [""]
    if "quantization_config" in given:
        raise ModelError(f"{folder} is a quantised head; take one whose weights are plain numbers")
    said = given.get("speculators_model_type")
    if said is not None:
        return str(said)
    own = given.get("dflash_config")
    named = f"{architectures[0]} {given.get('model_type', '')} {own}".lower().replace("-", "")
    for kind in REFUSED:
        if kind.replace("_", "") in named:
            return kind
    if own is not None:
        # Later heads of the same authors differ by what is set there.
        return "dflash2" if "conv_kernel_size" in own else "dflash"
    if architectures[0] in _ORIGINAL or "draft_vocab_size" in given:
        return "eagle3"
    return named


def _common(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Read what configurations of all kinds say."""
    with missing("transformers"):
        from transformers import AutoConfig
    inner = dict(given.get("transformer_layer_config") or given)
    usual = "llama" if kind == "eagle3" else "qwen3"
    decoder = AutoConfig.for_model(inner.pop("model_type", usual), **inner)
    return {
        "decoder": decoder,
        "target_width": given.get("target_hidden_size") or decoder.hidden_size,
        "vocab_size": given.get("draft_vocab_size") or decoder.vocab_size,
        "given": given,
    }


def _eagle(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Read EAGLE-3's and P-EAGLE's configuration, of speculators or of its authors."""
    name = "eagle_aux_hidden_state_layer_ids"
    # Inside of eagle_config layer 0 is the first one, not the embedding.
    nested = (given.get("eagle_config") or {}).get(name) or ()
    layers = given.get(name) or [layer + 1 for layer in nested]
    proposals = (given.get("speculators_config") or {}).get("proposal_methods") or [{}]
    return {
        "target_layers": tuple(layers),
        "mask_token": int(given["mask_token_id"]) if kind == "peagle" else 0,
        "block_size": proposals[0].get("speculative_tokens") or 8,
        "sample_from_anchor": True,
    }


def _dflash(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Read the configuration of the DFlash family, of speculators or of its authors."""
    if given.get("dflash_config") is None:
        layers = given["aux_hidden_state_layer_ids"]
    else:
        # Here layer 0 is the first one, not the embedding.
        layers = [layer + 1 for layer in given["target_layer_ids"]]
    return {
        "target_layers": tuple(layers),
        "block_size": int(given["block_size"]),
        "mask_token": int(given["mask_token_id"]),
        "sample_from_anchor": bool(given.get("sample_from_anchor", kind == "dspark")),
    }
