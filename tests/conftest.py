"""Fixtures shared by the tests."""

from __future__ import annotations

import os

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Small tensors gain nothing from more threads, and lose time waiting for them.

    Processes that tests start inherit it.
    """
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
