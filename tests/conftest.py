"""Fixtures shared by the tests."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Small tensors gain nothing from more threads, and lose time waiting for them."""
    torch.set_num_threads(1)
