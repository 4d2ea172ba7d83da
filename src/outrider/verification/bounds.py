"""What no verifier of a chain can exceed: the optimum of Sun et al. 2025 (arXiv 2403.10444)."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace, device


def block_values(ratios: Any) -> Any:
    """Return 1 + p_1 + ... + p_N along each drafted chain, with p_i = min(1, p_(i-1) r_i).

    Its mean over drafts is exactly the most tokens that a verifier which sees the chain can emit on
    average: an unbiased estimate from what was drafted, one for each round.

    Args:
        ratios: float64 [B, N], target over draft probability of each token; 0 where nothing was
            drafted.

    Returns:
        float64 [B], of the ratios' library.
    """
    xp = array_namespace(ratios)
    one = xp.ones(ratios.shape[0], dtype=xp.float64, device=device(ratios))
    kept = total = one
    for column in range(ratios.shape[1]):
        kept = xp.minimum(kept * ratios[:, column], one)
        total = total + kept
    return total
