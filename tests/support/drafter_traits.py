"""What a policy asks of a drafter, without one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Drafter:
    """Says of itself what it is told to."""

    looks_up: bool = False
    models: tuple[Any, ...] = ()
    cost_ratio: float | None = None
