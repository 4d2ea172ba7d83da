"""Rows of a batch for which nothing is drafted cost their draft model nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from outrider.drafters.some_rows import opened
from outrider.runtimes.tabular import mock_pair
from outrider.types.protocols import AutoregressiveModel, Cursor
from outrider.types.records import Prefix

TEXTS = [[0, 1], [1, 1, 2], [2, 0], [0, 2, 1]]


class Spy:
    """A model that notes which sequences it is opened for."""

    def __init__(self, model: AutoregressiveModel) -> None:
        self.vocab_size = model.vocab_size
        self.model = model
        self.seen: list[int] = []

    def open(self, prefixes: Sequence[Prefix], depth: int) -> Cursor:
        self.seen += [prefix.sequence_id for prefix in prefixes]
        return self.model.open(prefixes, depth)


@pytest.mark.parametrize("depth", [[2, 0, 3, 0], [0, 0, 0, 1], [1, 2, 1, 1]])
def test_only_rows_that_are_drafted_are_read_and_fed(depth: list[int]) -> None:
    """Their logits are those of all rows together, along chains and trees; the others' are 0."""
    _, draft = mock_pair(vocab_size=3)
    prefixes = [Prefix(row, text) for row, text in enumerate(TEXTS)]
    rows = np.flatnonzero(depth)
    rest = np.setdiff1d(np.arange(4), rows)
    spy = Spy(draft)
    tokens = torch.tensor([1, 2, 0, 1])
    some, every = opened(spy, prefixes, np.array(depth)), draft.open(prefixes, max(depth))
    assert spy.seen == rows.tolist()
    for found, expected in ((some.logits, every.logits), (some.step(tokens), every.step(tokens))):
        assert torch.equal(found[rows], expected[rows])
        assert not found[rest].any()
    some, every = opened(spy, prefixes, np.array(depth)), draft.open(prefixes, max(depth))
    nodes, parents = torch.tensor([[1, 2]] * 4), torch.zeros(4, 2, dtype=torch.int64)
    found, expected = some.expand(nodes, parents), every.expand(nodes, parents)
    assert torch.equal(found[rows], expected[rows])
    assert not found[rest].any()
