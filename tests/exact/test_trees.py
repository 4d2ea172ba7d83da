"""Trees: the engine emits the target's distribution over every shape, kind of child and method.

By enumeration, error < 1e-12, as in test_chains; the planted faults at the end show that the
same test sees a biased tree.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from outrider import ModelDrafter, SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.certify import exact_distribution
from outrider.certify.ceilings import PROMPT, expected
from outrider.certify.faults import plain_residual
from outrider.certify.reference import distance, target_distribution
from outrider.drafters import context
from outrider.errors import DraftError, KeyReuseError
from outrider.policies import Shape
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.types import trees
from outrider.types.records import Distributions, DraftPlan, DraftProposal, DraftTree
from outrider.verification import METHODS as LOSSLESS
from outrider.verification import TraversalVerification, Tree
from tests.support.exactness import TOLERANCE, configured, error

METHODS = ("traversal", "recursive", "coupled")
KINDS = ("greedy", "without_replacement", "with_replacement")


@pytest.mark.parametrize("verification", METHODS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 1), (3,), (2, 1), (1, 2)], ids=str)
def test_shapes_of_every_kind_emit_the_targets_distribution(
    verification: str, kind: str, shape: tuple[int, ...]
) -> None:
    target, draft = mock_pair(3, 1)
    config = configured(verification, len(shape), tree_shape=shape, tree_children=kind)
    params = SamplingParams(max_tokens=3, stop_token_ids=(1,))
    assert error(target, draft, config, params) < TOLERANCE


@pytest.mark.parametrize("verification", METHODS)
@pytest.mark.parametrize(("budget", "k"), [(2, 1), (3, 2), (4, 2), (4, 3)])
def test_grown_trees_emit_the_targets_distribution(verification: str, budget: int, k: int) -> None:
    target, draft = mock_pair(3, 2)
    config = configured(verification, k, tree_budget=budget)
    assert error(target, draft, config, SamplingParams(max_tokens=k + 1)) < TOLERANCE


@pytest.mark.parametrize("verification", METHODS)
@pytest.mark.parametrize("shaped", [{"tree_shape": (2, 2)}, {"tree_budget": 5}], ids=str)
def test_deterministic_trees_emit_the_targets_distribution(
    verification: str, shaped: dict[str, Any]
) -> None:
    target, draft = mock_pair(4, 3)
    config = configured(verification, 3, draft_sample_method="greedy", **shaped)
    assert error(target, draft, config, SamplingParams(max_tokens=3)) < TOLERANCE


@pytest.mark.parametrize("verification", METHODS)
@pytest.mark.parametrize(
    "filters",
    [
        {"temperature": 0.0},
        {"top_k": 1},
        {"top_p": 0.7},
        {"temperature": 0.6, "min_p": 0.3},
    ],
    ids=str,
)
def test_trees_under_sampling_parameters(verification: str, filters: dict[str, Any]) -> None:
    target, draft = mock_pair(3, 4)
    for kind in KINDS:
        config = configured(verification, 2, tree_shape=(2, 1), tree_children=kind)
        params = SamplingParams(max_tokens=3, **filters)
        assert error(target, draft, config, params) < TOLERANCE


@pytest.mark.parametrize("verification", METHODS)
def test_requests_of_every_kind_share_a_batch_of_trees(verification: str) -> None:
    target, draft = mock_pair(3, 5)
    config = configured(verification, 2, tree_shape=(2, 1))
    decoder = SpeculativeDecoder(target, draft, config=config)
    asked = [
        SamplingParams(max_tokens=2, temperature=0),
        SamplingParams(max_tokens=9, temperature=0.5),
        SamplingParams(max_tokens=1),
    ]
    mates = [decoder.start([0] * (1 + i), params)[0] for i, params in enumerate(asked)]
    params = SamplingParams(max_tokens=3, top_p=0.9, depths=(1, 2))
    found = exact_distribution(decoder, (1, 2), params, mates=mates)
    assert distance(found, target_distribution(target, (1, 2), params)) < TOLERANCE


def test_models_with_zero_probabilities_and_trees_wider_than_their_support() -> None:
    def distribution(shift: int) -> TabularModel:
        rows = [[0.5, 0.5, 0.0, 0.0], [0.0, 0.25, 0.75, 0.0], [0.2, 0.0, 0.3, 0.5]]
        return TabularModel(lambda prefix: rows[(prefix[-1] + len(prefix) + shift) % 3], 4)

    for verification in ("traversal", "recursive"):
        for kind in KINDS:
            for shift in range(3):
                config = configured(verification, 2, tree_shape=(4,), tree_children=kind)
                params = SamplingParams(max_tokens=2)
                assert error(distribution(0), distribution(shift), config, params) < TOLERANCE


def test_a_greedy_request_walks_its_tree_to_plain_greedy_text() -> None:
    target, draft = mock_pair(6, 8)
    params = SamplingParams(max_tokens=20, temperature=0)
    plain = SpeculativeDecoder(target).generate([1], params)
    for shaped in ({"tree_shape": (3, 2, 1)}, {"tree_budget": 9}):
        config = SpeculativeConfig(depth="fixed", num_speculative_tokens=3, **shaped)
        out = SpeculativeDecoder(target, draft, config=config).generate([1], params)
        assert out.token_ids == plain.token_ids
        assert out.metrics.acceptance_length is not None
        assert out.metrics.acceptance_length > 1.5


def mean(decoder: SpeculativeDecoder, figure: str) -> float:
    """The exact mean of a figure of the round that follows `PROMPT`."""
    return expected(decoder, lambda record, row: getattr(record, figure)[row])


def test_trees_keep_what_theory_says() -> None:
    """One level: sum over children of the transport optimum; deterministic trees: sum of p(v)."""
    target, draft = mock_pair(5, 9)
    p, q = target.probabilities(PROMPT), draft.probabilities(PROMPT)
    top = int(q.argmax())
    rest = np.where(np.arange(5) == top, 0, q)
    rest /= rest.sum()
    others = np.arange(5) != top
    optimum = p[top] + np.minimum(p, rest)[others].sum()
    for verification in ("traversal", "recursive"):
        config = configured(verification, 1, tree_shape=(2,))
        decoder = SpeculativeDecoder(target, draft, config=config)
        assert mean(decoder, "accepted") == pytest.approx(optimum, abs=1e-12)
    config = configured("traversal", 1, tree_shape=(2,), draft_sample_method="greedy")
    decoder = SpeculativeDecoder(target, draft, config=config)
    second = int(np.where(others, q, 0).argmax())
    assert mean(decoder, "accepted") == pytest.approx(p[top] + p[second], abs=1e-12)


def test_the_ceiling_of_chains_and_fixed_trees_is_met_by_the_best_verifier() -> None:
    target, draft = mock_pair(4, 1, 0.2)
    for more in ({}, {"tree_shape": (2, 1), "draft_sample_method": "greedy"}):
        config = configured("block", 2, **more)
        decoder = SpeculativeDecoder(target, draft, config=config)
        emitted, ceiling = mean(decoder, "emitted"), mean(decoder, "ceiling")
        assert emitted == pytest.approx(ceiling, abs=1e-12)


def test_traversal_keeps_at_least_as_much_as_recursive_rejection() -> None:
    kept = {"traversal": 0.0, "recursive": 0.0}
    for seed in range(2):
        target, draft = mock_pair(3, seed, 0.3)
        for verification in kept:
            config = configured(verification, 2, tree_shape=(2, 1))
            decoder = SpeculativeDecoder(target, draft, config=config)
            kept[verification] += mean(decoder, "accepted")
    assert kept["traversal"] > kept["recursive"] + 1e-3


def test_the_same_seed_gives_the_same_text_alone_and_in_a_batch_of_trees() -> None:
    target, draft = mock_pair(8, 10)
    for shaped in ({"tree_shape": (2, 2)}, {"tree_budget": 5}):
        config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, **shaped)
        decoder = SpeculativeDecoder(target, draft, config=config)
        asked = [([i], SamplingParams(max_tokens=5 + i, seed=3)) for i in range(6)]
        alone = [decoder.generate(*pair).token_ids for pair in asked]
        prompts, params = zip(*reversed(asked), strict=True)
        together = decoder.generate(list(prompts), list(params))
        assert [out.token_ids for out in reversed(together)] == alone
        replayed = decoder.generate([5], replace(asked[5][1], depths=together[0].depths))
        assert replayed.token_ids == alone[5]


class DeepestFirst(TraversalVerification):
    """Fault: parents are tried before their children."""

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        order = tree.order.flip(1)
        return super().stop_distribution(replace(tree, order=order, rank=order.argsort(1)))


@pytest.mark.parametrize(
    "fault", [plain_residual(), DeepestFirst()], ids=lambda f: type(f).__name__
)
def test_a_faulty_traversal_is_seen(monkeypatch: pytest.MonkeyPatch, fault: Any) -> None:
    monkeypatch.setitem(LOSSLESS, "traversal", fault)
    config = configured("traversal", 2, tree_shape=(2, 1))
    params = SamplingParams(max_tokens=3)
    assert max(error(*mock_pair(4, seed, 0.2), config, params) for seed in range(3)) > 1e-3


class Tampered(ModelDrafter):
    """A drafter whose proposals are changed before they are verified."""

    def __init__(self, model: TabularModel, change: Any) -> None:
        super().__init__(model)
        self.change = change

    def propose(self, prefixes: Any, plan: DraftPlan, ctx: Any) -> DraftProposal:
        proposal: DraftProposal = self.change(super().propose(prefixes, plan, ctx))
        return proposal


def siblings_share_a_distribution(proposal: DraftProposal) -> DraftProposal:
    """Fault: drawn without replacement, verified as if with it."""
    assert proposal.distribution_rows is not None
    return replace(proposal, distribution_rows=proposal.distribution_rows // 2 * 2)


def reranked(proposal: DraftProposal) -> DraftProposal:
    """Fault: of two drawn children the one that the draft likes less is taken away."""
    assert proposal.distributions is not None
    assert proposal.distributions.probs is not None
    chance_of = proposal.distributions.probs[:, 0].gather(1, proposal.tokens)
    best = chance_of.argmax(1, keepdim=True)
    kept = torch.zeros(len(best), 1, dtype=torch.int64).numpy()
    return DraftProposal(
        proposal.tokens.gather(1, best),
        np.minimum(proposal.lengths, 1),
        Distributions(probs=proposal.distributions.probs),
        kept,
        kept,
    )


@pytest.mark.parametrize(
    ("change", "kind"),
    [(siblings_share_a_distribution, "without_replacement"), (reranked, "with_replacement")],
)
def test_a_tree_whose_distributions_are_not_those_it_was_drawn_from_is_seen(
    change: Any, kind: str
) -> None:
    config = configured("traversal", 1, tree_shape=(2,), tree_children=kind)
    params = SamplingParams(max_tokens=2)
    errors = {"tampered": 0.0, "sound": 0.0}
    for seed in range(3):
        target, draft = mock_pair(4, seed, 0.2)
        for name, done in (("tampered", change), ("sound", lambda proposal: proposal)):
            found = error(target, Tampered(draft, done), config, params)
            errors[name] = max(errors[name], found)
    assert errors["tampered"] > 1e-3
    assert errors["sound"] < TOLERANCE


def test_two_children_under_one_key_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = mock_pair(3, 1)
    drawn = context.DraftContext._all_drawn

    def careless(self: Any, probs: Any, slots: Any, used: Any, replaced: bool) -> Any:
        return drawn(self, probs, slots * 0, used, replaced)

    monkeypatch.setattr(context.DraftContext, "_all_drawn", careless)
    config = configured("traversal", 1, tree_shape=(2,), tree_children="with_replacement")
    with pytest.raises(KeyReuseError):
        error(target, draft, config, SamplingParams(max_tokens=2))


@pytest.mark.parametrize(
    ("parents", "rows", "message"),
    [
        ([[0, 2]], None, r"parents \[\[0, 2\]\]"),
        ([[-1, 0]], None, "a node to its left"),
        ([[0]], None, "one for each token"),
        ([[0, 1]], None, r"depths \[2\].*planned depths \[1\]"),
        ([[0, 0]], [[0, 3]], r"distribution_rows \[\[0, 3\]\].*2 distributions"),
        ([[0, 0]], [[0, -2]], r"distribution_rows \[\[0, -2\]\]"),
    ],
)
def test_malformed_trees_are_refused(parents: Any, rows: Any, message: str) -> None:
    target, draft = mock_pair(3, 1)

    def tampered(proposal: DraftProposal) -> DraftProposal:
        return replace(
            proposal,
            parents=np.array(parents),
            distribution_rows=proposal.distribution_rows if rows is None else np.array(rows),
        )

    drafter = Tampered(draft, tampered)
    config = configured("traversal", 1, tree_shape=(2,), tree_children="without_replacement")
    decoder = SpeculativeDecoder(target, drafter, config=replace(config, validate="always"))
    with pytest.raises(DraftError, match=message):
        decoder.generate([0], SamplingParams(max_tokens=4))


def test_the_shape_of_trees() -> None:
    parents = np.array([[0, 0, 1, 3, 2], [0, 1, 2, 3, 4]])
    assert trees.node_depths(parents).tolist() == [[0, 1, 1, 2, 3, 2], [0, 1, 2, 3, 4, 5]]
    assert trees.path(parents[0].tolist(), 4) == [1, 3, 4]
    table = trees.children_table(parents, np.array([4, 5]))
    assert table.tolist() == [
        [[1, 2], [3, 0], [0, 0], [4, 0], [0, 0], [0, 0]],
        [[1, 0], [2, 0], [3, 0], [4, 0], [5, 0], [0, 0]],
    ]
    mask = trees.ancestor_mask(parents)
    assert mask[0].astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 0, 1, 1, 0],
        [0, 1, 0, 0, 1],
    ]
    config = SpeculativeConfig(tree_shape=(2, 2, 1))
    assert Shape.of(config).tree == DraftTree((2, 4, 4), (2, 2, 1))
