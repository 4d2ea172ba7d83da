"""The llama.cpp runtime: what it computes once, how it grows, and what it refuses."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder, TransformersModel, load
from outrider.certify.kits.runtime_case import Row, proposal
from outrider.errors import ContextLengthError, EmptyPrefixError, InvalidConfigError, ModelError
from outrider.types.records import Prefix, RoundRecord
from tests.support.families import CONTEXT, VOCAB, resembling

pytest.importorskip("llama_cpp", reason="llama.cpp is not installed")
pytest.importorskip("gguf", reason="gguf writes the files of these tests")

from outrider.runtimes.llama_cpp.library import (
    Batch,
    Context,
    Settings,
    Weights,
    refuse_others,
    repacks,
)
from outrider.runtimes.llama_cpp.model import LlamaCppModel
from tests.support.gguf_files import UNFIT, gguf_model, write_gguf, write_unfit

NOTHING: Row = ([], [])


def chain(*tokens: int) -> Row:
    return tokens, range(len(tokens))


@pytest.fixture(scope="module")
def model() -> Any:
    return gguf_model("llama")


@pytest.fixture(scope="module")
def path(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(model, tmp_path_factory.mktemp("gguf") / "llama.gguf")


def exact(path: Path, **options: Any) -> LlamaCppModel:
    return LlamaCppModel(path, kv_dtype="float32", **options)


@contextmanager
def computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many tokens each forward computes meanwhile."""
    counts: list[int] = []
    compute = Context.compute

    def noted(context: Context, batch: Batch) -> Any:
        counts.append(len(batch.tokens))
        return compute(context, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Context, "compute", noted)
        yield counts


def test_each_token_is_computed_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt in one forward; then one token and the drafts; of a tree what stands in line."""
    runtime = exact(path, max_sequences=2)
    text = [5, 6, 7, 8, 9]
    fork: Row = ([7, 8, 9, 10], [0, 0, 1, 2])
    with computed(monkeypatch) as counts:
        runtime.verify([Prefix(1, text)], proposal([chain(1, 2, 3)]))
        runtime.verify([Prefix(1, [*text, 1, 4])], proposal([fork]))
        runtime.verify([Prefix(1, [*text, 1, 4, 7, 10, 3])], proposal([NOTHING]))
        # Another sequence shares it all, and so does the first again.
        runtime.verify([Prefix(2, [*text, 1, 4, 7, 2])], proposal([chain(1)]))
        cursor = runtime.open([Prefix(1, [*text, 1, 4, 7, 10, 3, 6])], 3)
        cursor.step(torch.tensor([4]))
        cursor.step(torch.tensor([5]))
        runtime.verify([Prefix(1, [*text, 1, 4, 7, 10, 3, 6, 4, 5, 2])], proposal([NOTHING]))
    assert counts == [8, 5, 2, 2, 1, 1, 1, 1]


def test_ragged_rows_and_trees_share_one_forward(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = exact(path, max_sequences=3)
    prefixes = [Prefix(name, [name + 1] * 3) for name in range(3)]
    rows: list[Row] = [NOTHING, chain(1, 2, 3), ([1, 2, 3, 4], [0, 0, 1, 1])]
    with computed(monkeypatch) as counts:
        logits = runtime.verify(prefixes, proposal(rows)).logits
    assert counts == [3 + 3 + 3 + 3 + 4]
    assert logits.shape == (3, 5, VOCAB)
    assert logits.dtype == torch.float32
    assert not logits[0, 1:].any()


def test_what_of_a_new_prefix_was_computed_already_is_reported(path: Path) -> None:
    runtime = exact(path, max_sequences=3)
    rng = np.random.default_rng(0)
    shared, other = rng.integers(61, size=40).tolist(), rng.integers(61, size=30).tolist()
    one, two = proposal([NOTHING]), proposal([NOTHING] * 2)
    assert runtime.verify([Prefix(0, shared)], one).cached == (0,)
    assert runtime.verify([Prefix(0, [*shared, 1])], one).cached == (0,)
    found = runtime.verify([Prefix(2, other), Prefix(1, [*shared, 5, 7])], two)
    assert found.cached == (0, 40)
    runtime.release([0, 1, 2])
    assert runtime.verify([Prefix(3, [*other, 3])], one).cached == (30,)
    runtime.release([3], discard=True)
    assert runtime.verify([Prefix(4, [*other, 3])], one).cached == (0,)


def test_cells_are_freed_before_more_are_made(path: Path) -> None:
    runtime, rng = exact(path, max_sequences=8), np.random.default_rng(2)
    reference = exact(path, max_sequences=1)
    texts = [rng.integers(VOCAB, size=150).tolist() for _ in range(7)]
    for name, text in enumerate(texts):
        # Three are live at most, which fit; the idle ones make room.
        runtime.verify([Prefix(name, text)], proposal([chain(1, 2)]))
        runtime.release([name - 2])
    assert runtime._cells == 512
    prefixes = [Prefix(10 + name, text) for name, text in enumerate(texts[:5])]
    logits = runtime.verify(prefixes, proposal([chain(3)] * 5)).logits
    assert runtime._cells == 1024
    for row, prefix in enumerate(prefixes):
        alone = reference.verify([Prefix(0, prefix.tokens)], proposal([chain(3)])).logits[0]
        assert torch.allclose(logits[row], alone, atol=1e-3)
    runtime.check_integrity()


def test_a_choice_of_many_shares_the_cells_of_its_prompt(path: Path) -> None:
    runtime = exact(path, max_sequences=16)
    text = np.random.default_rng(3).integers(VOCAB, size=150).tolist()
    prefixes = [Prefix(name, text) for name in range(16)]
    runtime.verify(prefixes, proposal([chain(name) for name in range(16)]))
    assert runtime._cells == 512


def test_a_cursor_goes_on_while_cells_are_made_and_an_older_one_does_not(path: Path) -> None:
    runtime, rng = exact(path, max_sequences=4), np.random.default_rng(4)
    texts = [rng.integers(VOCAB, size=size).tolist() for size in (150, 150, 100, 90)]
    older = runtime.open([Prefix(0, texts[0]), Prefix(1, texts[1])], 9)
    cursor = runtime.open([Prefix(2, texts[2]), Prefix(3, texts[3])], 20)
    fed = rng.integers(VOCAB, size=(20, 2))
    for tokens in fed:
        cursor.step(torch.from_numpy(tokens))
    assert runtime._cells == 1024
    longer = Prefix(9, [*texts[1], 2])
    expected = exact(path).verify([longer], proposal([NOTHING])).logits[0, 0]
    assert torch.allclose(older.step(torch.tensor([1, 2]))[1], expected, atol=1e-3)
    alone = Prefix(0, [*texts[3], *fed[:, 1].tolist()])
    expected = exact(path).verify([alone], proposal([NOTHING])).logits[0, 0]
    assert torch.allclose(cursor.logits[1], expected, atol=1e-3)


def test_a_context_that_cannot_be_made_leaves_the_runtime_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, rng = exact(path, max_sequences=4), np.random.default_rng(5)
    prefixes = [Prefix(name, rng.integers(VOCAB, size=150).tolist()) for name in range(4)]
    make = Context.__init__

    def small(context: Context, weights: Weights, settings: Settings, cells: int) -> None:
        if cells > 512:
            raise ModelError(f"no memory for {cells}")
        make(context, weights, settings, cells)

    monkeypatch.setattr(Context, "__init__", small)
    with pytest.raises(ModelError, match="no memory for 1024"):
        runtime.verify(prefixes, proposal([NOTHING] * 4))
    runtime.release([0, 1, 2, 3])
    found = runtime.verify(prefixes[:2], proposal([NOTHING] * 2)).logits[0]
    plain = exact(path).verify(prefixes[:1], proposal([NOTHING])).logits[0]
    assert torch.allclose(found, plain, atol=1e-3)


def test_a_cursor_says_where_its_context_ends(path: Path) -> None:
    runtime = exact(path, max_sequences=2)
    one = torch.tensor([4])
    cursor = runtime.open([Prefix(1, [1] * (CONTEXT - 1))], 8)
    cursor.step(one)
    with pytest.raises(ContextLengthError, match=r"context is 160: draft no further"):
        cursor.step(one)
    both = runtime.open([Prefix(1, [1] * CONTEXT), Prefix(2, [1, 2])], 3)
    before = both.logits[0]
    assert torch.allclose(both.step(torch.tensor([4, 5]))[0], before, atol=1e-3)
    cursor = runtime.open([Prefix(2, [1, 2])], 3)
    cursor.step(one)
    with pytest.raises(ModelError, match="is fed chains, and no trees"):
        cursor.expand(one[None], one[None] * 0)


def test_a_target_on_llama_cpp_takes_a_draft_of_transformers_and_the_reverse(
    model: Any, path: Path
) -> None:
    """The text is greedy decoding's own; llama.cpp drafts chains where trees are asked for."""
    greedy = SamplingParams(max_tokens=24, temperature=0)
    prompts = [[4, 5], [9, 8, 7, 6], [1]]
    expected = [out.token_ids for out in SpeculativeDecoder(exact(path)).generate(prompts, greedy)]
    draft = TransformersModel(resembling(model))
    pairs = [(exact(path), draft), (TransformersModel(model), exact(path))]
    for target, drafter in pairs:
        for shaped in ({}, {"tree_shape": (2, 2, 1)}):
            config = SpeculativeConfig(depth="fixed", num_speculative_tokens=3, **shaped)
            rounds: list[RoundRecord] = []
            decoder = SpeculativeDecoder(target, drafter, config=config, on_round=rounds.append)
            found = decoder.generate(prompts, greedy)
            assert [out.token_ids for out in found] == expected
            assert decoder.metrics.accepted > 0
            chains = drafter is not draft or not shaped
            assert chains is all(max(each.drafted) == max(each.depth) for each in rounds)


def test_prefixes_that_do_not_fit_are_refused(path: Path) -> None:
    runtime = exact(path)
    with pytest.raises(ContextLengthError, match=r"161 tokens and 1 drafts.*context is 160"):
        runtime.verify([Prefix(1, [1] * 161)], proposal([chain(1)]))
    with pytest.raises(EmptyPrefixError, match="sequence 1 has no tokens"):
        runtime.open([Prefix(1, [])], 2)
    with pytest.raises(ModelError, match=rf"invalid token.* = {VOCAB}"):
        runtime.verify([Prefix(1, [1, VOCAB])], proposal([NOTHING]))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_sequences", 0),
        ("max_sequences", 257),
        ("prefill_chunk", 0),
        ("max_length", 161),
        ("gpu_layers", -2),
        ("kv_dtype", "int4"),
    ],
)
def test_bad_arguments_are_refused_by_name(path: Path, field: str, value: Any) -> None:
    with pytest.raises(InvalidConfigError, match=f"{field}={value!r}"):
        LlamaCppModel(path, **{field: value})


def test_files_that_are_no_gguf_are_refused(path: Path, tmp_path: Path) -> None:
    for absent in (tmp_path / "absent.gguf", tmp_path):
        with pytest.raises(ModelError, match="cannot load"):
            LlamaCppModel(absent)
    other = tmp_path / "other.gguf"
    other.write_bytes(b"PK\3\4 and more")
    with pytest.raises(ModelError, match=r"cannot load .*magic"):
        LlamaCppModel(other)
    whole = path.read_bytes()
    for size in (6, 200, len(whole) // 2, len(whole) - 64):
        other.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"cannot load .*other.gguf'.*; expected a whole GGUF"):
            LlamaCppModel(other)


@pytest.mark.parametrize("runtime", ["auto", "transformers", "openvino"])
@pytest.mark.parametrize(("data", "said"), [(b"", "is empty"), (b"PK", r"begins with b'PK'")])
def test_a_file_that_is_no_gguf_is_refused_before_anything_is_loaded(
    data: bytes, said: str, runtime: Any, tmp_path: Path
) -> None:
    (tmp_path / "x.gguf").write_bytes(data)
    with pytest.raises(ModelError, match=rf"x\.gguf' {said}"):
        load(tmp_path / "x.gguf", runtime=runtime)


def test_a_split_file_is_loaded_by_its_first_part(model: Any, tmp_path: Path) -> None:
    write_gguf(model, tmp_path / "llama.gguf", tensors=20)
    first, *others = sorted(tmp_path.iterdir())
    assert others
    text = [Prefix(1, [3, 5, 7])]
    found = LlamaCppModel(first, kv_dtype="float32").verify(text, proposal([NOTHING])).logits
    with torch.no_grad():
        expected = model(torch.tensor([[3, 5, 7]])).logits[0, -1]
    assert torch.allclose(found[0, 0], expected, atol=1e-3)
    with pytest.raises(ModelError, match=r"split.*of a split one the first part"):
        LlamaCppModel(others[0])
    others[0].unlink()
    with pytest.raises(ModelError, match="cannot load"):
        LlamaCppModel(first)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("mamba", "cannot be cut back"), ("t5", r"has an encoder \(t5\)"), ("bert", "embeds texts")],
)
def test_models_that_cannot_be_decoded_speculatively_are_refused(
    kind: str, reason: str, tmp_path: Path
) -> None:
    assert kind in UNFIT
    with pytest.raises(ModelError, match=reason):
        LlamaCppModel(write_unfit(kind, tmp_path / "model.gguf"))


def test_a_model_that_computes_differently_in_longer_contexts_stays_in_its_original_one(
    tmp_path: Path,
) -> None:
    """Its original context is 512 tokens of 1024."""

    def scaled(writer: Any) -> None:
        writer.add_tokenizer_model("no_vocab")
        writer.add_vocab_size(VOCAB)
        writer.add_rope_scaling_orig_ctx_len(512)

    model = gguf_model("phi3", max_position_embeddings=1024)
    runtime = LlamaCppModel(write_gguf(model, tmp_path / "phi3.gguf", scaled))
    assert runtime.max_length == 512
    with pytest.raises(InvalidConfigError, match=r"max_length=600.*2\.\.512, the model's context"):
        LlamaCppModel(tmp_path / "phi3.gguf", max_length=600)
    texts = np.random.default_rng(6).integers(VOCAB, size=(2, 400)).tolist()
    runtime.verify([Prefix(1, texts[0])], proposal([NOTHING]))
    with pytest.raises(ModelError, match="all 512 tokens of the context are in use"):
        runtime.verify([Prefix(2, texts[1])], proposal([NOTHING]))
    runtime.release([1])
    runtime.verify([Prefix(2, texts[1])], proposal([NOTHING]))


def test_a_context_that_llama_cpp_refuses_is_an_error_in_its_words(path: Path) -> None:
    settings = Settings(ids=257, chunk=8, threads=1, kv_type=0)
    with pytest.raises(ModelError, match="n_seq_max must be <= 256; expected memory"):
        Context(Weights(path), settings, 512)


def test_native_memory_is_freed_with_its_owner(path: Path) -> None:
    runtime = exact(path)
    runtime.verify([Prefix(1, [1, 2])], proposal([NOTHING]))
    context, weights = runtime._open_context(), runtime._weights
    closed = context.close, weights._free
    gone = weakref.ref(context)
    del runtime, context, weights
    gc.collect()
    assert gone() is None
    assert not any(each.alive for each in closed)


def test_llama_cpp_logs_to_python_and_not_to_the_terminal(
    path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG, logger="outrider.runtimes.llama_cpp"):
        LlamaCppModel(path)
    assert "n_ctx" in caplog.text
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
    assert capfd.readouterr() == ("", "")


def test_runtimes_of_the_same_file_know_nothing_of_each_other(path: Path) -> None:
    one = exact(path, max_sequences=2)
    asked = [Prefix(1, [1, 2, 3])], proposal([NOTHING])
    before = one.verify(*asked).logits
    other = one.fresh(3)
    assert (one.max_sequences, other.max_sequences) == (2, 3)
    assert (one.name, one.precision) == (other.name, other.precision) == ("llama_cpp", "all F32")
    assert not other.live_sequences
    assert torch.allclose(before, other.verify(*asked).logits, atol=1e-4)
    other.verify([Prefix(7, [9, 9])], proposal([NOTHING]))
    assert (one.live_sequences, other.live_sequences) == ({1}, {1, 7})
    assert torch.allclose(before, one.verify(*asked).logits, atol=1e-4)


def test_kernels_for_amx_are_left_out() -> None:
    assert repacks(b"CPU : AVX512_VNNI = 1 | REPACK = 1 | ")
    assert not repacks(b"CPU : AVX512_VNNI = 1 | AMX_INT8 = 1 | REPACK = 1 | ")


def test_a_draft_head_is_refused_by_its_name() -> None:
    head: Any = SimpleNamespace(path="head.gguf", stated=lambda _: "eagle3")
    with pytest.raises(ModelError, match=r"'head.gguf' is a draft head \(eagle3\)"):
        refuse_others(head)
