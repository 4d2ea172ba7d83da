"""How many blocks there are: what is needed, what is free, or what is asked for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import outrider
from outrider import TransformersModel
from outrider.errors import InvalidConfigError
from outrider.runtimes.blocks import SIZE
from outrider.runtimes.memory import affordable
from outrider.types.records import Prefix
from tests.support.families import random_model

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("most", "memory", "free", "blocks"),
    [(100, None, 10**9, 100), (100, None, 10_000, 50), (100, 3_000, 0, 30), (8, 3_000, 0, 8)],
)
def test_blocks_are_those_needed_or_those_that_there_is_memory_for(
    most: int,
    memory: int | None,
    free: int,
    blocks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = SimpleNamespace(available=free)
    monkeypatch.setattr("psutil.virtual_memory", lambda: found)
    assert affordable(100, most, memory, CPU) == blocks


@pytest.mark.parametrize("memory", [None, 500, 503])
def test_blocks_of_a_model_without_attention_take_no_memory(
    memory: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=600))
    assert affordable(0, 14, memory, CPU, 500) == 14


def test_less_than_a_draft_needs_is_refused() -> None:
    with pytest.raises(
        InvalidConfigError, match=r"kv_cache_memory=399 .*at least 4 blocks .*, 400"
    ):
        affordable(100, 10, 399, CPU)
    with pytest.raises(InvalidConfigError, match=r"kv_cache_memory=0 .*an integer >= 1"):
        outrider.load("demo", kv_cache_memory=0)


def test_blocks_are_what_tokens_need() -> None:
    """One long sequence and many short ones: no slot is as long as the longest."""
    model = TransformersModel(random_model("llama"), max_sequences=16)
    before = model.pool.available
    for name, length in enumerate([150, *[10] * 15]):
        model.prefill(Prefix(name, [name] + [5] * length), 1000)
    blocks = before - model.pool.available
    assert blocks == 150 // SIZE + 1 + 15
