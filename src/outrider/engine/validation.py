"""Contract checks: what drafters, runtimes and policies return.

`CheckedDrafter` and `CheckedRuntime` wrap parts that are not proven; the engine itself checks
nothing of what they checked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..config.params import SpeculativeConfig
from ..drafters.base import DraftContext, Drafter
from ..errors import (
    DegenerateDistributionError,
    DistributionWidthError,
    DraftShapeError,
    InvalidConfigError,
    TargetShapeError,
    TokenOutOfRangeError,
    kind_of,
    shown,
)
from ..runtimes.base import Capabilities, Cursor, Runtime
from ..sampling.distributions import DTYPES
from ..types import trees
from ..types.records import (
    Distributions,
    DraftPlan,
    DraftProposal,
    Prefix,
    SequenceState,
    TargetScores,
)

_SUM_TOLERANCE, _SUM_TOLERANCE_PER_ENTRY = 1e-4, 2.0**-27
"""How far from one a distribution may sum: at least, and for each entry of a float32 softmax."""


class CheckedDrafter(Drafter):
    """A drafter whose proposals are checked against the contract.

    Args:
        drafter: any drafter.
        vocab_size: the target's.
    """

    def __init__(self, drafter: Drafter, vocab_size: int) -> None:
        self.drafter = drafter
        self.models = (drafter,)
        self.source = drafter.source
        self.cost_ratio = drafter.cost_ratio
        self.looks_up = drafter.looks_up
        self._target_vocab_size = vocab_size

    @property
    def vocab_size(self) -> int | None:
        """The width of its distributions, V; None if it proposes tokens that it has seen."""
        return self.drafter.vocab_size

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """Propose as the drafter does.

        Raises:
            DraftShapeError, DistributionWidthError, TokenOutOfRangeError,
            DegenerateDistributionError: the proposal breaks the contract.
        """
        proposal = self.drafter.propose(prefixes, plan, ctx)
        check_proposal(proposal, plan, self._target_vocab_size, ctx.device)
        check_distributions(proposal, [prefix.sequence_id for prefix in prefixes])
        return proposal


class CheckedRuntime(Runtime):
    """A runtime whose scores are checked against the contract.

    Args:
        runtime: any runtime.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    @property
    def capabilities(self) -> Capabilities:
        """The runtime's own."""
        return self.runtime.capabilities

    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        """Score drafts as the runtime does.

        Raises:
            TargetShapeError, DistributionWidthError: the scores break the contract.
        """
        scores = self.runtime.verify(prefixes, proposal)
        check_scores(scores, proposal, self.vocab_size)
        return scores

    def open(self, prefixes: Sequence[Prefix], depth: int) -> Cursor:
        """Open the runtime's cursor."""
        return self.runtime.open(prefixes, depth)


def checked_parts(
    target: Runtime, drafter: Drafter | None, drafters: Sequence[Drafter], config: SpeculativeConfig
) -> tuple[Runtime, Drafter | None]:
    """Wrap a target and a drafter in contract checks, as `config.validate` says.

    Args:
        target: the target.
        drafter: what proposes tokens; None for nothing.
        drafters: it and those behind it.
        config: "auto" wraps what is not this library's own.
    """
    validate = config.validate
    if validate == "always" or (validate == "auto" and not own_code(target)):
        target = CheckedRuntime(target)
    unproven = validate == "auto" and not all(map(own_code, drafters))
    if drafter is not None and (validate == "always" or unproven):
        drafter = CheckedDrafter(drafter, target.vocab_size)
    return target, drafter


def check_scores(scores: TargetScores, proposal: DraftProposal, vocab_size: int) -> None:
    """Check the shape of a target's scores.

    Raises:
        TargetShapeError: there is not one row of logits for each prefix and drafted token, or
            `cached` is no tuple of a count for each prefix.
        DistributionWidthError: the rows are not as wide as the vocabulary.
    """
    batch, width = proposal.tokens.shape
    shape = tuple(scores.logits.shape)
    if shape[:2] != (batch, width + 1) or len(shape) != 3:
        raise TargetShapeError(
            f"the target returned logits of shape {shape}; expected [{batch}, {width + 1}, "
            f"{vocab_size}]: after each prefix and after each of {width} drafted tokens"
        )
    if shape[2] != vocab_size:
        raise DistributionWidthError(
            f"the target returned logits of shape {shape}; expected the last dimension to be its "
            f"vocab_size, {vocab_size}"
        )
    cached = scores.cached
    counts = isinstance(cached, tuple) and all(isinstance(n, int) and n >= 0 for n in cached)
    if not counts or len(cached) not in (0, batch):
        raise TargetShapeError(
            f"the target returned cached={shown(cached)}; expected a tuple of {batch} integers >= "
            "0, tokens of each prefix that it found computed, or an empty one"
        )


def own_code(part: object) -> bool:
    """Whether a part's class is this library's own."""
    return type(part).__module__.partition(".")[0] == __name__.partition(".")[0]


def check_plan(plan: object, states: Sequence[SequenceState]) -> None:
    """Raise InvalidConfigError unless a policy returned a plan for these sequences."""
    expected = (
        f"a DraftPlan(depth) with depth an integer NumPy array [{len(states)}], one a sequence"
    )
    if not isinstance(plan, DraftPlan):
        given = f"the policy returned a {type(plan).__name__}"
        raise InvalidConfigError("policy", plan, expected, given=given)
    depth: object = plan.depth
    if not isinstance(depth, np.ndarray) or depth.dtype.kind not in "iu":
        given = f"the policy planned depth={shown(depth)}"
        raise InvalidConfigError("policy", plan, expected, given=given)
    if depth.shape != (len(states),):
        given = f"the policy planned depths of shape {depth.shape}"
        raise InvalidConfigError("policy", plan, expected, given=given)
    for row, (state, tokens) in enumerate(zip(states, depth.tolist(), strict=True)):
        most = max(0, state.remaining - 1)
        if not 0 <= tokens <= most:
            given = f"the policy planned {tokens} tokens for row {row}"
            wanted = f"0..{most}: its remaining tokens but the last, which is the target's own"
            raise InvalidConfigError("policy", plan, wanted, given=given)


def check_proposal(
    proposal: DraftProposal, plan: DraftPlan, vocab_size: int, device: torch.device
) -> None:
    """Check the form of a proposal.

    Raises:
        DraftShapeError: tokens, lengths and distributions do not fit the plan or each other, or are
            not on the device.
        DistributionWidthError: the distributions are not as wide as the vocabulary.
        TokenOutOfRangeError: a token is outside the vocabulary.
    """
    _check_kinds(proposal)
    batch, width = len(plan.depth), proposal.tokens.shape[-1]
    if proposal.tokens.shape != (batch, width) or proposal.tokens.dtype != torch.int64:
        raise DraftShapeError(
            f"the drafter returned tokens of shape {tuple(proposal.tokens.shape)} and "
            f"{proposal.tokens.dtype}; expected int64 [B, N] with B = {batch}"
        )
    own = proposal.tokens.device
    if own.type != device.type or (own.index or 0) != (device.index or 0):
        raise DraftShapeError(
            f"the drafter returned tokens on {own}; expected them on {device}, where ctx.device "
            "says"
        )
    _check_lengths(proposal, plan)
    if width == 0:
        return
    made = proposal.distributions
    if made is None or (made.probs is None) == (made.point_masses is None):
        raise DraftShapeError(
            "the drafter returned tokens without their distributions; expected Distributions with "
            "either probs [B, N, V] or point_masses [B, N]"
        )
    given = made.point_masses if made.probs is None else made.probs
    assert given is not None
    _check_structure(proposal, plan)
    rows = width if proposal.distribution_rows is None else given.shape[1]
    if given.shape[:2] != (batch, rows) or not rows:
        raise DraftShapeError(
            f"the drafter returned distributions of shape {tuple(given.shape)} for tokens of shape "
            f"{(batch, width)}; expected one for each token, or Distributions(point_masses=tokens)"
        )
    if made.probs is not None and made.probs.shape[2:] != (vocab_size,):
        raise DistributionWidthError(
            f"the drafter returned distributions of shape {tuple(given.shape)}; expected the last "
            f"dimension to be the vocabulary, {vocab_size}"
        )
    tokens = proposal.tokens
    if bool(((tokens < 0) | (tokens >= vocab_size)).any()):
        raise TokenOutOfRangeError(
            f"the drafter returned tokens {tokens.tolist()}; expected ids in 0..{vocab_size - 1}, "
            "padding included"
        )


def check_distributions(proposal: DraftProposal, sequence_ids: Sequence[int]) -> None:
    """Check that each drafted token may have been drawn from its distribution.

    Raises:
        DegenerateDistributionError: a distribution is not finite, non-negative and of sum one, or
            gives its token no probability.
    """
    made = proposal.distributions
    if made is None or not proposal.width:
        return
    drafted = np.arange(proposal.width) < proposal.lengths[:, None]
    if made.probs is None:
        assert made.point_masses is not None
        wrong = (made.point_masses != proposal.tokens).cpu().numpy() & drafted
    else:
        wrong = _undrawable(proposal, made.probs) & drafted
    for row, column in np.argwhere(wrong)[:1].tolist():
        raise DegenerateDistributionError(
            f"the drafter returned token {int(proposal.tokens[row, column])} as draft {column + 1} "
            f"for sequence {sequence_ids[row]} with {_described(proposal, made, row, column)}; "
            "expected the probabilities that it was drawn from: finite, non-negative, their sum "
            "one, more than zero for the token: return what ctx.pick was given, as it was",
            sequence_id=sequence_ids[row],
        )


def _undrawable(proposal: DraftProposal, probs: Tensor) -> np.ndarray:
    """Whether each token cannot have been drawn from its row of `probs` [B, R, V], bool [B, N]."""
    rows = proposal.distribution_rows
    if rows is None:
        rows = np.tile(np.arange(proposal.width), (len(probs), 1))
    index = torch.from_numpy(rows.clip(0)).to(probs.device)
    totals, least = probs.sum(-1).gather(1, index), probs.amin(-1).gather(1, index)
    batch = torch.arange(len(probs), device=probs.device)[:, None]
    own = probs[batch, index, proposal.tokens]
    tolerance = max(_SUM_TOLERANCE, _SUM_TOLERANCE_PER_ENTRY * probs.shape[-1])
    # NaN fails every comparison.
    sound = ((totals - 1).abs() <= tolerance) & (least >= 0) & (own > 0)
    undrawable: np.ndarray = ~sound.cpu().numpy() & (rows >= 0)
    return undrawable


def _described(proposal: DraftProposal, made: Distributions, row: int, column: int) -> str:
    if made.probs is None:
        assert made.point_masses is not None
        return f"the point mass {int(made.point_masses[row, column])}"
    rows = proposal.distribution_rows
    probs = made.probs[row, column if rows is None else int(rows[row, column])].double()
    return (
        f"a distribution with total mass {probs.sum():.6g} and least entry {probs.min():.6g}, "
        f"{probs[proposal.tokens[row, column]]:.6g} of it the token's"
    )


def _check_structure(proposal: DraftProposal, plan: DraftPlan) -> None:
    parents, rows = proposal.parents, proposal.distribution_rows
    shape = tuple(proposal.tokens.shape)
    if parents is not None:
        if parents.shape != shape or (parents < 0).any() or (parents > np.arange(shape[1])).any():
            raise DraftShapeError(
                f"the drafter returned parents {parents.tolist()}; expected one for each token of "
                f"shape {shape}, a node to its left: 0 for the prefix, up to i in column i"
            )
        depths = deepest(proposal)
        if (depths > plan.depth).any():
            raise DraftShapeError(
                f"the drafter returned trees of depths {depths.tolist()}; expected at most the "
                f"planned depths {plan.depth.tolist()}"
            )
    if rows is not None:
        assert proposal.distributions is not None
        probs = proposal.distributions.probs
        count = 0 if probs is None else probs.shape[1]
        if rows.shape != shape or (rows < -1).any() or (rows >= count).any():
            raise DraftShapeError(
                f"the drafter returned distribution_rows {rows.tolist()}; expected for each token "
                f"of shape {shape} the index of one of its {count} distributions, or -1 for a "
                "point mass"
            )


def _check_lengths(proposal: DraftProposal, plan: DraftPlan) -> None:
    lengths = proposal.lengths
    most, what = plan.lengths, "numbers of nodes"
    if proposal.parents is None:
        most, what = plan.depth, "depths"
    if lengths.shape != most.shape or (lengths < 0).any() or (lengths > most).any():
        raise DraftShapeError(
            f"the drafter returned lengths {lengths.tolist()}; expected one for each of "
            f"{len(most)} rows, at most the planned {what} {most.tolist()}"
        )
    if lengths.max(initial=0) > proposal.width:
        raise DraftShapeError(
            f"the drafter returned lengths {lengths.tolist()} but only {proposal.width} columns of "
            "tokens"
        )


def _check_kinds(proposal: object) -> None:
    """Check that it is a proposal, of arrays of the kinds that later checks rely on."""
    if not isinstance(proposal, DraftProposal):
        raise DraftShapeError(
            f"the drafter returned {kind_of(proposal)}; expected a DraftProposal (see "
            "outrider.types)"
        )
    if not isinstance(proposal.tokens, Tensor):
        raise DraftShapeError(
            f"the drafter returned tokens of type {type(proposal.tokens).__name__}; expected a "
            "torch tensor, int64 [B, N]"
        )
    for name in ("lengths", "parents", "distribution_rows"):
        values = getattr(proposal, name)
        if values is None and name != "lengths":
            continue
        if not isinstance(values, np.ndarray) or values.dtype.kind != "i":
            kind = getattr(values, "dtype", type(values).__name__)
            raise DraftShapeError(
                f"the drafter returned {name} of kind {kind}; expected a NumPy array of signed "
                "integers"
            )
    sources = proposal.sources
    if sources is not None and len(sources) != len(proposal.lengths):
        raise DraftShapeError(
            f"the drafter returned sources {sources!r}; expected one a row, {len(proposal.lengths)}"
        )
    made = proposal.distributions or Distributions()
    for given in (made.probs, made.point_masses):
        if given is not None and not isinstance(given, Tensor):
            raise DraftShapeError(
                f"the drafter returned distributions that are {kind_of(given)}; expected a torch "
                "tensor"
            )
        if given is not None and given.device != proposal.tokens.device:
            raise DraftShapeError(
                f"the drafter returned tokens on {proposal.tokens.device} and distributions on "
                f"{given.device}; expected both where ctx.device says"
            )
    if made.probs is not None and made.probs.dtype not in DTYPES:
        raise DraftShapeError(
            f"the drafter returned distributions of {made.probs.dtype}; expected float32 or "
            "float64, exactly as the tokens were drawn from them"
        )


def deepest(proposal: DraftProposal) -> np.ndarray:
    """Return how many drafted tokens lie in a row at most, int64 [B]."""
    if proposal.parents is None:
        return proposal.lengths
    drafted = np.arange(proposal.width) < proposal.lengths[:, None]
    depths = trees.node_depths(proposal.parents)[:, 1:]
    most: np.ndarray = np.where(drafted, depths, 0).max(1, initial=0)
    return most
