"""The runtime tier: the conformance kit over a model that a user has loaded."""

from __future__ import annotations

from functools import partial

from ..runtimes.base import Runtime, tolerated
from ..types.finding import Finding
from .checks import Report
from .kits.references import FreshRuntime, Reference, TransformersReference
from .kits.runtime import CHECKS, GREEDY, check_runtime

LEAST = 1e-4
"""By how much logits may differ in all runtimes, beside the largest: orders of sums differ."""

EXACT = ("float32", "float64")
"""Precisions in which a runtime computes what the model itself does."""

_SEQUENCES = 4


def reference_of(target: Runtime) -> Reference:
    """Choose what a loaded model is compared with: see `runtime_tier`."""
    if target.precision in EXACT:
        from ..runtimes.transformers.model import TransformersModel

        # Its own forward rounds in its own dtype, whatever a runtime computes it in.
        if (
            isinstance(target, TransformersModel)
            and str(target.hf_model.dtype).removeprefix("torch.") in EXACT
        ):
            return TransformersReference(target.hf_model)
    return FreshRuntime(target.fresh(1))


def runtime_tier(
    report: Report, target: Runtime, tolerance: float | None = None
) -> tuple[Finding, ...]:
    """Run the kit over a loaded model, in slots of its own.

    A model of transformers is compared with its own forward without a cache where both compute in
    float32 or float64; all others with themselves, everything computed anew.

    Logits may differ by `tolerance` beside the largest of them; None goes by the precision, in
    1e-4..0.25.
    """
    reference = reference_of(target)
    slots = min(target.max_sequences or _SEQUENCES, _SEQUENCES)
    allowed = max(LEAST, tolerated(target.rounding)) if tolerance is None else tolerance
    found: list[Finding] = []
    for done, (name, _) in enumerate(CHECKS):
        report(done, len(CHECKS), name)
        if name == GREEDY and target.precision not in EXACT:
            why = f"not compared: in {target.precision} rounding decides between near-ties"
            found.append(Finding(name, True, why))
            continue
        fresh = partial(target.fresh, slots)
        found += check_runtime(fresh, reference, tolerance=allowed, names=[name])
    return tuple(found)
