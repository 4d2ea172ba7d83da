"""Every runtime that ships passes the kit; each planted fault fails by its own name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from outrider import TransformersModel
from outrider.certify.kits.references import TransformersReference
from outrider.certify.kits.runtime import CHECKS, check_runtime
from outrider.certify.runtime import runtime_tier
from outrider.drafters.base import nothing_drafted
from outrider.errors import ModelError
from outrider.runtimes.base import Capabilities, rounding_of
from outrider.runtimes.blocks import BlockPool
from outrider.runtimes.flat import Computed, DraftedTokens, FlatBatch
from outrider.runtimes.paged import PagedModel
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.runtimes.transformers.block_cache import BlockCache
from outrider.types import trees
from outrider.types.finding import Finding
from outrider.types.records import DraftProposal, Prefix, TargetScores
from tests.support.families import FAMILIES, random_model
from tests.support.narrow import REJECTION, CutsNothing, RoundsToEightBits, RoundsWithItsCache

PARTS = "a prompt may be prefilled in parts"
RAGGED = "rows of different lengths do not disturb each other"


@pytest.fixture(scope="module")
def llama() -> tuple[Any, TransformersReference]:
    model = random_model("llama")
    return model, TransformersReference(model)


def failed(findings: Iterable[Finding]) -> dict[str, str]:
    return {finding.name: finding.detail for finding in findings if not finding.passed}


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=() if family == "llama" else pytest.mark.slow)
        for family in FAMILIES
    ],
)
def test_the_transformers_runtime_passes(family: str) -> None:
    model = random_model(family)
    # Norms are taken in float32 whatever the model's dtype: a value between two of its numbers may
    # be rounded to either. Gemma 2 takes the softmax of its attention in float32, too.
    tolerance = 1e-5 if family == "gemma2" else 1e-6
    reference = TransformersReference(model)
    found = check_runtime(
        lambda: TransformersModel(model, max_sequences=4), reference, tolerance=tolerance
    )
    assert not failed(found)


@pytest.mark.slow
def test_one_slot_and_small_chunks_pass() -> None:
    model = random_model("llama")
    found = check_runtime(
        lambda: TransformersModel(model, max_sequences=1, prefill_chunk=5),
        TransformersReference(model),
    )
    assert not failed(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.slow
def test_narrow_dtypes_pass_within_their_rounding(dtype: torch.dtype) -> None:
    """But for the greedy text: rounded logits tie."""
    model = random_model("qwen3").to(dtype)
    tolerance = 1e-4 if dtype is torch.float32 else 0.2
    names = {name for name, _ in CHECKS} - {"greedy text is the reference's"}
    found = check_runtime(
        lambda: TransformersModel(model, max_sequences=4),
        TransformersReference(model),
        tolerance=tolerance,
        names=names,
    )
    assert not failed(found)


@pytest.mark.parametrize("kind", [RoundsWithItsCache, RoundsToEightBits])
def test_tolerances_go_by_what_a_runtime_computes_with(kind: type[TransformersModel]) -> None:
    """Not by the dtype of its logits: the check at construction, and the kit's own tolerance."""
    model = random_model("llama").float()
    found = check_runtime(
        lambda: kind(model, max_sequences=4), TransformersReference(model), names={REJECTION}
    )
    assert not failed(found)


@pytest.mark.parametrize(("products", "eps"), [("bf16", 2.0**-7), ("tf32", 2.0**-10)])
def test_float32_that_torch_multiplies_in_a_narrower_type_rounds_as_that(
    products: str, eps: float
) -> None:
    matmul = torch.backends.mkldnn.matmul
    before = matmul.fp32_precision
    narrow, wide = random_model("llama").float(), random_model("llama")
    matmul.fp32_precision = products
    try:
        assert TransformersModel(narrow).rounding == rounding_of(eps)
        assert TransformersModel(wide).rounding == rounding_of(2.0**-52)
    finally:
        matmul.fp32_precision = before


class CutsNothingAndRounds(CutsNothing, RoundsWithItsCache):
    pass


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (CutsNothing, torch.float32),
        (CutsNothing, torch.bfloat16),
        (CutsNothingAndRounds, torch.float32),
    ],
)
def test_a_cache_that_is_not_cut_back_is_found_at_any_rounding(
    kind: type[TransformersModel], dtype: torch.dtype, wide: bool
) -> None:
    """Also where a token left in the cache moves logits by less than rounding may."""
    model = random_model("gpt2").to(dtype)
    if not wide:
        with torch.no_grad():
            for block in model.transformer.h:
                for each in block.parameters():
                    each.mul_(0.05)
    with pytest.raises(ModelError, match=r"other logits after (a|one) rejected draft"):
        kind(model)


@pytest.mark.parametrize("name", [name for name, _ in CHECKS])
def test_the_tabular_runtime_passes(name: str) -> None:
    (found,) = check_runtime(lambda: mock_pair(5, seed=1)[0], names=[name])
    assert found.passed, found.detail


def test_a_loaded_model_is_put_through_the_kit_in_slots_of_its_own(
    llama: tuple[Any, TransformersReference],
) -> None:
    model = TransformersModel(llama[0], max_sequences=2)
    kept = Prefix(7, [1, 2, 3])
    before = model.verify([kept], nothing_drafted(1, model.device)).logits
    steps: list[str] = []
    found = runtime_tier(lambda _done, _total, name: steps.append(name), model)
    assert not failed(found)
    assert [finding.name for finding in found] == steps == [name for name, _ in CHECKS]
    assert model.live_sequences == {7}
    again = model.verify([kept], nothing_drafted(1, model.device)).logits
    assert torch.allclose(before, again)


def test_a_loaded_model_fails_by_the_name_of_what_it_breaks() -> None:
    model = random_model("llama")
    found = runtime_tier(lambda *_: None, KeepsEverything(model, max_sequences=2))
    assert failed(found).keys() == {"memory is bounded"}


# Planted faults: each is a runtime that is wrong in one way.


class NarrowLogits(TabularModel):
    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        scores = super().verify(prefixes, proposal)
        return TargetScores(scores.logits[..., :-1])


class NeverReleases(TransformersModel):
    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        if -1 in sequence_ids:  # the check at construction
            super().release(sequence_ids, discard=discard)


class TakesAnyLength(TransformersModel):
    def _allot(self, capabilities: Capabilities, *rest: Any) -> None:
        super()._allot(capabilities, *rest)
        self.pool = BlockPool(2 * self.pool.count)
        self.longest *= 2


class TakesLiveSlots(TransformersModel):
    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        names = {prefix.sequence_id for prefix in prefixes}
        if len(self.live_sequences | names) > self.max_sequences:
            self.release(self.live_sequences - names)
        return super().verify(prefixes, proposal)


class BelievesBeforeComputing(TransformersModel):
    def _extended(self, prefixes: Sequence[Prefix], *rest: Any) -> list[list[int]]:
        tables = super()._extended(prefixes, *rest)
        for prefix in prefixes:
            self._computed[prefix.sequence_id] = Computed(prefix.tokens)
        return tables

    def _forget(self) -> None:
        pass


class KeepsEverything(TransformersModel):
    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        scores = super().verify(prefixes, proposal)
        self.kept = (*getattr(self, "kept", ()), scores.logits)
        return scores


class ForgetsWhoIsWho(TransformersModel):
    def reset(self) -> None:
        self._computed.clear()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (NeverReleases, "sequences come and go in any order"),
        (TakesAnyLength, "the context is not exceeded"),
        (TakesLiveSlots, "a live sequence keeps its slot"),
        (BelievesBeforeComputing, "an exception leaves nothing wrong behind"),
        (KeepsEverything, "memory is bounded"),
        (ForgetsWhoIsWho, "a reset forgets, and goes on"),
    ],
)
def test_a_faulty_runtime_fails_by_name(
    kind: type[TransformersModel], name: str, llama: tuple[Any, TransformersReference]
) -> None:
    model, reference = llama
    names = {name, REJECTION}
    found = check_runtime(lambda: kind(model, max_sequences=4), reference, names=names)
    assert failed(found).keys() == {name}


def test_logits_of_another_width_fail_by_name() -> None:
    model = mock_pair(5, seed=1)[0]
    found = check_runtime(lambda: NarrowLogits(model.probabilities, 5))
    assert "capabilities are true" in failed(found)


def stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was computed is taken for the prefix however it was drafted."""

    def careless(computed: Computed, prefix: Any) -> int:
        held = len(computed.tokens) + len(computed.drafts.row(computed.row)[: computed.count])
        return min(held, len(prefix))

    monkeypatch.setattr(Computed, "shared", careless)


def planted(monkeypatch: pytest.MonkeyPatch, change: Callable[[FlatBatch, Any], Any]) -> None:
    """Change batches, given the row of each of their tokens."""
    made = PagedModel.flat_batch

    def careless(model: PagedModel, *given: Any) -> FlatBatch:
        batch = made(model, *given)
        row = np.repeat(range(len(batch.past)), np.diff(batch.begins))
        return replace(batch, **change(batch, row))

    monkeypatch.setattr(PagedModel, "flat_batch", careless)


def shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows of chains stand where the first one does."""

    def change(batch: FlatBatch, row: Any) -> Any:
        off = torch.from_numpy(batch.past[0] - batch.past[row])
        return {"positions": batch.positions + off * (batch.ancestors is None)}

    planted(monkeypatch, change)


def one_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows tokens that were computed before stands one position too far on."""
    planted(
        monkeypatch,
        lambda batch, row: {"positions": batch.positions + torch.from_numpy(batch.past[row] > 0)},
    )


def siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node sees all nodes before it, those that it does not follow included."""

    def change(batch: FlatBatch, _: Any) -> Any:
        seen = batch.ancestors
        return {"ancestors": None if seen is None else torch.ones_like(seen).tril()}

    planted(monkeypatch, change)


def by_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node stands at its column, whatever it follows."""
    planted(monkeypatch, lambda batch, _: {"positions": torch.from_numpy(batch.places)})


def in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree's tokens are noted as those of a chain."""

    def everywhere(proposal: DraftProposal) -> Any:
        return trees.chain(*proposal.tokens.shape)

    monkeypatch.setattr(DraftProposal, "structure", property(everywhere))


def uncopied(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in a block of another sequence is counted as computed, and not copied."""
    monkeypatch.setattr(BlockCache, "copy_blocks", lambda *_: None)


def written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that others use is written."""
    monkeypatch.setattr(
        BlockPool,
        "_stays",
        lambda pool, table, start, end: min(len(table.blocks), -(-end // pool.size)),
    )


TREES, SHARING = "every node of a tree sees its own path", "sequences may share a prefix"
TURNOVER = "sequences come and go in any order"


@pytest.mark.parametrize(
    ("plant", "fails", "holds"),
    [
        (stale, {REJECTION, "a sequence may be rewritten"}, {"memory is bounded"}),
        (shifted, {RAGGED}, {REJECTION, TREES, "a sequence may be rewritten"}),
        (one_on, {RAGGED, REJECTION, "a sequence may be rewritten"}, {"memory is bounded"}),
        (siblings, {TREES}, {REJECTION, RAGGED, SHARING}),
        (by_column, {TREES}, {REJECTION, RAGGED, SHARING}),
        (in_line, {TREES}, {REJECTION, RAGGED, SHARING}),
        (uncopied, {SHARING, TURNOVER}, {REJECTION}),
        (written_over, {SHARING, TURNOVER}, {REJECTION}),
    ],
)
def test_a_fault_in_the_cache_fails_by_name(
    plant: Callable[[pytest.MonkeyPatch], None],
    fails: set[str],
    holds: set[str],
    llama: tuple[Any, TransformersReference],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, reference = llama
    monkeypatch.setattr("outrider.runtimes.transformers.model.check_rollback", lambda _: None)
    plant(monkeypatch)
    found = check_runtime(
        lambda: TransformersModel(model, max_sequences=4), reference, names=fails | holds
    )
    assert failed(found).keys() == fails


class ReadsNothing(TransformersModel):
    """Notes tokens as computed that it did not compute."""

    def _prefill(self, prefix: Prefix, start: int, end: int) -> None:
        if end < len(prefix) - 1:
            self._extended([prefix], [start], np.zeros(1, dtype=np.int64))
            self._settle([Prefix(prefix.sequence_id, prefix.tokens[:end])], DraftedTokens())
        else:
            super()._prefill(prefix, start, end)


def test_a_prompt_whose_parts_are_not_computed_is_seen(
    llama: tuple[Any, TransformersReference],
) -> None:
    model, reference = llama
    found = check_runtime(lambda: ReadsNothing(model, max_sequences=4), reference, names={PARTS})
    assert failed(found).keys() == {PARTS}
