"""What a drafter hands over: its form, whether its distributions are distributions, and what is left if some are not.

That a token was drawn from the distribution that comes with it cannot be seen; that it may have been can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import (
    DegenerateDistributionError,
    DistributionWidthError,
    DraftShapeError,
    TokenOutOfRangeError,
    kind_of,
)
from ..sampling.distributions import DTYPES
from ..types import trees
from ..types.records import Distributions, DraftPlan, DraftProposal
from ..types.transfer import sent

_TOLERANCE, _EACH = 1e-4, 2.0**-27
"""How far from one a distribution may sum, or so much for each of its entries if that is more: how far a
softmax is off that adds them up in float32, in eight lanes, if every addition rounds the same way;
about twice of what was seen of torch's over 151,936 tokens."""


def check_proposal(
    proposal: DraftProposal, plan: DraftPlan, vocab_size: int, device: torch.device
) -> None:
    """Check a drafter's work.

    Raises:
        DraftShapeError: tokens, lengths and distributions do not fit the plan or each other, or are not on
            the device.
        DistributionWidthError: the distributions are not as wide as the vocabulary.
        TokenOutOfRangeError: a token is outside the vocabulary (looked for on the CPU only, since
            that would wait for another device: see `bounded`).
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
    if proposal.lengths is not plan.depth:
        _check_lengths(proposal, plan)
    if proposal.lengths.max() > width:
        raise DraftShapeError(
            f"the drafter returned lengths {proposal.lengths.tolist()} but only {width} columns "
            "of tokens"
        )
    if width == 0:
        return
    distributions = proposal.distributions
    if distributions is None or (distributions.probs is None) == (
        distributions.point_masses is None
    ):
        raise DraftShapeError(
            "the drafter returned tokens without their distributions; expected Distributions with either probs "
            "[B, N, V] or point_masses [B, N]"
        )
    given = distributions.point_masses if distributions.probs is None else distributions.probs
    assert given is not None
    if proposal.parents is not None or proposal.distribution_rows is not None:
        _check_structure(proposal, plan)
    if given.shape[:2] != (batch, width if proposal.distribution_rows is None else given.shape[1]):
        raise DraftShapeError(
            f"the drafter returned distributions of shape {tuple(given.shape)} for tokens of shape "
            f"{(batch, width)}; expected one distribution for each token"
        )
    if distributions.probs is not None and distributions.probs.shape[2:] != (vocab_size,):
        raise DistributionWidthError(
            f"the drafter returned distributions of shape {tuple(given.shape)}; expected the last "
            f"dimension to be the vocabulary, {vocab_size}"
        )
    if not given.shape[1]:
        raise DraftShapeError(
            f"the drafter returned distributions of shape {tuple(given.shape)}, none at all, for {width} "
            "columns of tokens; expected Distributions(point_masses=tokens) where all are point masses"
        )
    if proposal.tokens.device.type == "cpu":
        tokens = proposal.tokens.tolist()
        if min(map(min, tokens)) < 0 or max(map(max, tokens)) >= vocab_size:
            raise TokenOutOfRangeError(
                f"the drafter returned tokens {tokens}; expected ids in 0..{vocab_size - 1}, "
                "padding included"
            )


def deepest(proposal: DraftProposal) -> NDArray[np.int64]:
    """How many drafted tokens lie in a row at most, int64 [B]."""
    drafted = np.arange(proposal.width) < proposal.lengths[:, None]
    depths = trees.node_depths(proposal.structure)[:, 1:]
    most: NDArray[np.int64] = np.where(drafted, depths, 0).max(1, initial=0)
    return most


def bounded(proposal: DraftProposal, vocab_size: int) -> DraftProposal:
    """The same with ids inside the vocabulary, since others end a process on a device.

    What they were is told by the `evidence` of what came in.
    """
    tokens, distributions = proposal.tokens.clamp(0, vocab_size - 1), proposal.distributions
    if distributions is not None and distributions.point_masses is not None:
        own = distributions.point_masses is proposal.tokens
        distributions = Distributions(
            point_masses=tokens if own else distributions.point_masses.clamp(0, vocab_size - 1)
        )
    return replace(proposal, tokens=tokens, distributions=distributions)


def evidence(proposal: DraftProposal, vocab_size: int | None = None) -> list[Tensor]:
    """Numbers that tell whether tokens may have been drawn from the distributions that come with them.

    Args:
        proposal: of the form that `check_proposal` asks for.
        vocab_size: that of the target, where it is not known whether all tokens are in its
            vocabulary.

    Returns:
        For each token, [B, N] each: of dense distributions their total mass, their least entry, and the
        probability of the token, -inf for one outside the vocabulary; of point_masses whether they are the
        tokens. Nothing if there are none, or if all tokens are known to be some and stand for their
        own distributions.
    """
    tokens, distributions = proposal.tokens, proposal.distributions
    if not proposal.width or distributions is None:
        return []
    if vocab_size is not None:
        safe = bounded(proposal, vocab_size)
        inside = tokens == safe.tokens
        *found, own = evidence(safe) or [inside]
        return [*found, own & inside if not found else own.masked_fill(~inside, -torch.inf)]
    if distributions.point_masses is tokens:
        return []
    if distributions.probs is None:
        assert distributions.point_masses is not None
        return [distributions.point_masses == tokens]
    probs = distributions.probs
    if proposal.distribution_rows is None:
        return [probs.sum(-1), probs.amin(-1), probs.gather(-1, tokens[..., None])[..., 0]]
    distribution_rows = sent(
        torch.from_numpy(proposal.distribution_rows.astype(np.int64).clip(0)), tokens.device
    )
    rows = torch.arange(len(tokens), device=tokens.device)[:, None]
    # A point mass has no share of another node's distribution.
    point = sent(torch.from_numpy(proposal.distribution_rows < 0), tokens.device)
    own = probs[rows, distribution_rows, tokens].masked_fill(point, 1.0)
    if probs.shape[1] > proposal.width:
        looked_at = probs[rows, distribution_rows]
        return [looked_at.sum(-1), looked_at.amin(-1), own]
    return [
        probs.sum(-1).gather(1, distribution_rows),
        probs.amin(-1).gather(1, distribution_rows),
        own,
    ]


def undrawn(
    proposal: DraftProposal, found: Sequence[Sequence[Sequence[float]]]
) -> list[tuple[int, int]]:
    """The tokens, by row and column, that cannot have been drawn from their distributions.

    Those are finite, non-negative and sum to one, and the token has a share of its distribution.

    Args:
        proposal: the drafts.
        found: the `evidence`, on the host.
    """
    if not found:
        return []
    drafted = [(row, i) for row, n in enumerate(proposal.lengths.tolist()) for i in range(n)]
    if len(found) == 1:
        return [(row, column) for row, column in drafted if not found[0][row][column]]
    totals, least, own = found
    distributions = proposal.distributions
    assert distributions is not None
    assert distributions.probs is not None
    off = max(_TOLERANCE, _EACH * distributions.probs.shape[-1])
    distribution_rows = (
        None if proposal.distribution_rows is None else proposal.distribution_rows.tolist()
    )
    wrong = []
    for row, column in drafted:
        # NaN fails all of it.
        fine = abs(totals[row][column] - 1) <= off and least[row][column] >= 0 < own[row][column]
        point = distribution_rows is not None and distribution_rows[row][column] < 0
        if not (fine or point) or own[row][column] == -inf:
            wrong.append((row, column))
    return wrong


def without(
    proposal: DraftProposal,
    wrong: Sequence[tuple[int, int]],
    depths: Sequence[int] | None = None,
) -> DraftProposal:
    """What is left of drafts if some cannot be verified.

    Whether a token goes depends on the nodes that it follows and on its siblings before it, as the
    distribution that it is drawn from does, and on nothing drawn after it: else the output's distribution would be
    another.

    Args:
        proposal: the drafts.
        wrong: tokens, by row and column, that go, and their later siblings, with what follows them.
        depths: how deep each row stays, int [B]; None for no limit.
    """
    tokens, parents = proposal.tokens, proposal.structure
    columns = np.arange(proposal.width)
    keep = columns < proposal.lengths[:, None]
    if depths is not None:
        keep &= trees.node_depths(parents)[:, 1:] <= np.array(depths)[:, None]
    for row, column in wrong:
        keep[row, column:] &= parents[row, column:] != parents[row, column]
    for column in range(proposal.width):
        above = parents[:, column]
        keep[:, column] &= (above == 0) | keep[np.arange(len(keep)), above - 1]
    lengths = keep.sum(1)
    if (keep == (columns < lengths[:, None])).all():
        return replace(proposal, lengths=lengths)
    order = np.argsort(~keep, axis=1, kind="stable")
    places = np.zeros((len(keep), proposal.width + 1), dtype=np.int64)
    np.put_along_axis(places, order + 1, columns[None] + 1, axis=1)
    moved = np.take_along_axis(places, np.take_along_axis(parents, order, 1), 1)
    # Beyond a row's length parents mean nothing, and have to lie to the left.
    moved = np.where(columns < lengths[:, None], moved, 0)
    taken = tokens.gather(1, sent(torch.from_numpy(order), tokens.device))
    distributions = proposal.distributions
    assert distributions is not None
    left = replace(proposal, tokens=taken, lengths=lengths, parents=moved)
    if distributions.probs is None:
        return replace(left, distributions=Distributions(point_masses=taken))
    if proposal.distribution_rows is None:
        return replace(left, distribution_rows=order)
    return replace(left, distribution_rows=np.take_along_axis(proposal.distribution_rows, order, 1))


def impossible(
    proposal: DraftProposal, row: int, column: int, sequence_id: int, vocab_size: int
) -> DegenerateDistributionError | TokenOutOfRangeError:
    """What to say of a token that cannot have been drawn from its distribution."""
    distributions, token = proposal.distributions, int(proposal.tokens[row, column])
    assert distributions is not None
    if not 0 <= token < vocab_size:
        return TokenOutOfRangeError(
            f"the drafter returned token {token} as draft {column + 1} for sequence {sequence_id}; "
            f"expected ids in 0..{vocab_size - 1}"
        )
    if distributions.probs is None:
        assert distributions.point_masses is not None
        told = f"the atom {int(distributions.point_masses[row, column])}"
    else:
        at = (
            column
            if proposal.distribution_rows is None
            else int(proposal.distribution_rows[row, column])
        )
        distribution = distributions.probs[row, at].double()
        told = f"a distribution with total mass {distribution.sum():.6g} and least entry {distribution.min():.6g}, "
        told += f"{distribution[token]:.6g} of it the token's"
    return DegenerateDistributionError(
        f"the drafter returned token {token} as draft {column + 1} for sequence {sequence_id} with "
        f"{told}; expected the probabilities that it was drawn from: finite, non-negative, their "
        "sum one, more than zero for the token: hand on what ctx.pick was given, as it was",
        sequence_id=sequence_id,
    )


def _check_structure(proposal: DraftProposal, plan: DraftPlan) -> None:
    parents, distribution_rows = proposal.parents, proposal.distribution_rows
    shape = tuple(proposal.tokens.shape)
    if parents is not None:
        limit = np.arange(shape[1])
        if parents.shape != shape or (parents < 0).any() or (parents > limit).any():
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
    if distribution_rows is not None:
        assert proposal.distributions is not None
        count = 0 if proposal.distributions.probs is None else proposal.distributions.probs.shape[1]
        if (
            distribution_rows.shape != shape
            or (distribution_rows < -1).any()
            or (distribution_rows >= count).any()
        ):
            raise DraftShapeError(
                f"the drafter returned distribution_rows {distribution_rows.tolist()}; expected for each token of "
                f"shape {shape} the index of one of its {count} distributions, or -1 for a point mass"
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


def _check_kinds(proposal: object) -> None:
    """Check that it is a proposal, of arrays of the kinds that later checks rely on."""
    if not isinstance(proposal, DraftProposal):
        raise DraftShapeError(
            f"the drafter returned {kind_of(proposal)}; expected a DraftProposal (see "
            "outrider.records)"
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
                f"the drafter returned {name} of kind {kind}; expected a NumPy array of "
                "signed integers"
            )
    looked_up = proposal.looked_up
    if looked_up is not None and (
        not isinstance(looked_up, np.ndarray)
        or looked_up.dtype != np.bool_
        or looked_up.shape != proposal.lengths.shape
    ):
        raise DraftShapeError(
            f"the drafter returned looked_up {looked_up!r}; expected a NumPy array of bool, one "
            "for each row"
        )
    distributions = proposal.distributions or Distributions()
    probs = distributions.probs
    for given in (probs, distributions.point_masses):
        if given is not None and not isinstance(given, Tensor):
            raise DraftShapeError(
                f"the drafter returned distributions that are {kind_of(given)}; expected a torch tensor"
            )
        if given is not None and given.device != proposal.tokens.device:
            raise DraftShapeError(
                f"the drafter returned tokens on {proposal.tokens.device} and distributions on "
                f"{given.device}; expected both where ctx.device says"
            )
    if probs is not None and probs.dtype not in DTYPES:
        raise DraftShapeError(
            f"the drafter returned distributions of {probs.dtype}; expected float32 or float64, exactly as "
            "the tokens were drawn from them"
        )
