"""What speculation gains if each draft is kept with one and the same probability.

Leviathan et al. 2023 (arXiv 2211.17192): definition 3.1, theorem 3.8, theorem 3.11. The acceptance
rate is written a, the number of drafted tokens g, and the cost of one draft step relative to one
target step c. Real acceptance varies from position to position; for measured rates use
`compute_expected_tokens`. Rates and costs may be floats or arrays of any library; g is one integer.
"""

from __future__ import annotations

import sys
from typing import Any

from ..config.validation import integer
from .checks import require_range

_GREATEST = sys.float_info.max


def expected_tokens(acceptance_rate: Any, num_drafts: int) -> Any:
    """(1 - a^(g+1)) / (1 - a): the tokens a round emits on average, g + 1 at a = 1.

    Args:
        acceptance_rate: a, in [0, 1].
        num_drafts: g, at least 0.

    Raises:
        InvalidConfigError: a value is outside its range.
    """
    require_range("acceptance_rate", acceptance_rate, 0, 1, "a rate in [0, 1]")
    integer("num_drafts", num_drafts, 0, 2**20 - 1, "an integer in [0, 2**20)")
    # 1 + a + ... + a^g by Horner's rule: exact at a = 1, where the quotient is 0/0.
    total = acceptance_rate * 0.0 + 1.0
    for _ in range(num_drafts):
        total = 1.0 + acceptance_rate * total
    return total


def walltime_improvement(acceptance_rate: Any, num_drafts: int, cost_ratio: Any) -> Any:
    """(1 - a^(g+1)) / ((1 - a) (g c + 1)): how many times faster than plain decoding.

    Theorem 3.8. A target step over g + 1 positions is taken to last as long as over one.

    Args:
        acceptance_rate: a, in [0, 1].
        num_drafts: g, at least 0.
        cost_ratio: c, at least 0: the time of a draft step over that of a target step.

    Raises:
        InvalidConfigError: a value is outside its range.
    """
    require_range("cost_ratio", cost_ratio, 0, _GREATEST, "a finite number >= 0")
    return expected_tokens(acceptance_rate, num_drafts) / (num_drafts * cost_ratio + 1.0)


def operations_factor(acceptance_rate: Any, num_drafts: int, operations_ratio: Any) -> Any:
    """(1 - a) (g c^ + g + 1) / (1 - a^(g+1)): how many times the arithmetic of plain decoding.

    Theorem 3.11.

    Args:
        acceptance_rate: a, in [0, 1].
        num_drafts: g, at least 0.
        operations_ratio: c^, at least 0: the operations of a draft token over a target token's.

    Raises:
        InvalidConfigError: a value is outside its range.
    """
    require_range("operations_ratio", operations_ratio, 0, _GREATEST, "a finite number >= 0")
    work = num_drafts * operations_ratio + num_drafts + 1.0
    return work / expected_tokens(acceptance_rate, num_drafts)
