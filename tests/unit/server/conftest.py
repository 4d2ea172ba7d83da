"""A server for all tests of a file, and a client of it; imported where the extra is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    from tests.support.server import toy_server

    with toy_server() as made:
        yield made


@pytest.fixture(scope="module")
def client(server: Any) -> Any:
    from fastapi.testclient import TestClient

    return TestClient(server.app, raise_server_exceptions=False)
