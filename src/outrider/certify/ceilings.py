"""What the engine emits in a round of chains, exactly, beside what no lossless method can exceed.

The engine is enumerated; the optimum is computed from the distributions of the models alone. It is
that of Sun et al. 2025 (arXiv 2403.10444): a verifier keeps a node with a probability of at most
min(Pr[its parent is kept] P(x|parent), Q(node)), and the block recursion attains it at every node.
A method that emits more is not lossless, or counts wrongly; block verification has to emit as much.

Coupled mode is not among the methods: its drafter shares the target's noise, so that its drafts and
the target's tokens are not drawn apart, as the optimum (and an enumeration) has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..config.params import SamplingParams
from ..engine.decoder import SpeculativeDecoder
from ..runtimes.tabular import Distribution, Path, mock_pair
from ..types.finding import Finding
from ..types.records import RoundRecord
from .cases import configured
from .checks import Build
from .enumeration import outcomes
from .kits.runner import TOLERANCE

PROMPT = (0,)
"""What a round follows whose tokens are counted."""

PAIRS = ((9, 0.3), (0, 0.0))
"""Seeds of the model pairs, and how far the draft resembles the target."""


def exact_block_value(
    target_distribution: Distribution,
    draft_distribution: Distribution,
    depth: int,
    prefix: Path = (),
) -> float:
    """The most tokens that any verifier of a chain of drafts can emit on average, exactly.

    1 + the sum over all paths v of up to `depth` tokens behind `prefix` of w(v), with
    w(v) = min(w(parent) P(x|parent), Q(v)): what block verification emits. The work grows as
    V^depth.
    """

    def beyond(path: Path, kept: float, drafted: float) -> float:
        if len(path) == len(prefix) + depth:
            return 0.0
        draft = drafted * np.asarray(draft_distribution(path))
        target = kept * np.asarray(target_distribution(path))
        weights: list[float] = np.minimum(target, draft).tolist()
        return sum(
            weight + beyond((*path, token), weight, float(draft[token]))
            for token, weight in enumerate(weights)
            if weight > 0
        )

    return 1 + beyond(prefix, 1.0, 1.0)


def ceilings(build: Build, depths: Sequence[int] = (1, 2, 3)) -> Finding:
    """Whether token verification emits no more than the optimum, and block verification as much."""
    above, apart = 0.0, 0.0
    for seed, agreement in PAIRS:
        target, draft = mock_pair(3, seed, agreement)
        for depth in depths:
            optimum = exact_block_value(target.probabilities, draft.probabilities, depth, PROMPT)
            token, block = (
                expected(
                    build(target, draft, configured(method, "model", depth), None),
                    lambda record, row: record.emitted[row],
                )
                for method in ("token", "block")
            )
            above = max(above, token - optimum, block - optimum)
            apart = max(apart, abs(block - optimum))
    said = f"{above:.1e} above the optimum" if above > TOLERANCE else "nothing above the optimum"
    detail = f"{said}, block verification {apart:.1e} from it"
    return Finding("ceilings", max(above, apart) <= TOLERANCE, detail)


def expected(decoder: SpeculativeDecoder, figure: Callable[[RoundRecord, int], float]) -> float:
    """Find the mean of a figure of a record's row in the round after `PROMPT`, by enumeration."""
    (state,) = decoder.start(PROMPT, SamplingParams(max_tokens=99))
    walked = outcomes(decoder, [(state, 1.0)], 64)
    return sum(mass * figure(step.record, row) for step, row, mass in walked)
