"""Tiny models for the command line's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import save_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def target(folder: Path) -> str:
    return save_model(folder / "target")


@pytest.fixture(scope="session")
def draft(folder: Path) -> str:
    return save_model(folder / "draft", seed=1)
