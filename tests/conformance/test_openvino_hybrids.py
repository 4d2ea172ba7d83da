"""Models with recurrent layers on OpenVINO pass the kit, and planted mistakes are seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outrider import (
    EarlyExitDrafter,
    ModelDrafter,
    OpenVinoModel,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
)
from outrider.certify.kits.references import TransformersReference
from outrider.certify.kits.runtime import check_runtime
from outrider.certify.kits.runtime_case import Row, proposal
from outrider.certify.runtime import runtime_tier
from outrider.errors import InvalidConfigError, ModelError
from outrider.runtimes.blocks import Tokens
from outrider.runtimes.loading import LoadOptions, load_model
from outrider.runtimes.openvino import convert
from outrider.runtimes.openvino.state_rows import EACH, StateRows
from outrider.types.records import Prefix
from tests.support.families import VOCAB, greedy_reference, resembling
from tests.support.hybrids import FAMILIES, random_hybrid

REFUSED = {
    "jamba": "OpenVINO has no operator that computes mamba_selective_scan exactly",
    "kimi_linear": "OpenVINO has no operator that computes chunk_kimi_delta_attention exactly",
}
PASSING = sorted({*FAMILIES} - REFUSED.keys())
QUICK = ("qwen3_5", "bamba")
EXPERTS = ("granitemoehybrid", "nemotron_h", "qwen3_5_moe", "qwen3_next")


def some(families: Any) -> list[Any]:
    return [
        pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in families
    ]


def hybrid(family: str) -> Any:
    """A random model; its experts are computed in a way that a graph can have."""
    settings = {"experts_implementation": "batched_mm"} if family in EXPERTS else {}
    return random_hybrid(family, dtype=torch.float32, **settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("openvino")


def runtime(model: Any, folder: Path, **settings: Any) -> OpenVinoModel:
    given = {"max_sequences": 4, "max_length": 120} | settings
    return OpenVinoModel(model, cache_dir=folder, **given)


def failed(model: Any, make: Callable[[], OpenVinoModel]) -> dict[str, str]:
    found = check_runtime(make, TransformersReference(model), tolerance=3e-4)
    return {each.name: each.detail for each in found if not each.passed}


@pytest.mark.parametrize("family", some(PASSING))
def test_a_hybrid_model_passes(family: str, folder: Path) -> None:
    model = hybrid(family)
    converted = runtime(model, folder)
    assert not failed(model, lambda: converted.fresh(4))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_5", "bamba", "lfm2"])
@pytest.mark.parametrize("chunk", [3, 20])
def test_small_chunks_and_other_numbers_of_slots_pass(
    family: str, chunk: int, folder: Path
) -> None:
    model = hybrid(family)
    converted = runtime(model, folder, prefill_chunk=chunk)
    assert not failed(model, lambda: converted.fresh(1 + chunk % 4))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_5", "bamba", "lfm2"])
@pytest.mark.parametrize(
    "settings", [{"weights": "int8"}, {"kv_dtype": "uint8"}, {"dtype": torch.bfloat16}]
)
def test_rounded_models_pass_within_their_rounding(
    family: str, settings: dict[str, Any], folder: Path
) -> None:
    model = hybrid(family).to(settings.get("dtype"))
    rounded = {name: each for name, each in settings.items() if name != "dtype"}
    found = runtime_tier(lambda *_: None, runtime(model, folder, **rounded))
    assert not {finding.name: finding.detail for finding in found if not finding.passed}


def test_states_are_in_float32_whatever_the_type_of_the_weights(folder: Path) -> None:
    model = hybrid("qwen3_5").bfloat16()
    assert runtime(model, folder).precision == "float32"
    with pytest.raises(ModelError, match="precision='bfloat16' would round"):
        runtime(model, folder, precision="bfloat16")


def later_row(rows: StateRows, name: int, place: int) -> int:
    held = rows._held[name]
    return held[max(held)] if place else 0


def first_row(rows: StateRows, name: int, place: int) -> int:
    held = rows._held[name]
    return held[min(held)] if place and held else 0


def no_checkpoint(rows: StateRows, name: int, known: Tokens) -> int:
    found = ADMIT(rows, name, known)
    for place in rows._held[name]:
        rows._users[rows._held[name][place]] -= 1
        rows._users[0] += 1
        rows._held[name][place] = 0
    return found


def own_states(rows: StateRows, name: int, other: int) -> None:
    rows._held[other] = dict.fromkeys(rows._held[name], 0)
    rows._forks[other] = other


ADMIT = StateRows.admit
MISTAKES: dict[str, tuple[str, Callable[..., Any]]] = {
    "the state after the last draft is read": ("_row", later_row),
    "states are never moved on": ("_row", first_row),
    "checkpoints are not read": ("admit", no_checkpoint),
    "paths begin without a state": ("fork", own_states),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize(
    "family", [*some(["qwen3_5"]), pytest.param("bamba", marks=pytest.mark.slow)]
)
def test_a_planted_mistake_is_seen(
    family: str, mistake: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = hybrid(family)
    converted = runtime(model, folder)
    monkeypatch.setattr(StateRows, *MISTAKES[mistake])
    assert failed(model, lambda: converted.fresh(4))


SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"num_speculative_tokens": 4},
    "long chain": {"num_speculative_tokens": 3 * EACH},
    "fixed tree": {"num_speculative_tokens": 3, "tree_shape": (2, 2, 1)},
    "grown tree": {"num_speculative_tokens": 4, "tree_budget": 8},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("family", some(PASSING))
def test_greedy_texts_are_those_of_generate(family: str, shape: str, folder: Path) -> None:
    """In batches of three prompts of other lengths, of which one comes later."""
    model, rng = hybrid(family), np.random.default_rng(2)
    prompts = [rng.integers(VOCAB, size=length).tolist() for length in (5, 23, 12, 31)]
    target = runtime(model, folder, max_sequences=3)
    draft = ModelDrafter(runtime(resembling(model, 0.02), folder, max_sequences=3))
    config = SpeculativeConfig(depth="fixed", **SHAPES[shape])
    decoder = SpeculativeDecoder(target, draft, config=config)
    params = SamplingParams(max_tokens=40, temperature=0)
    expected = [greedy_reference(model, each, 40) for each in prompts]
    for _ in range(2):  # the second time the prompts are known
        assert [tuple(each.token_ids) for each in decoder.generate(prompts, params)] == expected
    assert decoder.metrics.accepted > 0


def test_first_layers_draft_for_a_hybrid_target(folder: Path) -> None:
    model, prompt = hybrid("falcon_h1"), [3, 1, 4, 1, 5]
    target = runtime(model, folder)
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=3)
    decoder = SpeculativeDecoder(target, EarlyExitDrafter(target, 2), config=config)
    found = decoder.generate(prompt, SamplingParams(max_tokens=30, temperature=0))
    assert tuple(found.token_ids) == greedy_reference(model, prompt, 30)
    assert found.metrics.accepted > 0


@pytest.mark.parametrize("shape", [(4, 2), (4, 4, 2)])
def test_trees_of_more_paths_than_there_are_blocks_are_drafted_and_verified(
    shape: tuple[int, ...], folder: Path
) -> None:
    model, prompt = hybrid("qwen3_5"), [3, 1, 4, 1, 5, 9]
    target = runtime(model, folder, max_sequences=1, max_length=120)
    draft = runtime(resembling(model), folder, max_sequences=1, max_length=120)
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=len(shape), tree_shape=shape)
    greedy = SamplingParams(max_tokens=40, temperature=0)
    decoder = SpeculativeDecoder(target, ModelDrafter(draft), config=config)
    found = decoder.generate(prompt, greedy)
    assert tuple(found.token_ids) == greedy_reference(model, prompt, 40)
    target.check_integrity()


def test_a_conversion_is_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = hybrid("bamba"), [1, 2, 3, 4, 5]
    before = runtime(model, folder).uncached([text])

    def refuse(*_: Any) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr(convert, "_convert", refuse)
    torch.testing.assert_close(runtime(model, folder).uncached([text]), before)


def test_states_before_and_after_new_tokens_are_kept_in_few_rows() -> None:
    for past, missing, drafted in np.ndindex(3, 40, 40):
        rows = StateRows(1)
        rows.admit(0, np.empty(0, np.int64))
        if past:
            rows._written(0, 0, past, past)
            rows.fold([0], [past])
        end, last = past + missing, past + missing + 1 + drafted
        written, within, interval = rows._written(0, past, missing + 1, last - past)
        held = {0, *rows._held[0]}
        assert {past, end, last} <= held
        assert len(rows._held[0]) <= EACH
        assert len(written) == -(-(within + last - past) // interval) == len({*written})
        if last - past < EACH:
            assert {*range(past, last + 1)} <= held


def test_the_memory_of_states_is_bounded(folder: Path) -> None:
    target = runtime(hybrid("qwen3_5"), folder, max_sequences=2, max_length=120)
    rows = target.states
    assert isinstance(rows, StateRows)
    text = [number * 7 % VOCAB for number in range(1, 81)]
    for name in range(6):
        for end in (20, 21, 48):
            scores = target.verify([Prefix(name, text[:end])], proposal([(text[:30], range(30))]))
            expected = target.uncached([text[:end]])[0, -1]
            torch.testing.assert_close(scores.logits[0, 0], expected, rtol=0, atol=1e-4)
            assert len(rows._held[name]) <= EACH
        target.release([name])
    assert sum(users > 0 for users in rows._users) <= 2 + 2  # those of two checkpoints


def test_all_rows_of_states_count_as_memory(folder: Path) -> None:
    made = runtime(hybrid("qwen3_5"), folder, max_sequences=2)
    states = sum(each.nbytes for each in made._calls._states)
    least = 4 * made._block_bytes + states
    with pytest.raises(InvalidConfigError, match=f"and states, {least}"):
        runtime(hybrid("qwen3_5"), folder, max_sequences=2, kv_cache_memory=least - 1)


@pytest.mark.parametrize("family", REFUSED)
def test_what_no_operator_computes_runs_on_transformers(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    random_hybrid(family, dtype=torch.float32).save_pretrained(tmp_path)
    asked = LoadOptions("auto", torch.device("cpu"), "auto", None, 2)
    assert load_model("target", str(tmp_path), asked).name == "transformers"
    assert REFUSED[family] in caplog.records[-1].message


@pytest.mark.parametrize("family", EXPERTS)
def test_experts_that_go_by_the_text_are_refused(family: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="computes other experts for other texts") as refused:
        runtime(random_hybrid(family, dtype=torch.float32), tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("family", QUICK)
def test_drafts_of_which_the_model_makes_nan_spoil_nothing_else(family: str, folder: Path) -> None:
    model = hybrid(family)
    with torch.no_grad():
        model.get_input_embeddings().weight[0] = torch.nan
    target = runtime(model, folder, max_sequences=2)
    texts = [[1 + number * step % (VOCAB - 1) for number in range(1, 31)] for step in (7, 11)]
    rows: list[Row] = [([texts[0][9], 0, 3], range(3)), (texts[1][9:14], range(5))]
    target.verify([Prefix(row, text[:9]) for row, text in enumerate(texts)], proposal(rows))
    parts = [[*texts[0][:10], 5], texts[1][:16]]
    scores = target.verify([Prefix(*each) for each in enumerate(parts)], proposal([([], ())] * 2))
    for logits, part in zip(scores.logits[:, 0], parts, strict=True):
        expected = model(torch.tensor([part]), use_cache=False).logits[0, -1].detach()
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
