"""A draft of which the model makes NaN or infinite keys and values concerns no other text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outrider import (
    OpenVinoModel,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    TransformersModel,
)
from outrider.certify.kits.runtime_case import proposal
from outrider.drafters.base import DraftContext
from outrider.drafters.lookup import Candidate, LookupDrafter
from outrider.types.records import DraftPlan, Prefix
from tests.support.families import random_model
from tests.support.gguf_files import gguf_model, write_gguf
from tests.support.heads import Seen

BAD = 50
RUNTIMES = (TransformersModel, OpenVinoModel)


def runtime_of(kind: Any, value: float = torch.nan, sequences: int = 2) -> Any:
    model = random_model("llama")
    model.get_input_embeddings().weight.data[BAD] = value
    model.get_output_embeddings().weight.data[BAD] = 0  # It is never the likeliest.
    return kind(model, max_sequences=sequences)


class BadDrafts(LookupDrafter):
    """Proposes the token for which the model has no finite numbers, among others."""

    source = "bad"

    def candidates(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> list[Candidate]:
        return [
            Candidate(np.resize([3, BAD, 5, 6], depth), np.full(depth, 0.9)) for depth in plan.depth
        ]


@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_refused_drafts_spoil_neither_their_own_text_nor_later_ones(
    kind: Any, value: float
) -> None:
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=4)
    params = SamplingParams(max_tokens=8, temperature=0)
    prompts = [[1, 2], [3, 4, 5], [6], [1, 2, 9]]
    plain = SpeculativeDecoder(runtime_of(kind, value)).generate(prompts, params)
    found = SpeculativeDecoder(runtime_of(kind, value), BadDrafts(), config=config).generate(
        prompts, params
    )
    assert [output.token_ids for output in found] == [output.token_ids for output in plain]


@pytest.mark.parametrize("kind", RUNTIMES)
def test_logits_are_nan_after_such_drafts_alone(kind: Any) -> None:
    runtime, other = runtime_of(kind), runtime_of(kind)
    tree = ([3, BAD, 4, 5, 6], [0, 0, 1, 2, 3])  # 5 follows the bad one.
    sound = ([3, 4, 6], [0, 1, 2])
    prefixes = [Prefix(0, [1, 2, 8]), Prefix(1, [9, 3])]
    logits = runtime.verify(prefixes, proposal([tree, ([7], [0])])).logits
    expected = other.verify(prefixes, proposal([sound, ([7], [0])])).logits
    assert logits[0, [2, 4]].isnan().all()
    torch.testing.assert_close(logits[0, [0, 1, 3, 5]], expected[0, :4])
    torch.testing.assert_close(logits[1, :2], expected[1, :2])
    onward = [Prefix(0, [1, 2, 8, 3]), Prefix(1, [9, 3, 7])]
    torch.testing.assert_close(
        runtime.verify(onward, proposal([([4], [0]), ([], [])])).logits[:, 0],
        other.verify(onward, proposal([([4], [0]), ([], [])])).logits[:, 0],
    )


def test_llama_cpp_passes_over_what_a_node_does_not_see(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from outrider import LlamaCppModel

    model = gguf_model("llama")
    model.get_input_embeddings().weight.data[BAD] = torch.nan
    path = write_gguf(model, tmp_path / "bad.gguf")
    found, expected = (
        LlamaCppModel(path, max_sequences=2).verify([Prefix(0, [1, 2])], proposal([drafts])).logits
        for drafts in (([3, BAD, 5], [0, 1, 2]), ([3, 4, 5], [0, 1, 2]))
    )
    assert found[0, 2:].isnan().all()
    torch.testing.assert_close(found[0, :2], expected[0, :2])


@pytest.mark.parametrize("kind", RUNTIMES)
def test_blocks_of_a_text_without_finite_numbers_may_be_used_again(kind: Any) -> None:
    """What it leaves is in the same blocks as others' tokens, and beside shorter rows."""
    ill, healthy = [5] * 40, [[1, 2, 3] * 12, [4, 6] * 9]
    ill[33] = BAD
    params = SamplingParams(max_tokens=6, temperature=0)
    plain = SpeculativeDecoder(runtime_of(kind)).generate(healthy, params)
    decoder = SpeculativeDecoder(runtime_of(kind))
    first = decoder.generate([ill], params, on_error="return")
    assert first[0].error is not None
    found = decoder.generate(healthy, params)
    assert [output.token_ids for output in found] == [output.token_ids for output in plain]
    runtime = runtime_of(kind)
    runtime.verify([Prefix(0, [BAD, *ill])], proposal([([], [])]))
    cursor = runtime.open([Prefix(1, healthy[0])], 1)
    assert cursor.logits.isfinite().all()


@pytest.mark.parametrize("kind", RUNTIMES)
def test_hidden_states_of_what_is_kept_are_finite_as_well(kind: Any) -> None:
    seen, sound = Seen(), Seen()
    runtime = runtime_of(kind).with_hidden((1, 3), seen)
    other = runtime_of(kind).with_hidden((1, 3), sound)
    prefix = [Prefix(0, [1, 2, 8])]
    found = runtime.verify(prefix, proposal([([3, BAD, 4, 6], [0, 0, 1, 3])]))
    expected = other.verify(prefix, proposal([([3, 4, 6], [0, 1, 2])]))
    torch.testing.assert_close(found.hidden[0, [0, 1, 3, 4]], expected.hidden[0])
    torch.testing.assert_close(seen.states(0, 0), sound.states(0, 0))


@pytest.mark.parametrize("kind", RUNTIMES)
def test_a_tree_that_is_drafted_reaches_no_other_sequence(kind: Any) -> None:
    runtime, prompt = runtime_of(kind), [*range(8, 20)]
    cursor = runtime.open([Prefix(0, prompt)], 2)
    cursor.expand(torch.tensor([[20, BAD]]), torch.tensor([[0, 0]]))
    assert runtime.open([Prefix(1, [*prompt, 30])], 2).logits.isfinite().all()
    assert runtime.open([Prefix(0, [*prompt, 31])], 2).logits.isfinite().all()


@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize("length", [10, 60, 130])
def test_a_repair_takes_no_room_of_its_own(kind: Any, length: int) -> None:
    """A cache for one sequence, nearly full, and many drafts."""
    runtime = runtime_of(kind, sequences=1)
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=12)
    params = SamplingParams(max_tokens=20, temperature=0)
    plain = SpeculativeDecoder(runtime).generate([1] * length, params)
    found = SpeculativeDecoder(runtime, BadDrafts(), config=config).generate([1] * length, params)
    assert found.token_ids == plain.token_ids
