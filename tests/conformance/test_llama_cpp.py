"""The llama.cpp runtime passes the runtimes' kit; each planted fault fails by its own name."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outrider.certify.kits.references import TransformersReference
from outrider.certify.kits.runtime import check_runtime
from outrider.certify.kits.runtime_case import proposal
from outrider.certify.runtime import runtime_tier
from outrider.errors import ModelError
from outrider.runtimes.llama_cpp.slots import Slot
from outrider.types.finding import Finding
from outrider.types.records import Prefix
from tests.support.families import CONTEXT, VOCAB
from tests.support.interrupts import interrupted_at

pytest.importorskip("llama_cpp", reason="llama.cpp is not installed")
pytest.importorskip("gguf", reason="gguf writes the files of these tests")

from gguf import GGMLQuantizationType

from outrider.runtimes.llama_cpp import model as llama_cpp_model
from outrider.runtimes.llama_cpp.forest import Part, batch_of
from outrider.runtimes.llama_cpp.library import Batch, Context, Ids
from outrider.runtimes.llama_cpp.model import LlamaCppModel
from tests.support.gguf_files import ARCHITECTURES, HYBRIDS, gguf_model, write_gguf

REJECTION = "logits after a rejected draft are those of a fresh forward"
TREES = "every node of a tree sees its own path"
EXCEPTION = "an exception leaves nothing wrong behind"

TOLERANCE = 1e-4
"""Sums of float32 in another order, on random weights that are wide."""

GELU_TOLERANCE = 5e-3
"""llama.cpp takes GELU from a table in half precision, with steps of 5e-4."""

GELU = {"falcon", "gemma2", "gemma3", "gpt2", "gpt_neox", "phi"}

QUICK = {"llama", "gemma3", "qwen3_5"}

SEEDS = {"falcon": 1}
"""Of models whose greedy text has no ties within the tolerance."""


COMPUTE = Context.compute

SLOTS = frozenset(
    str(Path(llama_cpp_model.__file__).with_name(name))
    for name in ("model.py", "slots.py", "states.py")
)
"""The files of the slots and of what calls them."""


def failed(findings: Iterable[Finding]) -> dict[str, str]:
    return {finding.name: finding.detail for finding in findings if not finding.passed}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TransformersReference]:
    model = gguf_model("llama")
    path = write_gguf(model, tmp_path_factory.mktemp("gguf") / "llama.gguf")
    return path, TransformersReference(model)


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=() if family in QUICK else pytest.mark.slow)
        for family in (*ARCHITECTURES, *HYBRIDS)
    ],
)
def test_every_family_passes(family: str, tmp_path: Path) -> None:
    model = gguf_model(family, SEEDS.get(family, 0))
    path = write_gguf(model, tmp_path / "model.gguf")
    found = check_runtime(
        lambda: LlamaCppModel(path, max_sequences=4, kv_dtype="float32"),
        TransformersReference(model),
        tolerance=GELU_TOLERANCE if family in GELU else TOLERANCE,
    )
    assert not failed(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "slots", "chunk"),
    [
        *(("llama", *each) for each in ((1, 5), (2, 1), (256, 512))),
        *(("hybrid", *each) for each in ((1, 5), (2, 1), (85, 512))),
    ],
)
def test_any_number_of_slots_and_any_chunk_pass(
    model: str, slots: int, chunk: int, request: pytest.FixtureRequest
) -> None:
    """With the most slots few sequence ids are left for trees, or none: paths are taken singly."""
    path, reference = request.getfixturevalue(model)
    found = check_runtime(
        lambda: LlamaCppModel(path, max_sequences=slots, prefill_chunk=chunk, kv_dtype="float32"),
        reference,
        tolerance=TOLERANCE,
    )
    assert not failed(found)


def test_keys_and_values_in_half_precision_pass_within_their_rounding(
    llama: tuple[Path, TransformersReference],
) -> None:
    """But for the greedy text: rounded logits tie."""
    path, reference = llama
    found = check_runtime(lambda: LlamaCppModel(path, max_sequences=4), reference, tolerance=0.05)
    assert failed(found).keys() <= {"greedy text is the reference's"}


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TransformersReference]:
    model = gguf_model("qwen3_5")
    path = write_gguf(model, tmp_path_factory.mktemp("gguf") / "hybrid.gguf")
    return path, TransformersReference(model)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each forward computed."""
    found: list[int] = []

    def counted(context: Context, batch: Batch) -> Any:
        logits = COMPUTE(context, batch)
        found.append(len(batch.tokens))
        return logits

    monkeypatch.setattr(Context, "compute", counted)
    return found


def with_finished_texts(path: Path) -> LlamaCppModel:
    """Return a model most of whose cells hold texts that are finished."""
    model = LlamaCppModel(path, max_sequences=6, kv_dtype="float32")
    rng = np.random.default_rng(3)
    for name in range(4):
        other = rng.integers(VOCAB, size=110).tolist()
        model.verify([Prefix(name, other)], proposal([([], [])]))
    model.release(range(4))
    return model


def test_a_hybrid_goes_on_from_the_end_of_a_prompt_and_computes_little_again(
    hybrid: tuple[Path, TransformersReference], counts: list[int]
) -> None:
    """Counted in tokens: those of a prompt once, of a round its drafts and what was kept before."""
    path, reference = hybrid
    model = LlamaCppModel(path, max_sequences=2, kv_dtype="float32")
    text = np.random.default_rng(3).integers(VOCAB, size=60).tolist()

    def verified(name: int, length: int, drafts: list[int]) -> int:
        row = drafts, range(len(drafts))
        found = model.verify([Prefix(name, text[:length])], proposal([row])).logits[0]
        for place, logits in enumerate(found):
            expected = reference.logits((*text[:length], *drafts[:place]))
            assert float((logits - expected).abs().max() / expected.abs().max()) < TOLERANCE
        return counts.pop()

    assert verified(0, 40, []) == 40
    assert [verified(0, length, []) for length in (41, 42)] == [1, 1]  # plain decoding
    assert verified(0, 43, text[43:46]) == 4
    assert verified(0, 47, [1, 2]) == 3  # all were kept
    assert verified(0, 48, text[48:50]) == 4  # none was: the state is one token back
    assert verified(0, 50, [1]) == 4  # one of two was
    cursor = model.open([Prefix(0, text[:51])], 3)
    counts.clear()
    cursor.step(torch.tensor([text[51]]))
    cursor.step(torch.tensor([text[52]]))
    assert counts == [1, 1]
    model.release([0])
    assert model.lookup(Prefix(1, [*text[:40], 9, 9])).tokens == 39
    assert verified(1, 55, []) == 2  # what was drafted of the other text is found as well
    model.check_integrity()


@pytest.mark.parametrize(("kind", "leaves"), [("llama", 40), ("hybrid", 8)])
def test_the_likeliest_path_of_a_tree_that_takes_several_forwards_is_kept(
    kind: str, leaves: int, counts: list[int], request: pytest.FixtureRequest
) -> None:
    """The likeliest child of a node is the first."""
    path, reference = request.getfixturevalue(kind)
    model = LlamaCppModel(path, max_sequences=2, kv_dtype="float32")
    text, others = [5, 3, 8, 1], range(12, 9 + leaves)
    tree = [7, 9, 2, 4, 11, *others], [0, 0, 1, 1, 3, *[0] * len(others)]
    model.verify([Prefix(0, text)], proposal([tree]))
    assert len(counts) > 1
    counts.clear()
    text += [7, 2, 11, 20]
    found = model.verify([Prefix(0, text)], proposal([([], [])])).logits[0, 0]
    assert counts == [1]
    expected = reference.logits(tuple(text))
    assert float((found - expected).abs().max() / expected.abs().max()) < TOLERANCE
    model.check_integrity()


def test_a_hybrid_computes_nothing_again_when_cells_of_finished_texts_are_freed(
    hybrid: tuple[Path, TransformersReference], counts: list[int]
) -> None:
    path, reference = hybrid
    model, rng = with_finished_texts(path), np.random.default_rng(4)
    text = rng.integers(VOCAB, size=140).tolist()
    model.verify([Prefix(4, text[:50])], proposal([([], [])]))
    counts.clear()
    for length in range(51, 130):
        drafts = [text[length], (text[length + 1] + 1) % VOCAB]
        found = model.verify([Prefix(4, text[:length])], proposal([(drafts, range(2))]))
    expected = reference.logits((*text[:129], *drafts))
    assert float((found.logits[0, 2] - expected).abs().max() / expected.abs().max()) < TOLERANCE
    assert model._cells == 512
    assert not any(len(slot.tokens) for slot in model._table.slots[:4])
    assert max(counts) <= 4, counts


def test_a_hybrid_that_drafts_computes_nothing_again_when_cells_are_freed(
    hybrid: tuple[Path, TransformersReference], counts: list[int]
) -> None:
    path, reference = hybrid
    model, rng = with_finished_texts(path), np.random.default_rng(4)
    texts = rng.integers(VOCAB, size=(2, 60))
    cursor = model.open([Prefix(name, text[:3]) for name, text in enumerate(texts, 4)], 57)
    counts.clear()
    for tokens in texts[:, 3:].T:
        cursor.step(torch.from_numpy(tokens))
    assert not any(len(slot.tokens) for slot in model._table.slots[:4])
    assert counts == [2] * 57
    for logits, text in zip(cursor.logits, texts.tolist(), strict=True):
        expected = reference.logits(tuple(text))
        assert float((logits - expected).abs().max() / expected.abs().max()) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "hybrid"])
def test_an_interrupt_at_any_line_leaves_no_wrong_cells(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """A round of two sequences is broken off, and a third comes; then all are asked again."""
    path, reference = request.getfixturevalue(kind)
    model = LlamaCppModel(path, max_sequences=4, prefill_chunk=4, kv_dtype="float32")
    text = np.random.default_rng(7).integers(VOCAB, size=30).tolist()
    other = [*text[:9], *np.random.default_rng(8).integers(VOCAB, size=12).tolist()]
    chain, tree = (text[8:10], range(2)), ([1, 2, 3], [0, 0, 1])
    line, reached = 0, True
    while reached:
        line += 1
        model.release(list(model.live_sequences), discard=bool(line % 2))
        names = range(3 * line, 3 * line + 3)
        model.verify(
            [Prefix(names[0], text[:8]), Prefix(names[1], other[:12])], proposal([chain, tree])
        )
        with interrupted_at(line, SLOTS) as trace:
            model.verify(
                [Prefix(names[0], text[:11]), Prefix(names[1], other[:13])],
                proposal([([5], [0]), tree]),
            )
            model.verify([Prefix(names[2], other[:15])], proposal([([], [])]))
        reached = trace.left <= 0
        rows: list[Any] = [(text, 10), (other, 14), (other, 16)]
        asked = [
            Prefix(name, tokens[:length])
            for name, (tokens, length) in zip(names, rows, strict=True)
        ]
        found = model.verify(asked, proposal([([], [])] * 3)).logits[:, 0]
        for logits, (tokens, length) in zip(found, rows, strict=True):
            expected = reference.logits(tuple(tokens[:length]))
            error = float((logits - expected).abs().max() / expected.abs().max())
            assert error < TOLERANCE, line
        model.check_integrity()
    assert line > 150


def test_a_forward_that_was_broken_off_leaves_no_wrong_state(
    hybrid: tuple[Path, TransformersReference], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, reference = hybrid
    model = LlamaCppModel(path, max_sequences=3, kv_dtype="float32")
    text = np.random.default_rng(5).integers(VOCAB, size=40).tolist()
    model.verify([Prefix(0, text[:12])], proposal([(text[12:14], range(2))]))
    made: list[Context | None] = [model._context]
    with monkeypatch.context() as patch:
        patch.setattr("llama_cpp.llama_decode", lambda *_: 2)
        with pytest.raises(ModelError, match="status 2"):
            model.verify([Prefix(1, text[:9])], proposal([([], [])]))
    for name, length in ((0, 15), (1, 9), (2, 20)):
        found = model.verify([Prefix(name, text[:length])], proposal([([], [])])).logits[0, 0]
        expected = reference.logits(tuple(text[:length]))
        assert float((found - expected).abs().max() / expected.abs().max()) < TOLERANCE
    assert model._context is not made[0]
    model.check_integrity()


def test_long_batches_are_right_beside_a_sliding_window(tmp_path: Path) -> None:
    """Rows go on and back at random, with cells that later pieces of a forward would take over."""
    model = gguf_model("gemma3")
    path, reference = write_gguf(model, tmp_path / "model.gguf"), TransformersReference(model)
    worst = 0.0
    for seed in (4, 8):
        rng = random.Random(seed)
        runtime = LlamaCppModel(path, max_sequences=2, prefill_chunk=3, kv_dtype="float32")
        texts = [[rng.randrange(VOCAB) for _ in range(40)] for _ in range(2)]
        for _ in range(26):
            names = rng.choice([[0], [1], [0, 1]])
            prefixes = [Prefix(name, texts[name][: rng.randrange(1, 30)]) for name in names]
            counts = [rng.choice([0, 0, 6]) for _ in names]
            rows = [([rng.randrange(VOCAB) for _ in range(n)], range(n)) for n in counts]
            found = runtime.verify(prefixes, proposal(rows)).logits[:, 0]
            for logits, prefix in zip(found, prefixes, strict=True):
                own = reference.logits(tuple(prefix.tokens.tolist()))
                worst = max(worst, float((logits - own).abs().max() / own.abs().max()))
    assert worst < GELU_TOLERANCE


class NearlyFull(LlamaCppModel):
    """Three live sequences leave so few cells that the next call makes a larger context."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, max_sequences=5, kv_dtype="float32")
        rng = np.random.default_rng(1)
        for name in range(1001, 1004):
            text = rng.integers(VOCAB, size=CONTEXT - 1).tolist()
            self.verify([Prefix(name, text)], proposal([([], [])]))


def test_an_exception_while_cells_are_made_leaves_nothing_wrong_behind(
    llama: tuple[Path, TransformersReference],
) -> None:
    path, reference = llama
    made: list[NearlyFull] = []

    def make() -> NearlyFull:
        made.append(NearlyFull(path))
        return made[-1]

    found = check_runtime(make, reference, tolerance=TOLERANCE, names={EXCEPTION})
    assert not failed(found)
    assert {model._cells for model in made} == {1024}


# Planted faults: each is a runtime that is wrong in one way.


@pytest.fixture
def stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells are taken for those of the prefix, whatever was drafted."""
    monkeypatch.setattr(Slot, "shared", lambda slot, prefix: min(len(slot.tokens), len(prefix)))


@pytest.fixture
def uncut(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was drafted stays in cells."""
    cut = Context.cut
    monkeypatch.setattr(
        Context, "cut", lambda context, sequence, start: start > 0 or cut(context, sequence, start)
    )


@pytest.mark.parametrize("fault", ["uncut", "stale"])
def test_a_runtime_that_keeps_rejected_drafts_fails_by_name(
    fault: str, llama: tuple[Path, TransformersReference], request: pytest.FixtureRequest
) -> None:
    path, reference = llama
    request.getfixturevalue(fault)
    found = check_runtime(
        lambda: LlamaCppModel(path, max_sequences=4, kv_dtype="float32"),
        reference,
        tolerance=TOLERANCE,
        names={REJECTION, "capabilities are true"},
    )
    assert failed(found).keys() == {REJECTION}


def by_one_id(part: Part, ids: Ids, below: Any) -> Batch:
    """All tokens belong to one sequence, so that paths see each other."""
    batch = batch_of(part, ids, below)
    size = len(batch.tokens)
    return replace(batch, counts=np.ones(size, np.int32), ids=np.full(size, ids[0], np.int32))


def by_column(part: Part, ids: Ids, below: Any) -> Batch:
    """A node stands at its column, whatever it follows."""
    batch = batch_of(part, ids, below)
    return replace(
        batch, positions=np.arange(part.start, part.start + len(batch.tokens), dtype=np.int32)
    )


@pytest.mark.parametrize("fault", [by_one_id, by_column])
def test_a_tree_whose_paths_are_mixed_fails_by_name(
    fault: Any, llama: tuple[Path, TransformersReference], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, reference = llama
    monkeypatch.setattr(llama_cpp_model, "batch_of", fault)
    found = check_runtime(
        lambda: LlamaCppModel(path, max_sequences=4, kv_dtype="float32"),
        reference,
        tolerance=TOLERANCE,
        names={TREES, REJECTION},
    )
    assert failed(found).keys() == {TREES}


def test_a_stale_token_is_seen_in_quantised_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the kit allows the most, since what is computed together changes logits."""
    kind = GGMLQuantizationType.Q4_0
    path = write_gguf(
        gguf_model("llama", intermediate_size=64), tmp_path / "model.gguf", matrices=kind
    )
    target = LlamaCppModel(path, max_sequences=4)
    assert not failed(runtime_tier(lambda *_: None, target))
    monkeypatch.setattr(Slot, "shared", lambda slot, prefix: min(len(slot.tokens), len(prefix)))
    assert REJECTION in failed(runtime_tier(lambda *_: None, target))


def cut_back_error(path: Path, reference: TransformersReference) -> float:
    """The largest error after texts are cut back beyond a window of 7, when cells were used up."""
    rng = np.random.default_rng(7)
    runtime = LlamaCppModel(path, max_sequences=3, kv_dtype="float32")
    texts = rng.integers(VOCAB, size=(3, CONTEXT - 4)).tolist()
    worst = 0.0
    for turn in range(12):
        name = turn % 3
        # Cut back to where it has been before, and a long way on again.
        cut = int(rng.integers(20, 120))
        for tokens in ([*texts[name][:cut], turn], texts[name]):
            row = rng.integers(VOCAB, size=2).tolist(), range(2)
            found = runtime.verify([Prefix(name, tokens)], proposal([row])).logits[0, 0]
            expected = reference.logits(tuple(tokens))
            worst = max(worst, float((found - expected).abs().max() / expected.abs().max()))
    runtime.check_integrity()
    return worst


def test_texts_are_cut_back_beyond_a_sliding_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gguf_model("gemma3")
    path = write_gguf(model, tmp_path / "model.gguf")
    reference = TransformersReference(model)
    assert cut_back_error(path, reference) < GELU_TOLERANCE
    monkeypatch.setattr(Context, "first", lambda context, sequence: 0)
    assert cut_back_error(path, reference) > 10 * GELU_TOLERANCE
