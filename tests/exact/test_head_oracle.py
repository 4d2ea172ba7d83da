"""Heads draft what speculators' own modules say: references written by scripts/head_oracle.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from outrider import TransformersModel
from outrider.drafters.heads.loading import load_head
from outrider.types.records import HiddenStates, Prefix

pytestmark = pytest.mark.exact

FILES = sorted((Path(__file__).parents[1] / "data" / "heads").glob("*.safetensors"))
TOLERANCE = 1e-5
"""Of logits of order 1, in float32."""


def loaded(file: Path, folder: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """Load a reference's head as a checkpoint, and the rest of the reference."""
    with safe_open(file, "pt") as opened:
        found = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no dict
        config = json.loads(opened.metadata()["config"])
    text = {name.removeprefix("text."): found.pop(name) for name in list(found) if "text." in name}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(found, folder / "model.safetensors")
    inner = config["transformer_layer_config"]
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads")
    shape = {name: inner[name] for name in names} | {"num_hidden_layers": 4}
    target = AutoModelForCausalLM.from_config(LlamaConfig(**shape)).float()
    runtime = TransformersModel(target, max_sequences=2, max_length=64)
    return load_head(folder, runtime), text


def drafted(head: Any, tokens: list[int], states: torch.Tensor, depth: int) -> torch.Tensor:
    """The logits of the likeliest chain, in the target's vocabulary."""
    prefix = Prefix(1, tokens)
    head.model.receive([HiddenStates(prefix, 0, states)])
    cursor = head.model.open([prefix], depth)
    found = [head._aligned(cursor.logits)[0]]
    for _ in range(depth - 1):
        found.append(head._aligned(cursor.step(found[-1].argmax()[None]))[0])
    return torch.stack(found)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_logits_are_those_of_speculators(file: Path, tmp_path: Path) -> None:
    head, text = loaded(file, tmp_path)
    tokens, states = text["tokens"][0].tolist(), text["states"]
    found = drafted(head, tokens, states, len(text["logits"]))
    own = torch.arange(head.vocab_size) if head.model.net.tokens is None else head.model.net.tokens
    torch.testing.assert_close(found[:, own], text["logits"], rtol=0, atol=TOLERANCE)
    others = torch.ones(head.vocab_size, dtype=torch.bool).index_fill_(0, own, False)
    assert (found[:, others] == -torch.inf).all()


def test_there_is_a_reference_of_each_kind() -> None:
    assert {file.stem.split("-")[0] for file in FILES} == {
        *("eagle3", "peagle", "dflash", "dspark", "dflash2", "xpress")
    }


def test_that_notices_another_state(tmp_path: Path) -> None:
    head, text = loaded(FILES[0], tmp_path)
    states = text["states"].roll(1, 0)
    found = drafted(head, text["tokens"][0].tolist(), states, len(text["logits"]))
    assert (found - text["logits"]).abs().max() > 1e-2
