"""The verdict on a round, and its one copy to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import isfinite

import torch
from torch import Tensor

from ..errors import DegenerateDistributionError, DraftError, OutriderError
from ..random import RoundDraws
from ..sampling import distributions as sampling
from ..sampling.batch import Batch
from ..sampling.paths import Path
from ..sampling.pipeline import LogitsPipeline
from ..types import trees
from ..types.records import MODEL, DraftProposal, Verdict
from ..verification import Verifier, verify_point_masses


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """A row's verdict on the host.

    Attributes:
        drafted: the number of tokens drafted.
        depth: how many of them lie in a row at most.
        path: those that are kept.
        nodes: the nodes that the path's tokens and the next one follow, the prefix first.
        token: the one that follows them.
        bonus: whether nothing was drafted after the last one kept.
        ceiling: see `Verdict`.
        bad_draft: whether a distribution that the row was drafted from is not finite.
        sound: how many of the path's nodes come before the first whose target logits are not
            finite.
    """

    drafted: int
    depth: int
    path: list[int]
    nodes: list[int]
    token: int
    bonus: bool
    ceiling: float | None
    bad_draft: bool
    sound: int

    @property
    def tokens(self) -> list[int]:
        """The tokens that the row emits unless a stop rule cuts them."""
        return [*self.path, self.token][: len(self.nodes)]

    def cut(self, usable: int) -> RowVerdict:
        """Return the verdict without what follows the first `usable` nodes of its path."""
        if usable == len(self.nodes):
            return self
        return replace(self, path=self.path[:usable], nodes=self.nodes[:usable], bonus=False)


def verify(
    batch: Batch,
    proposal: DraftProposal,
    logits: Tensor,
    pipeline: LogitsPipeline | None,
    verifier: Verifier,
    draws: RoundDraws,
    draft_finite: Sequence[Tensor],
) -> list[RowVerdict]:
    """Verify a round's drafts: what each row keeps, and the token that follows.

    Logits that are not finite do not spoil the verdict on a path that does not lead there: even
    distributions take their place. A path is cut before the first node where nothing can be said.

    Args:
        batch: the sequences before the round.
        proposal: the drafts.
        logits: the target's, [B, N + 1, V].
        pipeline: of these logits; None for none.
        verifier: decides which drafts are kept.
        draws: the round's randomness.
        draft_finite: see `read_back`.

    Raises:
        DraftError, DegenerateDistributionError: a model's logits are not finite where they decided.
        OutriderError: what a processor raised or returned, or a grammar that allows nothing, where
            it decided. `others` has the errors of other rows.
    """
    processed = None if pipeline is None else pipeline(logits, Path.to_nodes(proposal))
    made, finite = sampling.distributions(processed.logits if processed else logits, batch.params)
    verdict: Verdict | Tensor
    if made.probs is None:
        assert made.point_masses is not None
        verdict = made.point_masses
    else:
        sound, probs = finite.isfinite(), made.probs
        # All logits are copied only where a row asks for it, or where asking waits for a device.
        if probs.device.type != "cpu" or not bool(sound.all()):
            probs = torch.where(sound[..., None], probs, 1 / probs.shape[-1])
        verdict = verifier.verify(proposal, probs, draws)
    rows, errors = [], []
    found = read_back(proposal, verdict, finite, draft_finite)
    for index, (sequence_id, row) in enumerate(zip(batch.sequence_ids, found, strict=True)):
        if row.bad_draft:
            raise DraftError(
                f"the draft model's logits for sequence {sequence_id} have NaN, +inf or no "
                "finite entry; expected finite logits (try a wider dtype, check its weights)",
                sequence_id=sequence_id,
            )
        try:
            usable = row.sound if processed is None else processed.usable(index, row.nodes)
            if row.sound == 0:
                own = None if pipeline is None else pipeline.not_finite(index)
                raise own or _not_finite(sequence_id)
            rows.append(row.cut(min(usable, row.sound)))
        except OutriderError as error:
            errors.append(error)
    if errors:
        errors[0].others = tuple(errors[1:])
        raise errors[0]
    return rows


def _not_finite(sequence_id: int) -> DegenerateDistributionError:
    return DegenerateDistributionError(
        f"the target's logits for sequence {sequence_id} have NaN, +inf or no finite entry; "
        "expected finite logits (try a wider dtype, check the model's weights, or see whether the "
        "request forbids every token)",
        sequence_id=sequence_id,
    )


def read_back(
    proposal: DraftProposal,
    verdict: Verdict | Tensor,
    target_finite: Tensor,
    draft_finite: Sequence[Tensor],
) -> list[RowVerdict]:
    """Copy a round's result to the host, and reduce it row by row.

    Args:
        proposal: the drafts.
        verdict: the verifier's; or the target's tokens [B, N + 1] where all its distributions are
            point masses, on which the host can decide.
        target_finite: [B, N + 1], finite where the target's logits are.
        draft_finite: the same of the draft's, [B, M] for the nodes of each depth.
    """
    masses = isinstance(verdict, Tensor)
    ids = [verdict] if isinstance(verdict, Tensor) else [verdict.node[:, None]]
    ceilings: list[Tensor] = []
    if isinstance(verdict, Verdict):
        ids.append(verdict.next_token[:, None])
        ceilings = [] if verdict.ceiling is None else [verdict.ceiling[:, None]]
    # Token ids are exact in float64.
    numbers = torch.cat([*ceilings, *draft_finite, target_finite], 1).double()
    packed = torch.cat([proposal.tokens, *ids, numbers], 1).tolist()
    width = proposal.width
    first_number = width + sum(part.shape[1] for part in ids)
    first_finite = first_number + len(ceilings)
    levels = [0, *accumulate(part.shape[1] for part in draft_finite)]
    longest = trees.longest_paths(proposal.structure, proposal.lengths).tolist()
    structure = proposal.structure.tolist()
    rows = []
    for index, (row, source) in enumerate(zip(packed, proposal.row_sources, strict=True)):
        length = int(proposal.lengths[index])
        drafts = [int(value) for value in row[:length]]
        rest = [int(value) for value in row[width:first_number]]
        parents = structure[index][:length]
        depth = longest[index]
        made = min(depth, len(levels) - 1) if source == MODEL else 0
        bad_draft = not all(map(isfinite, row[first_finite:][: levels[made]]))
        if masses:
            node, token = verify_point_masses(drafts, rest, parents)
        else:
            node, token = rest[0], rest[1]
        # A verdict on distributions that are not finite may name a node that was not drafted.
        node = 0 if bad_draft else node
        nodes = [0, *trees.path(parents, node)]
        path, bonus = [drafts[step - 1] for step in nodes[1:]], node not in parents
        finite = row[len(row) - width - 1 :]
        sound = next((i for i, step in enumerate(nodes) if not isfinite(finite[step])), len(nodes))
        ceiling = float(len(path) + 1) if masses else None
        if ceilings:
            ceiling = row[first_number]
        rows.append(RowVerdict(length, depth, path, nodes, token, bonus, ceiling, bad_draft, sound))
    return rows
