"""Hidden states are those of the model itself: of prefills, chains and trees, on both runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from outrider import OpenVinoModel, TransformersModel
from outrider.certify.kits.runtime_case import Row, proposal
from outrider.errors import InvalidConfigError, ModelError
from outrider.runtimes.tabular import mock_pair
from outrider.types import trees
from outrider.types.records import Prefix
from tests.support.families import random_model
from tests.support.heads import Seen

LAYERS = (0, 2, 3)
TEXT = [i * 7 % 61 for i in range(1, 41)]
TREE: Row = ([5, 6, 7, 8], [0, 0, 1, 3])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("openvino")


def expected(model: Any, tokens: list[int]) -> torch.Tensor:
    """The model's own, [n, L, D]."""
    with torch.inference_mode():
        found = model(input_ids=torch.tensor([tokens]), output_hidden_states=True)
    return torch.stack([found.hidden_states[layer][0] for layer in LAYERS], 1)


def close(found: torch.Tensor, own: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), own.double(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["transformers", "openvino"])
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=() if family == "llama" else pytest.mark.slow)
        for family in ("llama", "qwen3", "gemma3", "mistral", "gpt2", "phi3")
    ],
)
def test_hidden_states_are_the_models_own(family: str, kind: str, folder: Path) -> None:
    model = random_model(family).float()
    whole: Any = (
        TransformersModel(model, prefill_chunk=16)
        if kind == "transformers"
        else OpenVinoModel(model, prefill_chunk=16, cache_dir=folder)
    )
    seen = Seen()
    target = whole.with_hidden(LAYERS, seen)
    # A prompt that is prefilled in chunks, a short one, drafts in chains and trees.
    one, other = Prefix(1, TEXT), Prefix(2, [50, 51, 52])
    scores = target.verify([one, other], proposal([([9, 4], [0, 1]), ([8], [0])]))
    own = expected(model, [*TEXT, 9, 4])
    close(seen.states(1, 0), own[:40])
    close(scores.hidden[0], own[39:])
    short = expected(model, [50, 51, 52, 8])
    close(seen.states(2, 0), short[:3])
    close(scores.hidden[1, :2], short[2:])
    # One draft was kept, and then a tree follows: what was computed before is not computed again.
    grown = one.extended([9, 11])
    scores = target.verify([grown], proposal([TREE]))
    close(seen.states(1, 41), expected(model, [*TEXT, 9, 11])[41:])
    for node in range(5):
        path = [TREE[0][step - 1] for step in trees.path(list(TREE[1]), node)]
        close(scores.hidden[0, node], expected(model, [*TEXT, 9, 11, *path])[-1])
    # A prompt in parts, whose beginning was computed for another.
    third, progress = Prefix(3, [*TEXT[:20], *TEXT[:15]]), []
    while not progress or progress[-1].missing:
        progress.append(target.prefill(third, 7))
    assert progress[0].cached == 20
    own = expected(model, third.tokens.tolist())
    close(seen.states(3, 20), own[20:34])
    # The model without hidden states goes on with the same blocks.
    assert whole.verify([third], proposal([([], [])])).hidden is None
    target.check_integrity()


def test_layers_that_there_are_not_are_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"hidden_layers=4 is not allowed.*from 0 to 3"):
        TransformersModel(random_model("llama")).with_hidden((1, 4))
    with pytest.raises(ModelError, match="TabularModel gives no hidden states"):
        mock_pair(5, seed=1)[0].with_hidden((1,))
