"""Random requests, bad bodies and clients that leave: see benchmarks/server_soak.py."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from benchmarks.server_soak import soak

pytestmark = pytest.mark.slow


def test_every_seeded_text_is_the_librarys_and_nothing_fails() -> None:
    found = soak(300)
    assert set(found.statuses) <= {200, 400, 404}
    assert found.statuses[200] > 100
    assert found.left > 20
    assert len(found.texts) > 100
    assert not found.wrong()
    assert not found.errors
    assert found.free_slots == 4
