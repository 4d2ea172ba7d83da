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
from outrider.certify.kits.runtime_tests import runtime_tests
from outrider.certify.runtime import runtime_tier
from outrider.drafters.base import nothing_drafted
from outrider.errors import ModelError
from outrider.runtimes.base import rounding_of
from outrider.runtimes.slots import Placement, Slot
from outrider.runtimes.tabular import TabularModel, mock_pair
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


test_the_tabular_runtime_passes = runtime_tests(lambda: mock_pair(5, seed=1)[0])


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
    def _check(self, prefixes: Sequence[Prefix], extra: list[int]) -> None:
        super()._check(prefixes, [min(0, e) for e in extra])


class TakesLiveSlots(TransformersModel):
    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        names = {prefix.sequence_id for prefix in prefixes}
        if len(self.live_sequences | names) > self.max_sequences:
            self.release(self.live_sequences - names)
        return super().verify(prefixes, proposal)


class BelievesBeforeComputing(TransformersModel):
    def forward(
        self, slots: list[int], starts: list[int], tokens: torch.Tensor, *rest: Any
    ) -> torch.Tensor:
        for slot, start, row in zip(slots, starts, tokens.numpy(), strict=True):
            self._table.hold(slot, np.concatenate([self._table.slots[slot].tokens[:start], row]))
        return super().forward(slots, starts, tokens, *rest)


class KeepsEverything(TransformersModel):
    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        scores = super().verify(prefixes, proposal)
        self.kept = (*getattr(self, "kept", ()), scores.logits)
        return scores


class ForgetsWhoIsWho(TransformersModel):
    def reset(self) -> None:
        self._table.slots = tuple(
            Slot(slot.tokens, None, 0, 7, slot.last_used) for slot in self._table.slots
        )


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (NeverReleases, "slots are used again"),
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
    """Columns are taken for those of the prefix however they were drafted."""
    monkeypatch.setattr(Slot, "shared", lambda slot, prefix: min(slot.length, len(prefix)))


def shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows stand where the first one does."""
    from outrider.runtimes.transformers.attention_inputs import AttentionInputMaker, AttentionInputs

    chain = AttentionInputMaker.chain

    def careless(views: AttentionInputMaker, starts: list[int], length: int) -> AttentionInputs:
        view = chain(views, starts, length)
        return AttentionInputs(
            view.masks, view.positions[:1].expand_as(view.positions), view.columns, view.span
        )

    monkeypatch.setattr(AttentionInputMaker, "chain", careless)


def one_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows columns that were computed before stands one position too far on."""
    from outrider.runtimes.transformers.attention_inputs import AttentionInputMaker, AttentionInputs

    chain = AttentionInputMaker.chain

    def careless(views: AttentionInputMaker, starts: list[int], length: int) -> AttentionInputs:
        view = chain(views, starts, length)
        late = torch.tensor(starts)[:, None] > 0
        return AttentionInputs(view.masks, view.positions + late, view.columns, view.span)

    monkeypatch.setattr(AttentionInputMaker, "chain", careless)


def siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node sees all nodes before it, those that it does not follow included."""
    from outrider.runtimes.transformers.attention_inputs import AttentionInputMaker, AttentionInputs

    tree = AttentionInputMaker.tree

    def careless(
        views: AttentionInputMaker, starts: list[int], ancestors: torch.Tensor, queries: int
    ) -> AttentionInputs:
        proper = tree(views, starts, ancestors, queries)
        view = tree(views, starts, torch.ones_like(ancestors).tril(), queries)
        return AttentionInputs(view.masks, proper.positions, proper.columns, proper.span)

    monkeypatch.setattr(AttentionInputMaker, "tree", careless)


def by_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node stands at its column, whatever it follows."""
    from outrider.runtimes.transformers.attention_inputs import AttentionInputMaker, AttentionInputs

    tree = AttentionInputMaker.tree

    def careless(
        views: AttentionInputMaker, starts: list[int], ancestors: torch.Tensor, queries: int
    ) -> AttentionInputs:
        view = tree(views, starts, ancestors, queries)
        return AttentionInputs(view.masks, view.columns, view.columns, view.span)

    monkeypatch.setattr(AttentionInputMaker, "tree", careless)


def in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree's tokens are noted as those of a chain."""

    def everywhere(proposal: DraftProposal) -> Any:
        return trees.chain(*proposal.tokens.shape)

    monkeypatch.setattr(DraftProposal, "structure", property(everywhere))


def uncopied(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another slot holds is counted as shared, and not copied."""
    from outrider.runtimes.transformers.slot_cache import SlotCache

    monkeypatch.setattr(SlotCache, "collect", lambda *_: None)


def unmoved(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stood in a slot is taken to stand in the one that takes it, and was not moved there."""
    from outrider.runtimes.transformers.slot_cache import SlotCache

    collect = SlotCache.collect
    monkeypatch.setattr(
        SlotCache, "collect", lambda cache, p: collect(cache, replace(p, evicted=None))
    )


def moved_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is moved to another slot overwrites the columns that are shared from there."""
    from outrider.runtimes.transformers.slot_cache import SlotCache

    collect = SlotCache.collect

    def careless(cache: SlotCache, placement: Placement) -> None:
        collect(cache, replace(placement, donor=placement.slot))
        collect(cache, replace(placement, evicted=None))

    monkeypatch.setattr(SlotCache, "collect", careless)


TREES, SHARING = "every node of a tree sees its own path", "sequences may share a prefix"
TURNOVER = "sequences come and go in any order"


@pytest.mark.parametrize(
    ("plant", "fails", "holds"),
    [
        (stale, {REJECTION, RAGGED, "a sequence may be rewritten"}, {"memory is bounded"}),
        (shifted, {RAGGED}, {REJECTION, TREES, "a sequence may be rewritten"}),
        (one_on, {RAGGED, REJECTION, "a sequence may be rewritten"}, {"memory is bounded"}),
        (siblings, {TREES}, {REJECTION, RAGGED, SHARING}),
        (by_column, {TREES}, {REJECTION, RAGGED, SHARING}),
        (in_line, {TREES}, {REJECTION, RAGGED, SHARING}),
        (uncopied, {SHARING, TURNOVER}, {REJECTION, "a sequence may be rewritten"}),
        (unmoved, {TURNOVER, SHARING}, {REJECTION}),
        (moved_first, {TURNOVER, SHARING}, {REJECTION}),
    ],
)
def test_a_fault_in_the_slot_cache_fails_by_name(
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

    def _prefill(self, prefix: Prefix, slot: int, start: int, end: int) -> None:
        if end < len(prefix) - 1:
            self._table.hold(slot, prefix.tokens[:end])
        else:
            super()._prefill(prefix, slot, start, end)


def test_a_prompt_whose_parts_are_not_computed_is_seen(
    llama: tuple[Any, TransformersReference],
) -> None:
    model, reference = llama
    found = check_runtime(lambda: ReadsNothing(model, max_sequences=4), reference, names={PARTS})
    assert failed(found).keys() == {PARTS}
