"""Compiled forwards give what eager ones give, and where they cannot be had it is said."""

from __future__ import annotations

import logging
import os
import shutil
from typing import Any

import numpy as np
import pytest
import torch

from outrider import ModelDrafter, SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.errors import InvalidConfigError, ModelError
from outrider.runtimes.transformers import compiled
from outrider.runtimes.transformers.model import TransformersModel
from outrider.types.records import Distributions, DraftProposal, Prefix

from .families import greedy_reference, random_model, resembling

needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler"
)


def proposal(rng: np.random.Generator, width: int, tree: bool) -> DraftProposal:
    tokens = torch.from_numpy(rng.integers(0, 60, (1, width)))
    parents = np.array([[int(rng.integers(0, node + 1)) for node in range(width)]])
    return DraftProposal(
        tokens, np.array([width]), Distributions(point_masses=tokens), parents if tree else None
    )


@needs_compiler
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_compiled_logits_and_text_are_the_eager_ones(family: str) -> None:
    hf_model = random_model(family)
    model = TransformersModel(hf_model, max_sequences=2, compile=True)
    eager = TransformersModel(hf_model, max_sequences=2)
    assert model.compile_s is not None
    assert eager.compile_s is None
    # Llama and Qwen3 normalise in float32 whatever their dtype, and sums are made in another order.
    allowed = 1e-10 if family == "gpt2" else 1e-4
    rng = np.random.default_rng(0)
    for length in (3, 5, 6, 63, 66, 140):
        for width in (0, 1, 4, 9, 17):
            ids = rng.integers(0, 60, length).tolist()
            proposed = proposal(rng, width, tree=width in (4, 9))
            found, expected = (
                of.verify([Prefix(1, ids)], proposed).logits for of in (model, eager)
            )
            assert float((found - expected).abs().max()) < allowed
    # Two rows are computed eagerly, from the same slots.
    pairs = [Prefix(1, [1, 2, 3]), Prefix(2, [4, 5, 6, 7])]
    tokens = torch.tensor([[3, 4], [5, 6]])
    both = DraftProposal(tokens, np.array([2, 2]), Distributions(point_masses=tokens))
    found, expected = (of.verify(pairs, both).logits for of in (model, eager))
    assert float((found - expected).abs().max()) < allowed
    model.release([1, 2])
    drafter = ModelDrafter(TransformersModel(resembling(hf_model)))
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=4)
    decoder = SpeculativeDecoder(model, drafter, config=config)
    output = decoder.generate([1, 2, 3], SamplingParams(temperature=0, max_tokens=80))
    assert tuple(output.token_ids) == greedy_reference(hf_model, [1, 2, 3], 80)


def test_without_a_compiler_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ModelError, match="'no-such-compiler' was not found; install"):
        TransformersModel(random_model("gpt2"), compile=True)


def test_what_cannot_be_compiled_runs_eagerly_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no graph of this")

    monkeypatch.setattr(compiled.torch, "compile", refused)
    monkeypatch.setenv("CXX", "python3")
    with caplog.at_level(logging.WARNING):
        model = TransformersModel(random_model("gpt2"), max_sequences=1, compile=True)
    assert "GPT2LMHeadModel cannot be compiled (RuntimeError: no graph of this)" in caplog.text
    assert "it is run eagerly" in caplog.text
    assert model.compile_s is None
    decoder = SpeculativeDecoder(model)
    output = decoder.generate([1, 2, 3], SamplingParams(temperature=0, max_tokens=4))
    assert tuple(output.token_ids) == greedy_reference(model.hf_model, [1, 2, 3], 4)


@needs_compiler
def test_graphs_that_differ_from_the_eager_forward_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled.torch, "compile", lambda step, **_: lambda *args: step(*args) + 1)
    with caplog.at_level(logging.WARNING):
        model = TransformersModel(random_model("gpt2"), max_sequences=1, compile=True)
    assert "relative error" in caplog.text
    assert model.compile_s is None


def test_compile_is_true_or_false() -> None:
    with pytest.raises(InvalidConfigError, match="compile"):
        TransformersModel(random_model("gpt2"), compile="yes")
