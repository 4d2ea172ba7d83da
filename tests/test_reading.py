"""What reading prompts costs a draft model: counted in tokens, not by a clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from outrider import ModelDrafter, SamplingParams
from outrider.bench import heat, measure, regime
from outrider.bench.contending import PLAIN
from outrider.bench.records import Contender
from outrider.bench.search import Models, Search
from outrider.runtimes.transformers.model import TransformersModel
from outrider.types.records import Prefix

from .families import random_model, resembling

SHARED = tuple(range(1, 33))
BATCHES = [[(*SHARED, last, last + 1)] for last in (40, 45, 50)]


class Counted:
    """A pair, and the tokens that its draft model has computed."""

    def __init__(self) -> None:
        self.tokens = 0
        self.read: list[int] = []
        target = random_model("llama")
        draft = resembling(target)
        draft.register_forward_pre_hook(self._count, with_kwargs=True)
        self.models = Models(
            TransformersModel(target, max_sequences=4),
            ModelDrafter(TransformersModel(draft, max_sequences=4)),
        )
        # It is tried out when it is wrapped.
        self.tokens = 0

    def _count(self, _module: Any, _args: Any, given: dict[str, Any]) -> None:
        self.tokens += given["input_ids"].numel()

    def of(self, function: Any) -> Any:
        """A function that notes in `read` what each call computes."""

        def counting(*args: Any, **given: Any) -> Any:
            before = self.tokens
            result = function(*args, **given)
            self.read.append(self.tokens - before)
            return result

        return counting


def test_predictions_charge_each_batch_for_all_that_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prompts that share a prefix are read anew, as if each came alone."""
    counted = Counted()
    monkeypatch.setattr(regime, "reading_s", counted.of(measure.reading_s))
    search = Search(
        drafters=("draft_model",),
        verifications=("block",),
        depths=(1, 2),
        shapes=(),
        temperatures=(0.0,),
        params=SamplingParams(max_tokens=3, ignore_eos=True),
    )
    found = regime.measure(counted.models, BATCHES, search, 0.0, lambda *_: None)
    assert len(found.reading_s) == len(BATCHES)
    _, *read = counted.read
    assert min(read) == max(read) >= len(BATCHES[0][0])


def test_contenders_find_read_what_was_read_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Counted()
    monkeypatch.setattr(heat, "reading_s", counted.of(measure.reading_s))
    params = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
    k1 = Contender("outrider", "draft_model", "block", 1)
    raced = heat.Heat(counted.models, [PLAIN, k1], params)
    raced.run(BATCHES[0])
    assert counted.read[0] >= len(BATCHES[0][0])
    assert counted.tokens - counted.read[0] < len(SHARED) / 4


@pytest.mark.parametrize(
    ("chunk", "forwards"), [(512, [[4, 21]]), (64, [[1, 18], [1, 19], [1, 20]])]
)
def test_rows_that_were_not_drafted_for_are_read_on_at_once(
    chunk: int, forwards: list[list[int]]
) -> None:
    """As long as that is a chunk in all; the first texts of a batch are read one by one."""
    hf_model = random_model("llama")
    model = TransformersModel(hf_model, max_sequences=4, prefill_chunk=chunk)
    fresh = TransformersModel(random_model("llama"), max_sequences=4)
    seen: list[list[int]] = []
    hook = hf_model.register_forward_pre_hook(
        lambda _module, _args, given: seen.append(list(given["input_ids"].shape)), with_kwargs=True
    )
    rng = np.random.default_rng(0)
    first = [Prefix(row, rng.integers(1, 60, 24 + row)) for row in range(4)]
    model.open(first, 1)
    assert seen[:4] == [[1, 23 + row] for row in range(4)]
    later = [
        text.extended(rng.integers(1, 60, 19 + row % 3).tolist()) for row, text in enumerate(first)
    ]
    del seen[:]
    found = model.open(later, 1).logits
    assert [shape for shape in seen if shape[1] > 1][: len(forwards)] == forwards
    hook.remove()
    expected = fresh.open(later, 1).logits
    assert torch.allclose(found, expected, atol=1e-5)
