"""What a policy asks of a drafter, without one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Drafter:
    """A drafter's traits, as they are given to it."""

    looks_up: bool = False
    vocab_size: int | None = 5
    cost_ratio: float | None = None
    branches: bool = True

    def steps(self, depth: int) -> int:
        return depth
