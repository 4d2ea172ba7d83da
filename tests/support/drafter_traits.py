"""What a policy asks of a drafter, without one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Drafter:
    """Says of itself what it is told to."""

    looks_up: bool = False
    vocab_size: int | None = 5
    cost_ratio: float | None = None
