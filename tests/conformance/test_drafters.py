"""The drafters' kit: every drafter passes it, and each planted fault fails its check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outrider import (
    HybridDrafter,
    ModelDrafter,
    NgramDrafter,
    PredictionDrafter,
    SamplingParams,
    SuffixDrafter,
)
from outrider.certify.kits import check_drafter
from outrider.drafters.base import Drafter
from outrider.drafters.lookup import Candidate
from outrider.runtimes.tabular import mock_pair
from outrider.types.records import Distributions, DraftPlan, DraftProposal, Prefix

MODEL = mock_pair(3, 1)[1]
DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "model": lambda: ModelDrafter(MODEL),
    "ngram": NgramDrafter,
    "suffix": SuffixDrafter,
    "prediction": lambda: PredictionDrafter([0, 1, 2, 0, 1]),
    "hybrid": lambda: HybridDrafter(MODEL, SuffixDrafter(), min_expected=1),
    "hybrid, mostly the model": lambda: HybridDrafter(MODEL, SuffixDrafter(min_match=3)),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_passes(name: str) -> None:
    findings = check_drafter(DRAFTERS[name], 3, depth=2)
    assert [finding for finding in findings if not finding.passed] == []
    assert len(findings) == 7


class Narrow(ModelDrafter):
    """Leaves a token out of its distributions."""

    def propose(self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: Any) -> DraftProposal:
        sound = super().propose(prefixes, plan, ctx)
        made = sound.distributions
        return replace(sound, distributions=Distributions(probs=made.probs[..., :-1]))


class TooFar(NgramDrafter):
    """Looks up a token more than was planned."""

    def propose(self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: Any) -> DraftProposal:
        return super().propose(prefixes, replace(plan, depth=plan.depth + 1), ctx)


class Flattened(ModelDrafter):
    """Reports distributions that are a little flatter than those drawn from."""

    def propose(self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: Any) -> DraftProposal:
        sound = super().propose(prefixes, plan, ctx)
        probs = sound.distributions.probs
        flat = probs * (1 - 1e-9) + 1e-9 / probs.shape[-1]
        return replace(sound, distributions=Distributions(probs=flat))


class OneOfTwo(ModelDrafter):
    """Proposes its second token in the place of the first."""

    def propose(self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: Any) -> DraftProposal:
        sound = super().propose(prefixes, plan, ctx)
        return replace(sound, tokens=sound.tokens.roll(1, 1)) if plan.tree is None else sound


class Picky(ModelDrafter):
    """Keeps only the tokens that it likes."""

    def propose(self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: Any) -> DraftProposal:
        sound = super().propose(prefixes, plan, ctx)
        if plan.tree is not None:
            return sound
        disliked = (sound.tokens == 2).numpy()
        first = np.where(disliked.any(1), disliked.argmax(1), sound.width)
        return replace(sound, lengths=np.minimum(sound.lengths, first))


class Onward(NgramDrafter):
    """Goes on behind the end of a request."""

    def find(self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: Any) -> Any:
        ctx.stop_ids = lambda row: frozenset()
        return super().find(prefixes, plan, ctx)


class Hoarding(SuffixDrafter):
    """Forgets nothing."""

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        pass


class Sharing(SuffixDrafter):
    """Learns from what was to be discarded."""

    seen: Sequence[Prefix] = ()

    def candidates(self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: Any) -> list[Candidate]:
        self.seen = prefixes
        return super().candidates(prefixes, plan, ctx)

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        self.observe_output(self.seen)
        super().release(sequence_ids)


class Eager(SuffixDrafter):
    """Learns from rounds that are none."""

    def candidates(self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: Any) -> list[Candidate]:
        ctx.learning = True
        return super().candidates(prefixes, plan, ctx)


class Worldly(SuffixDrafter):
    """Uses other texts for rows that must repeat."""

    def candidates(self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: Any) -> list[Candidate]:
        forgotten = [replace(state, params=SamplingParams()) for state in ctx._batch.states]
        ctx._batch = replace(ctx._batch, states=tuple(forgotten))
        return super().candidates(prefixes, plan, ctx)


class Failing(NgramDrafter):
    """Raises where a plan has a tree."""

    def candidates(self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: Any) -> list[Candidate]:
        if plan.tree is not None:
            raise RuntimeError("no trees here")
        return super().candidates(prefixes, plan, ctx)


@pytest.mark.parametrize(
    ("fault", "names"),
    [
        (lambda: Narrow(MODEL), {"form"}),
        (TooFar, {"form"}),
        (lambda: Flattened(MODEL), {"distributions"}),
        (lambda: OneOfTwo(MODEL), {"distributions"}),
        (lambda: Picky(MODEL), {"inclusion", "distributions"}),
        (Onward, {"stop tokens"}),
        (Hoarding, {"release"}),
        (Sharing, {"release"}),
        (Eager, {"learning"}),
        (Worldly, {"local rows"}),
    ],
)
def test_a_planted_fault_fails_the_check_of_its_name(
    fault: Callable[[], Drafter], names: set[str]
) -> None:
    failed = {finding.name for finding in check_drafter(fault, 3, depth=2) if not finding.passed}
    assert names <= failed
    assert len(failed - names) <= (1 if "form" in names else 0)


def test_a_drafter_that_raises_is_a_finding_with_its_error() -> None:
    findings = check_drafter(Failing, 3, depth=2)
    (form,) = [finding for finding in findings if finding.name == "form"]
    assert not form.passed
    assert "RuntimeError: no trees here" in form.detail
