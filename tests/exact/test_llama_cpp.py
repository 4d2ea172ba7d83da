"""The engine over a GGUF file has the distribution of the model that the file was made from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider import (
    NgramDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    TransformersModel,
)
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, target_distribution
from outrider.types import trees
from tests.support.families import Distributions, resembling

pytest.importorskip("llama_cpp", reason="llama.cpp is not installed")
pytest.importorskip("gguf", reason="gguf writes the files of these tests")

from outrider.runtimes.llama_cpp.forest import Row
from outrider.runtimes.llama_cpp.model import LlamaCppModel
from tests.support.gguf_files import gguf_model, write_gguf

pytestmark = pytest.mark.exact

TOLERANCE = 1e-5
"""Logits are float32, computed by different programs."""

PROMPT = (2, 0, 1)
THREE = SamplingParams(max_tokens=3, temperature=2.0, top_p=0.95)


@pytest.fixture(scope="module", params=["qwen3", "qwen3_5"])
def target(request: pytest.FixtureRequest) -> Any:
    """One with attention alone, one with recurrent layers."""
    return gguf_model(request.param, vocab_size=4)


@pytest.fixture(scope="module")
def files(target: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("gguf")
    near = resembling(target, noise=0.1)
    return write_gguf(target, folder / "target.gguf"), write_gguf(near, folder / "draft.gguf")


class Repeating(LlamaCppModel):
    """The logits after a text are the first ones that were computed for it, in float64.

    An enumeration walks each round many times, and llama.cpp rounds a sum in another order where
    a forward has other rows.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, max_sequences=64, kv_dtype="float32")
        self._first: dict[tuple[int, ...], NDArray[np.float64]] = {}

    def compute(
        self, rows: Sequence[Row], width: int
    ) -> tuple[NDArray[np.floating[Any]], tuple[int, ...]]:
        logits, cached = super().compute(rows, width)
        wide = logits.astype(np.float64)
        for found, row in zip(wide, rows, strict=True):
            for node in range(len(row.tokens) + 1):
                columns = [step - 1 for step in trees.path(row.parents.tolist(), node)]
                text = (*row.prefix.tokens.tolist(), *row.tokens[columns].tolist())
                found[node] = self._first.setdefault(text, found[node].copy())
        return wide, cached


@pytest.mark.parametrize(
    "settings",
    [
        {"num_speculative_tokens": 2},
        {"num_speculative_tokens": 2, "verification": "block"},
        {"tree_shape": (2, 1)},  # Of which llama.cpp drafts chains.
    ],
    ids=str,
)
def test_a_draft_on_llama_cpp_leaves_the_targets_distribution(
    settings: dict[str, Any], target: Any, files: tuple[Path, Path]
) -> None:
    config = SpeculativeConfig(depth="fixed", **settings)
    decoder = SpeculativeDecoder(*map(Repeating, files), config=config)
    found = exact_distribution(decoder, PROMPT, THREE)
    assert distance(found, target_distribution(Distributions(target), PROMPT, THREE)) < TOLERANCE


def test_drafts_of_other_kinds_leave_it_too(target: Any, files: tuple[Path, Path]) -> None:
    expected = target_distribution(Distributions(target), PROMPT, THREE)
    model = TransformersModel(resembling(target).double(), max_sequences=64)
    for drafter, settings in (
        (model, {"num_speculative_tokens": 2}),
        (model, {"tree_shape": (2, 1)}),
        (model, {"tree_shape": (2, 2), "verification": "recursive"}),
        (NgramDrafter(), {"num_speculative_tokens": 2}),
    ):
        config = SpeculativeConfig(depth="fixed", **settings)
        decoder = SpeculativeDecoder(Repeating(files[0]), drafter, config=config)
        assert distance(exact_distribution(decoder, PROMPT, THREE), expected) < TOLERANCE
