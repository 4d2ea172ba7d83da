"""What a request forbids is not drafted, whatever drafts it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from outrider import ModelDrafter, SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.certify import exact_distribution
from outrider.config.structured import StructuredOutput
from outrider.drafters.base import DraftContext
from outrider.drafters.lookup import Candidate, LookupDrafter
from outrider.runtimes.tabular import mock_pair
from outrider.types.records import DraftPlan, DraftProposal, Prefix
from tests.support.alphabet import alphabet

V = 5
CONFIG = SpeculativeConfig(depth="fixed", num_speculative_tokens=4)


class Noted(LookupDrafter):
    """Proposes the same chain, or tree, and notes what became of it."""

    source = "noted"

    def __init__(self, tokens: list[int], parents: list[int] | None = None) -> None:
        self.made = Candidate(
            np.array(tokens),
            np.full(len(tokens), 0.5),
            None if parents is None else np.array(parents),
        )
        self.proposed: list[list[int]] = []

    def candidates(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> list[Candidate]:
        return [self.made.part(np.arange(len(self.made)) < depth) for depth in plan.lengths]

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        made = super().propose(prefixes, plan, ctx)
        self.proposed += [
            tokens[:length]
            for tokens, length in zip(made.tokens.tolist(), made.lengths.tolist(), strict=True)
        ]
        return made


def first_proposal(drafter: Any, params: SamplingParams, **config: Any) -> list[int]:
    target, _ = mock_pair(V, 1)
    decoder = SpeculativeDecoder(
        target,
        drafter,
        tokenizer=alphabet("abcde", end=False),
        config=SpeculativeConfig(depth="fixed", **config),
    )
    decoder.generate([0, 1], params)
    return drafter.proposed[0]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, [1, 2, 3, 4]),
        ({"bad_words": [[3]]}, [1, 2]),
        ({"bad_words": [[2, 3]]}, [1, 2]),
        ({"bad_words": [[0, 1, 1]]}, []),  # The prompt ends with 0, 1.
        ({"bad_words": [[1, 0, 1]]}, [1, 2, 3, 4]),
        ({"bad_words": [[4, 3]]}, [1, 2, 3, 4]),
        ({"allowed_token_ids": [1, 2, 3]}, [1, 2, 3]),
        ({"stop_token_ids": [3], "min_tokens": 4}, [1, 2]),
        ({"stop_token_ids": [4], "min_tokens": 3}, [1, 2, 3, 4]),
        ({"structured_output": StructuredOutput(regex="bc[^d]+")}, [1, 2]),
    ],
    ids=str,
)
def test_a_looked_up_chain_ends_before_what_the_request_forbids(
    asked: dict[str, Any], expected: list[int]
) -> None:
    params = SamplingParams(max_tokens=12, seed=1, **asked)
    assert first_proposal(Noted([1, 2, 3, 4]), params, num_speculative_tokens=4) == expected


def test_of_a_tree_what_follows_a_forbidden_token_goes_with_it() -> None:
    drafter = Noted([1, 2, 3, 4, 0], [0, 0, 1, 2, 3])
    params = SamplingParams(max_tokens=12, seed=1, bad_words=[[1]])
    assert first_proposal(drafter, params, tree_budget=6, num_speculative_tokens=3) == [2, 4]


class Watched(ModelDrafter):
    """Notes what it drew."""

    proposed: list[int]

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        made = super().propose(prefixes, plan, ctx)
        for tokens, length in zip(made.tokens.tolist(), made.lengths.tolist(), strict=True):
            self.proposed += tokens[:length]
        return made


@pytest.mark.parametrize(
    "asked",
    [
        {"bad_words": [[0], [1]]},
        {"allowed_token_ids": [2, 3, 4]},
        {"stop_token_ids": [0, 1], "min_tokens": 40},
    ],
    ids=str,
)
def test_a_model_with_parameters_of_its_own_draws_nothing_that_is_forbidden(
    asked: dict[str, Any],
) -> None:
    target, draft = mock_pair(V, 2)
    drafter = Watched(draft)
    drafter.proposed = []
    config = SpeculativeConfig(depth="fixed", draft_params=SamplingParams(temperature=2.0))
    decoder = SpeculativeDecoder(target, drafter, config=config)
    decoder.generate([0], SamplingParams(max_tokens=40, seed=1, **asked))
    assert set(drafter.proposed) == {2, 3, 4}


@pytest.mark.exact
@pytest.mark.parametrize("verification", ["block", "token"])
@pytest.mark.parametrize(
    "asked", [{"bad_words": [[1], [0, 2]]}, {"stop_token_ids": [1], "min_tokens": 2}], ids=str
)
def test_the_distribution_is_the_targets(verification: Any, asked: dict[str, Any]) -> None:
    target, draft = mock_pair(3, 3)
    params = SamplingParams(max_tokens=3, **asked)
    plain = exact_distribution(SpeculativeDecoder(target), [0, 2], params)
    own = SamplingParams(temperature=1.7)
    config = SpeculativeConfig(
        depth="fixed", num_speculative_tokens=2, verification=verification, draft_params=own
    )
    for drafter in (Noted([0, 2, 1]), draft):
        found = exact_distribution(
            SpeculativeDecoder(target, drafter, config=config), [0, 2], params
        )
        for output in found.keys() | plain.keys():
            assert abs(found.get(output, 0.0) - plain.get(output, 0.0)) < 1e-12
