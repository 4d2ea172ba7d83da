"""A verification method of the user's own is checked in every decoder, unless that is unwanted."""

from __future__ import annotations

from typing import Any

import pytest

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder, UserCodeError
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.types.records import DraftProposal, TargetScores
from outrider.verification import TokenVerification, Tree, Verifier


class Own(TokenVerification):
    """Sound, and none of the library's classes."""


class Heavy(TokenVerification):
    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        distribution, weights = super().stop_distribution(tree)
        return 2 * distribution, weights


class Stumbles(TokenVerification):
    def residual(self, tree: Tree, weights: Any, node: Any) -> Any:
        raise KeyError("no idea")


class Single(TabularModel):
    """Logits in float32, as most models give them."""

    def verify(self, prefixes: Any, proposal: DraftProposal) -> TargetScores:
        return TargetScores(super().verify(prefixes, proposal).logits.float())


def decoded(method: Any, validate: Any = "auto", *, single: bool = False) -> Any:
    target, draft = mock_pair(5, seed=2)
    if single:
        target, draft = (Single(each.probabilities, 5) for each in (target, draft))
    config = SpeculativeConfig(num_speculative_tokens=2, depth="fixed", validate=validate)
    decoder = SpeculativeDecoder(target, draft, config=config, verifier=Verifier(method))
    params = SamplingParams(max_tokens=12, seed=3)
    return [out.token_ids for out in decoder.generate([[0, 1], [2]], params)]


@pytest.mark.parametrize("single", [False, True], ids=["float64", "float32"])
def test_a_sound_method_passes_and_changes_nothing(single: bool) -> None:
    assert decoded(Own(), single=single) == decoded(TokenVerification(), single=single)


def test_a_broken_method_is_named_where_it_breaks() -> None:
    with pytest.raises(UserCodeError, match=r"Heavy\.stop_distribution returned .* total mass 2 "):
        decoded(Heavy())
    with pytest.raises(
        UserCodeError, match=r"Stumbles\.residual raised KeyError: 'no idea'"
    ) as info:
        decoded(Stumbles())
    assert isinstance(info.value.__cause__, KeyError)


def test_nothing_is_checked_where_that_is_not_wanted() -> None:
    with pytest.raises(KeyError, match="no idea"):
        decoded(Stumbles(), "never")


def test_the_library_s_own_methods_are_not_checked_without_need() -> None:
    decoder = SpeculativeDecoder(*mock_pair(3), verifier=Verifier(TokenVerification()))
    assert decoder.verifier.method is decoder._verifier.method
