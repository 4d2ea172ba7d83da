"""Fixtures shared by the tests."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Small tensors gain nothing from more threads, and lose time waiting for them.

    Processes that tests start inherit it.
    """
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session", autouse=True)
def _conversions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what is converted in a folder of this run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests without a seed draw the same seeds in every run of a test."""
    drawn = SimpleNamespace(randbits=random.Random(0).getrandbits)
    monkeypatch.setattr("outrider.engine.requests.secrets", drawn)


@pytest.fixture
def piped() -> Iterator[Callable[[bytes], Path]]:
    """Makes a path that can be read once, as a shell's `<(command)`, of bytes that a pipe holds."""
    ends: list[int] = []

    def pipe(content: bytes) -> Path:
        end, other = os.pipe()
        ends.append(end)
        os.write(other, content)
        os.close(other)
        return Path(f"/dev/fd/{end}")

    yield pipe
    for end in ends:
        os.close(end)
