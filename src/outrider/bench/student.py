"""Student's t: how wide an interval from few observations has to be."""

from __future__ import annotations

_EXACT = {1: 12.706205, 2: 4.302653, 3: 3.182446}
"""Where the expansion is off by more than 0.1%."""


def quantile(freedom: int) -> float:
    """The 97.5% quantile for a number of degrees of freedom, at least 1, to 0.1%.

    From 4 degrees on Fisher's expansion about the normal quantile: Abramowitz and Stegun, 26.7.5.
    """
    if freedom in _EXACT:
        return _EXACT[freedom]
    z = 1.959964
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term * (1 / freedom) ** power for power, term in enumerate(terms))
