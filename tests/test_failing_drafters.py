"""A drafter that fails costs speed, never a token: the round goes on with what was drawn."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from outrider import NgramDrafter, SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.certify import exact_distribution
from outrider.drafters.model import ModelDrafter
from outrider.engine import decoder as engine
from outrider.engine import rounds
from outrider.engine.proposals import bounded, evidence, impossible, undrawn, without
from outrider.engine.rounds import check_distributions
from outrider.errors import (
    DegenerateDistributionError,
    DraftShapeError,
    KeyReuseError,
    TokenOutOfRangeError,
)
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.types.acceptance import Acceptance
from outrider.types.protocols import DraftContext
from outrider.types.records import Distributions, DraftPlan, DraftProposal


def distribution(prefix: tuple[int, ...]) -> np.ndarray:
    weights = np.array([1.0 + (len(prefix) + i * prefix[-1]) % 3 for i in range(3)])
    return weights / weights.sum()


def even(prefix: tuple[int, ...]) -> np.ndarray:
    return np.full(3, 1 / 3)


class Failing(ModelDrafter):
    """Fails where its own first draft is a 1, or has no distribution after one."""

    def __init__(self, how: str) -> None:
        super().__init__(TabularModel(even, 3))
        self.how = how

    def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
        if self.how == "nan" and prefixes[0].tokens[-1] == 1:
            ctx.distribution(torch.full((len(prefixes), 3), torch.nan))
        proposal = super().propose(prefixes, plan, ctx)
        if self.how == "nan" or not (proposal.tokens[:, 0] == 1).any():
            return proposal
        if self.how == "raises":
            raise ValueError("no draft today")
        return replace(proposal, lengths=proposal.lengths + 1)


@pytest.mark.parametrize("how", ["raises", "malformed", "nan"])
@pytest.mark.parametrize("verification", ["block", "coupled"])
def test_the_output_goes_on_and_the_failures_are_counted(how: str, verification: Any) -> None:
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, verification=verification)
    decoder = SpeculativeDecoder(TabularModel(distribution, 3), Failing(how), config=config)
    params = SamplingParams(max_tokens=60, seed=5)
    with pytest.warns(RuntimeWarning, match="went on with what is left: .*strict=True") as warned:
        output = decoder.generate([1], params)
    assert warned[0].filename == __file__
    decoder = SpeculativeDecoder(TabularModel(distribution, 3), Failing(how), config=config)
    with pytest.warns(RuntimeWarning, match="went on with what is left"):
        exec("list(decoder.stream([1], params))", {"decoder": decoder, "params": params})
    assert len(output.token_ids) == 60
    failures = decoder.metrics.draft_failures
    assert 0 < failures < decoder.metrics.rounds
    assert len(output.depths) == decoder.metrics.rounds
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = decoder.generate([1], params)
    assert again.token_ids == output.token_ids
    if verification == "coupled":
        plain = SpeculativeDecoder(TabularModel(distribution, 3), config=config).generate(
            [1], params
        )
        assert output.token_ids == plain.token_ids


@pytest.mark.filterwarnings("ignore:the drafter failed")
def test_the_distribution_is_exact_although_failure_depends_on_what_was_emitted() -> None:
    class Half(ModelDrafter):
        """Draws nothing, and fails after every 1."""

        def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
            if any(prefix.tokens[-1] == 1 for prefix in prefixes):
                raise ValueError("never after a 1")
            return super().propose(prefixes, plan, ctx)

    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2)
    decoder = SpeculativeDecoder(
        TabularModel(distribution, 3), Half(TabularModel(even, 3)), config=config
    )
    params = SamplingParams(max_tokens=4)
    expected = exact_distribution(SpeculativeDecoder(TabularModel(distribution, 3)), [0], params)
    found = exact_distribution(decoder, [0], params, batch_size=1)
    assert max(abs(found[output] - expected[output]) for output in expected) < 1e-12


class Unlucky(ModelDrafter):
    """Knows nothing after a 1, whether it was emitted or drafted: a distribution of NaN, or an error."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(TabularModel(even, 3))
        self.error = error

    def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
        drawn: list[torch.Tensor] = []
        distributions: list[torch.Tensor] = []
        last = torch.tensor([int(prefix.tokens[-1]) for prefix in prefixes])
        for position in range(plan.deepest):
            if self.error is not None and (last == 1).any():
                raise self.error
            even_logits = torch.zeros(len(last), 3, dtype=torch.float64)
            distribution = ctx.distribution(
                torch.where((last == 1)[:, None], torch.nan, even_logits)
            )
            assert distribution.probs is not None
            last = ctx.pick(distribution, position)
            drawn.append(last)
            distributions.append(distribution.probs)
        return DraftProposal(
            torch.stack(drawn, 1), plan.depth, Distributions(probs=torch.stack(distributions, 1))
        )


@pytest.mark.filterwarnings("ignore:the drafter failed")
@pytest.mark.parametrize("verification", ["block", "token"])
@pytest.mark.parametrize(
    "drafter", [Failing("raises"), Failing("malformed"), Unlucky(ValueError("no")), Unlucky()]
)
def test_the_distribution_is_exact_although_failure_depends_on_what_was_drawn(
    drafter: ModelDrafter, verification: Any
) -> None:
    """Tokens drawn before the failure are verified: dropping them for their values is no distribution's."""
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, verification=verification)
    decoder = SpeculativeDecoder(TabularModel(distribution, 3), drafter, config=config)
    params = SamplingParams(max_tokens=3)
    expected = exact_distribution(SpeculativeDecoder(TabularModel(distribution, 3)), [0], params)
    found = exact_distribution(decoder, [0], params, batch_size=1)
    assert max(abs(found[output] - expected[output]) for output in expected) < 1e-12


class Misreporting(ModelDrafter):
    """Draws from even distributions, and after a 1, emitted or drafted, hands over something else."""

    def __init__(self, instead: Any) -> None:
        super().__init__(TabularModel(even, 3))
        self.instead = instead

    def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
        proposal = super().propose(prefixes, plan, ctx)
        assert proposal.distributions is not None
        assert proposal.distributions.probs is not None
        last = torch.tensor([[int(prefix.tokens[-1])] for prefix in prefixes])
        before = torch.cat([last, proposal.tokens[:, :-1]], 1)
        own = torch.nn.functional.one_hot(proposal.tokens, 3).double()
        probs = torch.where(before[..., None] == 1, self.instead(own), proposal.distributions.probs)
        return replace(proposal, distributions=Distributions(probs=probs))


NO_LAWS = {
    "sums to less": lambda own: torch.full_like(own, 0.05),
    "sums to more": lambda own: torch.full_like(own, 0.34),
    "negative": lambda own: 1.5 * own - 0.5 * own.roll(1, -1),
    "not the token's": lambda own: (1 - own) / 2,
    "NaN": lambda own: own * torch.nan,
    "infinite": lambda own: own * torch.inf,
}


@pytest.mark.filterwarnings("ignore:the drafter failed")
@pytest.mark.parametrize("instead", NO_LAWS.values(), ids=NO_LAWS)
@pytest.mark.parametrize("verification", ["block", "token", "coupled"])
def test_no_distribution_that_tokens_cannot_have_been_drawn_from_changes_the_output(
    instead: Any, verification: Any
) -> None:
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, verification=verification)
    target = TabularModel(distribution, 3)
    decoder = SpeculativeDecoder(target, Misreporting(instead), config=config)
    params = SamplingParams(max_tokens=3)
    expected = exact_distribution(SpeculativeDecoder(target), [0], params)
    found = exact_distribution(decoder, [0], params, batch_size=1)
    assert max(abs(found[output] - expected[output]) for output in expected) < 1e-12
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)
    decoder.generate([1], params)
    assert decoder.metrics.draft_failures


def test_a_distribution_of_which_the_token_is_no_draw_is_named() -> None:
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, strict=True)
    params = SamplingParams(max_tokens=9, seed=1)
    for name, told in (
        ("sums to less", r"total mass 0\.15 and least entry 0\.05"),
        ("not the token's", "0 of it the token's"),
        ("NaN", "total mass nan"),
    ):
        drafter = Misreporting(NO_LAWS[name])
        decoder = SpeculativeDecoder(TabularModel(distribution, 3), drafter, config=config)
        with pytest.raises(DegenerateDistributionError, match=f"as draft 1 for sequence.*{told}"):
            decoder.generate([1], params)


def test_an_atom_is_the_token_itself() -> None:
    class Other(NgramDrafter):
        def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
            tokens = torch.ones(len(prefixes), plan.deepest, dtype=torch.int64)
            return DraftProposal(tokens, plan.depth, Distributions(point_masses=tokens + 1))

    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, strict=True)
    decoder = SpeculativeDecoder(TabularModel(distribution, 3), Other(), config=config)
    with pytest.raises(DegenerateDistributionError, match=r"token 1 as draft 1 .* the atom 2"):
        decoder.generate([0], SamplingParams(max_tokens=9))


@pytest.mark.parametrize(("given", "told"), [(None, "None"), ([], "a list"), ((1,), "a tuple of")])
def test_what_is_no_proposal_is_named(given: Any, told: str) -> None:
    class Returns(NgramDrafter):
        def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> Any:
            return given

    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, strict=True)
    decoder = SpeculativeDecoder(TabularModel(distribution, 3), Returns(), config=config)
    with pytest.raises(DraftShapeError, match=f"returned {told}.*expected a DraftProposal"):
        decoder.generate([0], SamplingParams(max_tokens=9))


class MisreportingTree(ModelDrafter):
    """Trees in which drawn nodes that are `bad` come with something that is no distribution."""

    def __init__(self, bad: Any) -> None:
        super().__init__(mock_pair(3, 2)[1])
        self.bad = bad

    def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
        proposal = super().propose(prefixes, plan, ctx)
        if proposal.distributions is None or proposal.distributions.probs is None:
            return proposal
        probs, tokens, parents = (
            proposal.distributions.probs.clone(),
            proposal.tokens,
            proposal.structure,
        )
        assert proposal.distribution_rows is not None
        for row, length in enumerate(proposal.lengths.tolist()):
            nodes = [int(prefixes[row].tokens[-1]), *tokens[row].tolist()]
            for column in range(length):
                at, mother = proposal.distribution_rows[row, column], parents[row, column]
                elder = [nodes[i + 1] for i in range(column) if parents[row, i] == mother]
                if at >= 0 and self.bad(nodes[mother], elder):
                    probs[row, at] = 0.05
        return replace(proposal, distributions=Distributions(probs=probs))


@pytest.mark.filterwarnings("ignore:the drafter failed")
@pytest.mark.parametrize("verification", ["traversal", "recursive"])
@pytest.mark.parametrize(
    ("children", "bad"),
    [
        ("greedy", lambda mother, elder: mother == 2),
        ("with_replacement", lambda mother, elder: mother == 1),
        ("without_replacement", lambda mother, elder: mother == 1),
        ("without_replacement", lambda mother, elder: 1 in elder),
    ],
)
def test_no_distribution_that_means_nothing_changes_what_comes_of_a_tree(
    children: Any, bad: Any, verification: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a node, or by a sibling that is drawn before: the rest of the tree is verified."""
    config = SpeculativeConfig(
        depth="fixed",
        num_speculative_tokens=2,
        tree_shape=(2, 2),
        tree_children=children,
        verification=verification,
    )
    target, _ = mock_pair(3, 2)
    decoder = SpeculativeDecoder(target, MisreportingTree(bad), config=config)
    params = SamplingParams(max_tokens=3)
    expected = exact_distribution(SpeculativeDecoder(target), [0], params)

    def error() -> float:
        found = exact_distribution(decoder, [0], params, batch_size=1)
        return max(abs(found[output] - expected[output]) for output in expected)

    assert error() < 1e-12
    monkeypatch.setattr(rounds, "without", no_depth)
    assert error() > 1e-4


class PointFirst(ModelDrafter):
    """Drafts a 1 for sure, then 0 or 2 twice; after a 0 the distribution of the third is none.

    That is the first in its table of distributions, and has -inf for the 1.
    """

    def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
        if plan.deepest < 3:
            return super().propose(prefixes, plan, ctx)
        half = torch.tensor([[0.5, 0.0, 0.5]] * len(prefixes), dtype=torch.float64)
        second, third = (ctx.pick(Distributions(probs=half), place) for place in (1, 2))
        wrong = torch.tensor([0.5, -torch.inf, 0.5], dtype=torch.float64)
        probs = torch.stack([torch.where(second[:, None] == 0, wrong, half), half], 1)
        tokens = torch.stack([torch.ones_like(second), second, third], 1)
        distribution_rows = np.tile([[-1, 1, 0]], (len(prefixes), 1))
        return DraftProposal(
            tokens, plan.depth, Distributions(probs=probs), distribution_rows=distribution_rows
        )


@pytest.mark.filterwarnings("ignore:the drafter failed")
@pytest.mark.parametrize("apart", [False, True], ids=["on the host", "as on a device"])
def test_the_distribution_is_exact_where_a_later_distribution_is_wrong_beside_a_point_mass(
    apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a point mass that goes by what the first distribution of the table says of its token."""

    def confused(proposal: DraftProposal, vocab_size: int | None = None) -> list[torch.Tensor]:
        found = evidence(proposal, 3)
        if (
            proposal.distribution_rows is None
            or proposal.distributions is None
            or proposal.distributions.probs is None
        ):
            return found
        first = proposal.distributions.probs[:, 0].gather(-1, proposal.tokens)
        return [
            *found[:2],
            torch.where(torch.from_numpy(proposal.distribution_rows < 0), first, found[2]),
        ]

    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=3)
    target = TabularModel(distribution, 3)
    decoder = SpeculativeDecoder(target, PointFirst(TabularModel(even, 3)), config=config)
    params = SamplingParams(max_tokens=4)
    expected = exact_distribution(SpeculativeDecoder(target), [0], params)

    def error() -> float:
        found = exact_distribution(decoder, [0], params, batch_size=1)
        return max(abs(found[output] - expected[output]) for output in expected)

    if apart:
        monkeypatch.setattr(rounds, "evidence", lambda proposal, size=None: evidence(proposal, 3))
    assert error() < 1e-12
    monkeypatch.setattr(rounds, "evidence", confused)
    assert error() > 1e-3


def no_depth(proposal: DraftProposal, wrong: Any, depths: Any = None) -> DraftProposal:
    """The planted fault: all drafts go where one does."""
    return replace(proposal, lengths=np.zeros_like(proposal.lengths))


def test_what_is_left_of_a_tree() -> None:
    """Of (1 (3 6)) (2 (4 7) (5)) 4 goes, with its later siblings and what follows them."""
    parents = np.array([[0, 0, 1, 2, 2, 3, 4]] * 3)
    tokens = torch.arange(21).view(3, 7)
    distribution_rows = np.arange(21).reshape(3, 7) % 4 - 1
    distributions = Distributions(probs=torch.full((3, 3, 21), 1 / 21))
    lengths = np.array([7, 7, 3])
    proposal = DraftProposal(tokens, lengths, distributions, parents, distribution_rows)
    left = without(proposal, [(0, 3)])
    assert left.lengths.tolist() == [4, 7, 3]
    assert left.tokens[0, :4].tolist() == [0, 1, 2, 5]
    assert left.structure[0, :4].tolist() == [0, 0, 1, 3]
    assert left.distribution_rows is not None
    assert left.distribution_rows[0, :4].tolist() == distribution_rows[0, [0, 1, 2, 5]].tolist()
    assert left.tokens[1].tolist() == tokens[1].tolist()
    assert (left.structure[1] == parents[1]).all()
    assert (left.structure <= np.arange(7)).all()
    assert without(proposal, [(1, 0)]).lengths.tolist() == [7, 0, 3]
    by_depth = without(proposal, [(1, 4)], [1, 2, 3])
    assert by_depth.lengths.tolist() == [2, 4, 3]
    own = without(
        replace(proposal, distribution_rows=None, distributions=Distributions(point_masses=tokens)),
        [(0, 3)],
    )
    assert own.distributions is not None
    assert own.distributions.point_masses is own.tokens


@pytest.mark.filterwarnings("ignore:the drafter failed")
@pytest.mark.parametrize("verification", ["block", "token"])
def test_what_was_drawn_from_no_distribution_before_an_error_is_not_verified(
    verification: Any,
) -> None:
    class Breaks(ModelDrafter):
        """Draws two tokens, the second after a 1 from what is no distribution, and raises."""

        def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
            distributions = ctx.distribution(torch.zeros(len(prefixes), 3, dtype=torch.float64))
            first = ctx.pick(distributions, 0)
            assert distributions.probs is not None
            if plan.deepest > 1:
                wrong = torch.where(
                    (first == 1)[:, None], distributions.probs / 2, distributions.probs
                )
                context: Any = ctx
                ctx.pick(distributions, 1)
                context._picked[1] = (Distributions(probs=wrong), context._picked[1][1])
            raise ValueError("no draft today")

    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, verification=verification)
    drafter = Breaks(TabularModel(even, 3))
    decoder = SpeculativeDecoder(TabularModel(distribution, 3), drafter, config=config)
    params = SamplingParams(max_tokens=3)
    expected = exact_distribution(SpeculativeDecoder(TabularModel(distribution, 3)), [0], params)
    found = exact_distribution(decoder, [0], params, batch_size=1)
    assert max(abs(found[output] - expected[output]) for output in expected) < 1e-12


class Picking(ModelDrafter):
    """Draws each token from what `of` makes of an even distribution, hands it over, and may then raise."""

    def __init__(self, of: Any, error: Exception | None = None) -> None:
        super().__init__(TabularModel(even, 3))
        self.of = of
        self.error = error

    def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
        rows, tokens = [], []
        for position in range(plan.deepest):
            distributions = self.of(
                Distributions(probs=torch.full((len(prefixes), 3), 1 / 3)), position
            )
            tokens.append(ctx.pick(distributions, position))
            rows.append(distributions.probs)
        if self.error is not None:
            raise self.error
        return DraftProposal(
            torch.stack(tokens, 1), plan.depth, Distributions(probs=torch.stack(rows, 1))
        )


def in_half(dtype: torch.dtype, start: int) -> Any:
    """Distributions [2/3, 1/3, 0] in half precision, from the `start`-th token on."""

    def of(distributions: Distributions, position: int) -> Distributions:
        assert distributions.probs is not None
        distribution = torch.tensor([2 / 3, 1 / 3, 0.0]).expand_as(distributions.probs)
        return Distributions(probs=distribution.to(dtype)) if position >= start else distributions

    return of


def atoms_at(place: int) -> Any:
    """A point mass in the place of one distribution."""

    def of(distributions: Distributions, position: int) -> Distributions:
        assert distributions.probs is not None
        return (
            Distributions(point_masses=distributions.probs.argmax(-1))
            if position == place
            else distributions
        )

    return of


PICKS = {
    "bfloat16": (in_half(torch.bfloat16, 0), None, 0),
    "float16, then an error": (in_half(torch.float16, 0), ValueError("no"), 0),
    "bfloat16 later": (in_half(torch.bfloat16, 1), ValueError("no"), 1),
    "an atom first": (atoms_at(0), ValueError("no"), 0),
    "an atom later": (atoms_at(1), ValueError("no"), 1),
}


@pytest.mark.filterwarnings("ignore:the drafter failed")
@pytest.mark.parametrize(("of", "error", "kept"), PICKS.values(), ids=PICKS)
@pytest.mark.parametrize("verification", ["block", "token"])
def test_picks_are_verified_up_to_the_first_that_cannot_be(
    of: Any, error: Exception | None, kept: int, verification: Any
) -> None:
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, verification=verification)
    target, drafter = TabularModel(distribution, 3), Picking(of, error)
    decoder = SpeculativeDecoder(target, drafter, config=config)
    decoder.generate([0], SamplingParams(max_tokens=9))
    assert decoder.metrics.draft_failures
    assert decoder.metrics.drafted == kept * decoder.metrics.draft_rounds
    params = SamplingParams(max_tokens=3)
    expected = exact_distribution(SpeculativeDecoder(target), [0], params)
    found = exact_distribution(decoder, [0], params, batch_size=1)
    assert max(abs(found[output] - expected[output]) for output in expected) < 1e-12


@pytest.mark.filterwarnings("ignore:the drafter failed")
@pytest.mark.parametrize(
    "given",
    [
        SamplingParams(max_tokens=3, top_k=2, temperature=0.7),
        SamplingParams(max_tokens=3, top_p=0.6),
        SamplingParams(max_tokens=3, repetition_penalty=1.5),
    ],
    ids=["top-k", "top-p", "a penalty"],
)
@pytest.mark.parametrize("own", [None, SamplingParams(top_k=2), SamplingParams(temperature=0.5)])
def test_the_distribution_is_exact_whatever_is_done_to_the_distributions(
    given: SamplingParams, own: SamplingParams | None
) -> None:
    target = TabularModel(distribution, 3)
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, draft_params=own)
    expected = exact_distribution(SpeculativeDecoder(target), [0], given)
    for drafter in (Failing("raises"), Unlucky(), Misreporting(NO_LAWS["sums to less"])):
        decoder = SpeculativeDecoder(target, drafter, config=config)
        found = exact_distribution(decoder, [0], given, batch_size=1)
        assert max(abs(found[output] - expected[output]) for output in expected) < 1e-12


@pytest.mark.filterwarnings("ignore:the drafter failed")
@pytest.mark.parametrize("shape", [{}, {"tree_shape": (2, 1)}], ids=["chain", "tree"])
def test_the_distribution_is_exact_where_nothing_is_known_that_is_drawn_outright(
    shape: Any,
) -> None:
    """The likeliest of NaN says nothing of where it was taken from; it is seen all the same."""
    config = SpeculativeConfig(
        depth="fixed", num_speculative_tokens=2, draft_sample_method="greedy", **shape
    )
    target = TabularModel(distribution, 3)
    decoder = SpeculativeDecoder(target, NanModel(even, 3), config=config)
    params = SamplingParams(max_tokens=3)
    expected = exact_distribution(SpeculativeDecoder(target), [0], params)
    found = exact_distribution(decoder, [0], params, batch_size=1)
    assert max(abs(found[output] - expected[output]) for output in expected) < 1e-12
    decoder.generate([1], params)
    assert decoder.metrics.draft_failures


@pytest.mark.parametrize("name", ["lengths", "parents", "distribution_rows"])
def test_unsigned_numbers_of_nodes_are_refused(name: str) -> None:
    """The prefix less one would be the largest of them."""

    class Unsigned(ModelDrafter):
        def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
            proposal = super().propose(prefixes, plan, ctx)
            given: Any = {name: getattr(proposal, name).astype(np.uint8)}
            return replace(proposal, **given)

    config = SpeculativeConfig(depth="fixed", tree_shape=(2, 2), strict=True)
    decoder = SpeculativeDecoder(
        TabularModel(distribution, 3), Unsigned(TabularModel(even, 3)), config=config
    )
    with pytest.raises(DraftShapeError, match=f"{name} of kind uint8; expected .* of signed int"):
        decoder.generate([0], SamplingParams(max_tokens=9))


def test_a_tree_of_point_masses_needs_atoms() -> None:
    class Outright(NgramDrafter):
        def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
            batch = len(prefixes)
            return DraftProposal(
                torch.ones(batch, 2, dtype=torch.int64),
                np.full(batch, 2),
                Distributions(probs=torch.zeros(batch, 0, 3)),
                np.tile([0, 1], (batch, 1)),
                np.full((batch, 2), -1),
            )

    config = SpeculativeConfig(depth="fixed", tree_shape=(1, 1), strict=True)
    decoder = SpeculativeDecoder(TabularModel(distribution, 3), Outright(), config=config)
    with pytest.raises(
        DraftShapeError, match=r"\(1, 0, 3\), none at all.*Distributions\(point_masses=tokens\)"
    ):
        decoder.generate([0], SamplingParams(max_tokens=9))


@pytest.mark.parametrize("gap", [0.0, 12.0, 16.5, 17.0, 20.0])
@pytest.mark.parametrize("spread", [0.0, 0.7])
def test_a_softmax_over_many_tokens_is_a_distribution(gap: float, spread: float) -> None:
    """In float32 it sums to one only so far where one token has nearly all of it."""
    logits = -gap + spread * torch.randn(1, 2, 151_936, generator=torch.Generator().manual_seed(1))
    logits[..., 220] = 0.0
    tokens = torch.tensor([[220, 7]])
    for probs in (logits.softmax(-1), logits.softmax(-1).double()):
        proposal = DraftProposal(tokens, np.array([2]), Distributions(probs=probs))
        assert undrawn(proposal, [part.tolist() for part in evidence(proposal)]) == []
        for scale in (0.998, 1.002):
            off = replace(proposal, distributions=Distributions(probs=probs * scale))
            assert len(undrawn(off, [part.tolist() for part in evidence(off)])) == 2


TREES: Any = [{}, {"tree_shape": (2, 2)}, {"tree_budget": 5, "num_speculative_tokens": 3}]


def outside(**distributions: Any) -> DraftProposal:
    """Two rows of three drafts, of a vocabulary of four; one id in each row is outside."""
    tokens = torch.tensor([[1, 9, 2], [3, 0, -1]])
    given = {
        key: value(tokens) if callable(value) else value for key, value in distributions.items()
    }
    rows = given.pop("distribution_rows", None)
    return DraftProposal(tokens, np.array([3, 3]), Distributions(**given), distribution_rows=rows)


@pytest.mark.parametrize(
    "distributions",
    [
        {"atoms": lambda tokens: tokens},
        {"atoms": lambda tokens: tokens.clone()},
        {"probs": torch.full((2, 3, 4), 0.25)},
        {
            "probs": torch.full((2, 3, 4), 0.25),
            "distribution_rows": np.array([[0, -1, 1], [1, 2, -1]]),
        },
        {
            "probs": torch.full((2, 1, 4), 0.25),
            "distribution_rows": np.array([[0, 0, 0], [0, -1, 0]]),
        },
    ],
    ids=["atoms", "other atoms", "distributions", "distributions and points", "one distribution"],
)
def test_an_id_outside_the_vocabulary_is_told_where_it_was_not_looked_for(
    distributions: dict[str, Any],
) -> None:
    """As on a device, whose kernels must not see it: whatever distribution it came with."""
    proposal = outside(**distributions)
    found = [part.tolist() for part in evidence(proposal, 4)]
    wrong = undrawn(proposal, found)
    assert wrong == [(0, 1), (1, 2)]
    safe = bounded(proposal, 4)
    assert safe.tokens.tolist() == [[1, 3, 2], [3, 0, 0]]
    assert safe.distributions is not None
    if safe.distributions.point_masses is not None:
        assert safe.distributions.point_masses.tolist() == safe.tokens.tolist()
    rest = without(safe, wrong)
    assert rest.lengths.tolist() == [1, 2]
    assert 0 <= rest.tokens.min() <= rest.tokens.max() < 4
    error = impossible(proposal, 0, 1, 7, 4)
    assert isinstance(error, TokenOutOfRangeError)
    assert "token 9 as draft 2 for sequence 7; expected ids in 0..3" in str(error)
    # All of them inside, nothing is wrong, and what stands for its own distribution goes on doing so.
    inside = replace(
        safe,
        distributions=safe.distributions if "atoms" in distributions else proposal.distributions,
    )
    assert undrawn(inside, [part.tolist() for part in evidence(inside, 4)]) == []
    assert (evidence(bounded(inside, 4)) == []) == (
        inside.distributions.point_masses is inside.tokens
    )


def test_a_distribution_that_is_not_a_point_masss_own_says_nothing_of_it() -> None:
    """Whether a node goes depends on nothing drawn after it, such as the first distribution of a table."""
    tokens, rows = torch.tensor([[1, 2]]), np.array([[-1, 0]])
    for entry in (-torch.inf, torch.nan, -1.0):
        probs = torch.tensor([[[0.0, entry, 1.0]]])
        proposal = DraftProposal(
            tokens, np.array([2]), Distributions(probs=probs), distribution_rows=rows
        )
        for size in (None, 3):
            assert undrawn(proposal, [part.tolist() for part in evidence(proposal, size)]) == [
                (0, 1)
            ]


@pytest.mark.parametrize("greedy", [False, True])
def test_distributions_on_a_device_wait_only_where_the_verdict_draws_nothing(
    greedy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that draws would draw twice under the same keys, were it made again."""
    proposal = SimpleNamespace(tokens=SimpleNamespace(device=torch.device("cuda")))
    found, failure = [torch.zeros(1, 1)], ValueError("told at once")
    monkeypatch.setattr(rounds, "evidence", lambda proposal, size: found if size == 3 else [])
    monkeypatch.setattr(rounds, "undrawn", lambda proposal, parts: [(0, 0)])
    monkeypatch.setattr(rounds, "_failure", lambda *_: failure)
    context: Any = SimpleNamespace(witnesses=[])
    if greedy:
        assert check_distributions(proposal, context, 3, greedy) is found
        return
    with pytest.raises(ValueError, match="told at once"):
        check_distributions(proposal, context, 3, greedy)


@pytest.mark.parametrize("strict", [False, True])
def test_drafts_on_another_device_are_the_drafters_failure(strict: bool) -> None:
    class Elsewhere(ModelDrafter):
        def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
            found = super().propose(prefixes, plan, ctx)
            tokens = found.tokens.to("meta")
            return replace(found, tokens=tokens, distributions=Distributions(point_masses=tokens))

    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, strict=strict)
    decoder = SpeculativeDecoder(
        TabularModel(distribution, 3), Elsewhere(TabularModel(even, 3)), config=config
    )
    params, told = SamplingParams(max_tokens=9), "tokens on meta; expected them on cpu"
    if strict:
        with pytest.raises(DraftShapeError, match=told):
            decoder.generate([1], params)
        return
    with pytest.warns(RuntimeWarning, match=told):
        assert len(decoder.generate([1], params).token_ids) == 9
    assert decoder.metrics.draft_failures > 0


@pytest.mark.filterwarnings("ignore:the drafter failed")
@pytest.mark.parametrize("shape", TREES, ids=str)
@pytest.mark.parametrize("name", ["sound", "a distribution of .15", "NaN", "both"])
def test_on_a_device_distributions_are_looked_at_with_the_rounds_result(
    shape: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their evidence comes with the one copy, and the same texts and figures come of it."""

    class Wrong(MisreportingTree):
        def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
            if plan.levels is not None and name in ("a distribution of .15", "both"):
                return super().propose(prefixes, plan, ctx)
            proposal = ModelDrafter.propose(self, prefixes, plan, ctx)
            if name in ("sound", "NaN") or plan.levels is not None:
                return proposal
            assert proposal.distributions is not None
            assert proposal.distributions.probs is not None
            last = torch.tensor([[int(prefix.tokens[-1])] for prefix in prefixes])
            before = torch.cat([last, proposal.tokens[:, :-1]], 1)[..., None]
            probs = torch.where(before == 1, 0.05, proposal.distributions.probs)
            return replace(proposal, distributions=Distributions(probs=probs))

    class Draft(TabularModel):
        def probabilities(self, prefix: tuple[int, ...]) -> np.ndarray:
            own = name in ("NaN", "both") and prefix[-1] == 2
            return np.full(3, np.nan) if own else mock_pair(3, 2)[1].probabilities(prefix)

    def run() -> tuple[Any, ...]:
        drafter = Wrong(lambda mother, elder: mother == 1)
        drafter.model = Draft(even, 3)
        settings: dict[str, Any] = {"num_speculative_tokens": 2} | shape
        config = SpeculativeConfig(depth="fixed", **settings)
        decoder = SpeculativeDecoder(mock_pair(3, 2)[0], drafter, config=config)
        params = [SamplingParams(max_tokens=20, seed=seed) for seed in range(4)]
        outputs = decoder.generate([[0], [1], [2], [0, 1]], params)
        found = decoder.metrics
        figures = (found.drafted, found.accepted, found.rounds, found.draft_failures)
        return [output.token_ids for output in outputs], figures

    at_once = run()
    assert bool(at_once[1][3]) == (name != "sound")
    monkeypatch.setattr(engine, "check_distributions", lambda proposal, *_: evidence(proposal, 3))
    assert run() == at_once


class NanModel(TabularModel):
    """Whose distributions after a 1 mean nothing."""

    def probabilities(self, prefix: tuple[int, ...]) -> np.ndarray:
        return np.full(3, np.nan if prefix[-1] == 1 else 1 / 3)


@pytest.mark.filterwarnings("ignore:the drafter failed")
@pytest.mark.parametrize("shape", [None, (2, 1)], ids=["chain", "tree"])
def test_drafts_before_a_distribution_of_nan_are_kept_in_production(shape: Any) -> None:
    """A chi-squared test of 4,000 first tokens; false alarms 1e-6, were the seeds not fixed.

    The target's first token is 1 with a probability of .8; plain rounds after drafts of it would
    make that .73.
    """
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, tree_shape=shape)
    target = TabularModel(lambda prefix: [0.1, 0.8, 0.1], 3)
    decoder = SpeculativeDecoder(target, NanModel(even, 3), config=config)
    counts = np.zeros(3)
    for start in range(0, 4000, 1000):
        params = [SamplingParams(max_tokens=3, seed=start + row) for row in range(1000)]
        states = [decoder.start([0], asked)[0] for asked in params]
        step = decoder.step(decoder.pack(states))
        assert step.record.draft_failed
        assert max(step.record.depth) >= 1
        counts += np.bincount([tokens[0] for tokens in step.emitted], minlength=3)
    expected = 4000 * np.array([0.1, 0.8, 0.1])
    assert ((counts - expected) ** 2 / expected).sum() < 27.6


@pytest.mark.filterwarnings("ignore:the drafter failed")
@pytest.mark.parametrize("seed", [None, 3])
def test_a_drafter_that_always_fails_is_soon_asked_now_and_then_only(seed: int | None) -> None:
    class Never(ModelDrafter):
        asked = 0

        def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
            self.asked += 1
            raise ValueError("no draft today")

    drafter = Never(TabularModel(even, 3))
    config = SpeculativeConfig(depth="adaptive")
    decoder = SpeculativeDecoder(TabularModel(distribution, 3), drafter, config=config)
    decoder.generate([1], SamplingParams(max_tokens=200, seed=seed))
    assert 1 <= drafter.asked <= 40


def test_strict_raises_what_the_drafter_raises() -> None:
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, strict=True)
    for how, error in (("raises", ValueError), ("malformed", DraftShapeError)):
        decoder = SpeculativeDecoder(TabularModel(distribution, 3), Failing(how), config=config)
        with pytest.raises(error):
            decoder.generate([1], SamplingParams(max_tokens=60, seed=5))


def test_a_key_used_twice_is_raised_in_any_case() -> None:
    class Twice(ModelDrafter):
        def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
            distributions = ctx.distribution(torch.zeros(len(prefixes), 3))
            ctx.pick(distributions, 0)
            ctx.pick(distributions, 0)
            return super().propose(prefixes, plan, ctx)

    decoder = SpeculativeDecoder(TabularModel(distribution, 3), Twice(TabularModel(even, 3)))
    with pytest.raises(KeyReuseError):
        exact_distribution(decoder, [0], SamplingParams(max_tokens=3))


def test_a_failure_leaves_sound_drafts_alone() -> None:
    decoder = SpeculativeDecoder(TabularModel(distribution, 3), NgramDrafter())
    decoder.generate([1, 2, 1, 2], SamplingParams(max_tokens=20))
    assert decoder.metrics.draft_failures == 0


def test_what_a_requests_own_processor_raises_is_not_the_drafters_fault() -> None:
    def refuses(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        raise ValueError("not these logits")

    decoder = SpeculativeDecoder(TabularModel(distribution, 3), TabularModel(even, 3))
    with pytest.raises(ValueError, match="not these logits"):
        decoder.generate([0], SamplingParams(max_tokens=3, logits_processors=(refuses,)))
    assert decoder.metrics.draft_failures == 0


class Wavering(NanModel):
    """Sure of some tokens and not of others, so that drafts end in different places."""

    def probabilities(self, prefix: tuple[int, ...]) -> np.ndarray:
        if prefix[0] == 1 and len(prefix) == 6:
            return np.full(3, np.nan)
        weights = np.array([0.98, 0.01, 0.01]) if len(prefix) % 3 else np.full(3, 1 / 3)
        return np.roll(weights, len(prefix))


@pytest.mark.filterwarnings("ignore:the drafter failed")
def test_sound_drafts_teach_as_much_beside_a_mate_whose_draft_fails() -> None:
    """The mate's distribution means nothing at a place of its own; what others drafted stands."""
    config = SpeculativeConfig(depth="adaptive", num_speculative_tokens=6, cost_ratio=0.05)
    decoder = SpeculativeDecoder(TabularModel(distribution, 3), Wavering(even, 3), config=config)
    asked = SamplingParams(max_tokens=30, seed=4)
    for mates in (1, 3):
        failures = 0
        states = [decoder.start([0, 2], asked)[0]]
        states += [decoder.start([1, 2], replace(asked, seed=i))[0] for i in range(mates)]
        alone, together = decoder.pack(states[:1]), decoder.pack(states)
        for _ in range(4):
            one, more = decoder.step(alone), decoder.step(together)
            assert not one.record.draft_failed
            failures += more.record.draft_failed
            known = more.batch.states[0]
            assert known.output_ids == one.batch.states[0].output_ids
            assert known.acceptance == one.batch.states[0].acceptance
            assert known.acceptance.sureness.reached != Acceptance().sureness.reached
            # No entropy is told of a distribution that means nothing.
            told = zip(more.record.entropies, more.record.depth, strict=True)
            assert all(len(entropies) == depth for entropies, depth in told)
            assert np.isfinite(np.concatenate(more.record.entropies)).all()
            alone, together = one.batch, more.batch
        assert failures


@pytest.mark.filterwarnings("ignore:the drafter failed")
def test_a_draft_that_was_short_of_itself_is_not_taken_for_one_that_failed() -> None:
    """Beside a mate whose second distribution is none, a row of one token teaches what it does alone."""

    class Short(ModelDrafter):
        def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
            proposal = super().propose(prefixes, plan, ctx)
            short = np.array([prefix.tokens[0] == 0 for prefix in prefixes])
            assert proposal.distributions is not None
            assert proposal.distributions.probs is not None
            probs = proposal.distributions.probs.clone()
            probs[torch.from_numpy(~short), 1:] = 0.05
            lengths = np.where(short, plan.depth.clip(max=1), plan.depth)
            return replace(proposal, lengths=lengths, distributions=Distributions(probs=probs))

    config = SpeculativeConfig(depth="adaptive", num_speculative_tokens=4, cost_ratio=0.05)
    decoder = SpeculativeDecoder(
        TabularModel(distribution, 3), Short(TabularModel(even, 3)), config=config
    )
    states = [
        decoder.start(prompt, SamplingParams(max_tokens=9, seed=seed))[0]
        for prompt, seed in (([0, 2], 2), ([1, 2], 5))
    ]
    alone, together = decoder.step(decoder.pack(states[:1])), decoder.step(decoder.pack(states))
    assert (alone.record.draft_failed, together.record.draft_failed) == (False, True)
    assert together.record.depth == (1, 1)
    assert together.batch.states[0].acceptance == alone.batch.states[0].acceptance
    assert together.batch.states[1].acceptance != alone.batch.states[0].acceptance


@pytest.mark.filterwarnings("ignore:the drafter failed")
def test_what_was_drafted_before_an_error_teaches() -> None:
    class Breaks(ModelDrafter):
        def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
            super().propose(prefixes, plan, ctx)
            raise ValueError("no draft today")

    config = SpeculativeConfig(depth="adaptive", num_speculative_tokens=4)
    learnt = []
    for drafter in (ModelDrafter, Breaks):
        decoder = SpeculativeDecoder(
            TabularModel(distribution, 3), drafter(TabularModel(even, 3)), config=config
        )
        states = decoder.start([0], SamplingParams(max_tokens=9, seed=1))
        learnt.append(decoder.step(decoder.pack(states)).batch.states[0].acceptance)
    assert learnt[0].sureness == learnt[1].sureness != Acceptance().sureness
