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
from outrider.runtimes.tabular import TabularModel, mock_pair
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


TREES: list[dict[str, Any]] = [
    {"tree_shape": (4, 2)},
    {"tree_shape": (4, 4), "tree_children": "greedy"},
    {"tree_shape": (4, 2), "tree_children": "with_replacement"},
    {"tree_shape": (4, 2), "verification": "coupled"},
    {"tree_shape": (4, 2), "draft_sample_method": "greedy"},
    {"tree_budget": 14, "num_speculative_tokens": 3},
    {"tree_budget": 14, "num_speculative_tokens": 3, "tree_children": "greedy"},
]
LIMITS: list[dict[str, Any]] = [
    {"bad_words": [[0], [1]]},
    {"allowed_token_ids": [2, 3, 4]},
    {"stop_token_ids": [0, 1], "min_tokens": 40},
]


def named(asked: Any) -> str:
    if isinstance(asked, dict):
        return ",".join(f"{name}={value}" for name, value in asked.items())
    return "".join(map(str, sorted(asked)))


class Watched(ModelDrafter):
    """Notes what it drew."""

    def __init__(self, model: TabularModel) -> None:
        super().__init__(model)
        self.proposed: list[int] = []
        self.made: list[DraftProposal] = []

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        made = super().propose(prefixes, plan, ctx)
        for tokens, length in zip(made.tokens.tolist(), made.lengths.tolist(), strict=True):
            self.proposed += tokens[:length]
        self.made.append(made)
        return made


@pytest.mark.parametrize("asked", LIMITS, ids=named)
def test_a_model_with_parameters_of_its_own_draws_nothing_that_is_forbidden(
    asked: dict[str, Any],
) -> None:
    target, draft = mock_pair(V, 2)
    drafter = Watched(draft)
    config = SpeculativeConfig(depth="fixed", draft_params=SamplingParams(temperature=2.0))
    decoder = SpeculativeDecoder(target, drafter, config=config)
    decoder.generate([0], SamplingParams(max_tokens=40, seed=1, **asked))
    assert set(drafter.proposed) == {2, 3, 4}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("config", TREES, ids=named)
@pytest.mark.parametrize("asked", LIMITS, ids=named)
def test_a_tree_has_no_forbidden_token_and_is_as_wide_as_there_are_others(
    config: dict[str, Any], asked: dict[str, Any], temperature: float
) -> None:
    target, draft = mock_pair(V, 2)
    drafter = Watched(draft)
    decoder = SpeculativeDecoder(target, drafter, config=SpeculativeConfig(depth="fixed", **config))
    decoder.generate([0], SamplingParams(max_tokens=40, seed=1, temperature=temperature, **asked))
    assert set(drafter.proposed) == {2, 3, 4}
    wide = "tree_shape" in config and "with_replacement" not in config.values()
    if wide:
        first = drafter.made[0]
        children = [first.parents[0].tolist().count(node) for node in range(4)]
        assert children == [3, *[min(3, config["tree_shape"][1])] * 3]


@pytest.mark.parametrize("config", TREES, ids=named)
def test_a_tree_has_no_token_that_filters_left_without_probability(config: dict[str, Any]) -> None:
    target, draft = mock_pair(V, 2)
    drafter = Watched(draft)
    decoder = SpeculativeDecoder(target, drafter, config=SpeculativeConfig(depth="fixed", **config))
    rows = [SamplingParams(max_tokens=12, seed=1, top_k=k) for k in (1, 2, V)]
    decoder.generate([[0], [0], [0]], rows)
    for row, most in enumerate((1, 2, V)):
        parents = drafter.made[0].parents[row, : drafter.made[0].lengths[row]].tolist()
        assert parents
        assert max(map(parents.count, parents)) <= most


@pytest.mark.exact
@pytest.mark.parametrize("verification", ["traversal", "recursive", "coupled"])
@pytest.mark.parametrize(
    "config",
    [
        {"tree_shape": (3, 1), "tree_children": "greedy"},
        {"tree_shape": (2, 2), "tree_children": "without_replacement"},
        {"tree_shape": (3,), "tree_children": "with_replacement"},
        {"tree_shape": (3, 2), "draft_sample_method": "greedy"},
        {"tree_budget": 5, "num_speculative_tokens": 2},
        {"tree_budget": 4, "num_speculative_tokens": 3, "tree_children": "greedy"},
    ],
    ids=named,
)
@pytest.mark.parametrize(
    "asked",
    [{"bad_words": [[1], [0, 2]]}, {"stop_token_ids": [1], "min_tokens": 2}, {"top_k": 2}],
    ids=named,
)
def test_trees_without_what_is_forbidden_emit_the_targets_distribution(
    verification: str, config: dict[str, Any], asked: dict[str, Any]
) -> None:
    target, draft = mock_pair(3, 3)
    params = SamplingParams(max_tokens=3, **asked)
    made = SpeculativeConfig(depth="fixed", verification=verification, **config)
    plain = exact_distribution(SpeculativeDecoder(target), [0, 2], params)
    found = exact_distribution(SpeculativeDecoder(target, draft, config=made), [0, 2], params)
    for output in found.keys() | plain.keys():
        assert abs(found.get(output, 0.0) - plain.get(output, 0.0)) < 1e-12


@pytest.mark.parametrize(
    ("own", "asked", "left"),
    [
        ({"bad_words": [[3], [4]]}, {"allowed_token_ids": [3, 4]}, {3, 4}),
        ({"bad_words": [[2]]}, {"allowed_token_ids": [2, 3, 4], "bad_words": [[3], [4]]}, {2}),
        ({"allowed_token_ids": [1, 2]}, {"allowed_token_ids": [3, 4]}, {3, 4}),
        ({"allowed_token_ids": [1, 2]}, {"bad_words": [[1], [2]]}, {0, 3, 4}),
        ({"bad_words": [[0], [1], [2]]}, {"bad_words": [[3], [4]]}, {0, 1, 2}),
        ({"allowed_token_ids": [1]}, {"stop_token_ids": [1], "min_tokens": 40}, {0, 2, 3, 4}),
        ({"bad_words": [[3, 3], [4]]}, {"allowed_token_ids": [3, 4]}, {3, 4}),
        ({"bad_words": [[0], [1]]}, {"bad_words": [[2]]}, {3, 4}),
        ({"allowed_token_ids": [1, 2]}, {"allowed_token_ids": [2, 3]}, {2}),
    ],
    ids=named,
)
def test_a_drafts_own_limits_are_dropped_where_they_leave_nothing(
    own: dict[str, Any], asked: dict[str, Any], left: set[int]
) -> None:
    target, draft = mock_pair(V, 2)
    drafter = Watched(draft)
    config = SpeculativeConfig(depth="fixed", draft_params=SamplingParams(temperature=3.0, **own))
    decoder = SpeculativeDecoder(target, drafter, config=config)
    decoder.generate([0], SamplingParams(max_tokens=40, seed=1, **asked))
    assert set(drafter.proposed) == left


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
