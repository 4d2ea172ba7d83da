"""A verification method of the user's own is checked in every decoder, unless that is unwanted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outrider import (
    DraftError,
    InvalidConfigError,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    UserCodeError,
)
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
    own = Verifier(TokenVerification())
    assert SpeculativeDecoder(*mock_pair(3), verifier=own).verifier is own


@pytest.mark.parametrize("verification", ["typical", "block", "lenient"])
def test_a_narrower_target_beside_a_wide_draft_is_sound(verification: Any) -> None:
    target, draft = mock_pair(5, seed=2)
    config = SpeculativeConfig(verification=verification, validate="always")
    decoder = SpeculativeDecoder(Single(target.probabilities, 5), draft, config=config)
    decoder.generate([[0, 1], [2]], SamplingParams(max_tokens=12, seed=3))


class Whole(Verifier):
    """A verifier of the user's own, made without arguments."""

    def __init__(self) -> None:
        super().__init__(Heavy())


def test_a_verifier_of_another_class_is_used_as_it_is() -> None:
    own = Whole()
    assert SpeculativeDecoder(*mock_pair(3), verifier=own).verifier is own


class Beyond(TokenVerification):
    """Leaves mass behind the drafts of shorter rows."""

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        distribution, weights = super().stop_distribution(tree)
        places = torch.arange(distribution.shape[1])
        return torch.where(places <= tree.length[:, None], distribution / 2, 1.0), weights


def test_mass_behind_a_row_s_drafts_does_not_count() -> None:
    with pytest.raises(UserCodeError, match=r"total mass 0\.5 "):
        decoded(Beyond())


class Written(TokenVerification):
    """Its residual has a NaN of the draft in it."""

    def residual(self, tree: Tree, weights: Any, node: Any) -> Any:
        left = super().residual(tree, weights, node)
        return left if tree.draft is None else left + 0 * tree.draft[:, 0].sum(-1, keepdim=True)


class NotANumber(TabularModel):
    def logits(self, prefix: tuple[int, ...]) -> torch.Tensor:
        return super().logits(prefix) * float("nan")


def test_a_drafter_that_gives_nan_is_to_blame_for_it() -> None:
    target, draft = mock_pair(5, seed=2)
    config = SpeculativeConfig(num_speculative_tokens=2, depth="fixed")
    decoder = SpeculativeDecoder(
        target, NotANumber(draft.probabilities, 5), config=config, verifier=Verifier(Written())
    )
    with pytest.raises(DraftError):
        decoder.generate([0, 1], SamplingParams(max_tokens=6, seed=3))


def test_a_class_is_no_method() -> None:
    with pytest.raises(InvalidConfigError, match="a Method that was made, or None"):
        Verifier(Own)  # type: ignore[arg-type]  # what is refused
