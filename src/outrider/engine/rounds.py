"""The inside of a round: the verdict, what is checked, and the clock."""

from __future__ import annotations

import sys
import warnings
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import isfinite, isnan
from time import perf_counter
from types import FrameType

import numpy as np
import torch
from torch import Tensor

from ..errors import (
    DegenerateDistributionError,
    DistributionWidthError,
    InvalidConfigError,
    TargetShapeError,
    shown,
)
from ..random.chance import RoundDraws
from ..sampling import distributions as sampling
from ..sampling.distributions import PackedParams
from ..types import trees
from ..types.records import DraftPlan, DraftProposal, SequenceState, TargetScores, Verdict
from ..verification import Verifier, verify_point_masses
from .batch import Batch
from .context import RoundContext, Told
from .proposals import bounded, deepest, evidence, impossible, undrawn, without


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """A row's verdict on the host.

    Attributes:
        drafted: how many tokens were drafted.
        depth: how many of them lie in a row at most.
        path: those that are kept.
        nodes: the nodes that the path's tokens and the next one follow, the prefix first.
        token: the one that follows them.
        bonus: whether nothing was drafted after the last one kept.
        ceiling, first_ceiling: see `Verdict`.
        sound: False if a distribution behind the verdict meant nothing: the draft's, or the target's at the
            nodes.
    """

    drafted: int
    depth: int
    path: list[int]
    nodes: list[int]
    token: int
    bonus: bool
    ceiling: float | None
    first_ceiling: float | None
    sound: bool


def judge(
    proposal: DraftProposal,
    logits: Tensor,
    params: PackedParams,
    verifier: Verifier,
    draws: RoundDraws,
) -> tuple[Verdict | Tensor, Tensor]:
    """The verdict on a round's drafts beside the target's logits [B, N + 1, V].

    Logits that mean nothing do not spoil the verdict on a path that does not lead there: it is the
    one that any distribution in their place gives, which is lossless for all that is emitted before them.

    Returns:
        The verdict, or where every distribution is an atom those point_masses [B, N + 1], on which the host can
        decide; and a witness [B, N + 1], finite where a row of logits means something.
    """
    distributions, witness = sampling.distributions(logits, params)
    if distributions.probs is None:
        assert distributions.point_masses is not None
        return distributions.point_masses, witness
    return verifier.verify(proposal, _mended(distributions.probs, witness), draws), witness


def _mended(probs: Tensor, witness: Tensor) -> Tensor:
    """Distributions [B, M, V], even ones where the witness [B, M] is not finite."""
    sound = witness.isfinite()
    # Elsewhere asking would wait for the device.
    if sound.device.type == "cpu" and sound.all():
        return probs
    return probs.masked_fill(~sound[..., None], 1 / probs.shape[-1])


def read(
    proposal: DraftProposal,
    verdict: Verdict | Tensor,
    target: Tensor,
    context: RoundContext,
    distributions: list[Tensor],
) -> list[RowVerdict]:
    """Bring what a round came to to the host: its one copy.

    Args:
        proposal: the drafts.
        verdict: as `judge` gives it.
        target: the target's witnesses [B, N + 1], finite where its distributions mean something.
        context: has the draft model's, [B, M] for the nodes of each depth.
        distributions: the evidence of the distributions that came with the drafts, but for what was looked at.
    """
    point_masses = isinstance(verdict, Tensor)
    found = [verdict] if isinstance(verdict, Tensor) else [verdict.node[:, None]]
    ceilings: list[Tensor] = []
    if isinstance(verdict, Verdict):
        found.append(verdict.next_token[:, None])
        known = (verdict.ceiling, verdict.first_ceiling)
        ceilings = [values[:, None] for values in known if values is not None]
    # Token ids are exact in float64, where the other numbers can keep them company.
    numbers = torch.cat([*ceilings, *context.witnesses, *distributions, target], 1).double()
    packed = torch.cat([proposal.tokens, *found, numbers], 1).tolist()
    width = proposal.width
    count = width + sum(part.shape[1] for part in found)
    levels, stepped = context.levels, context.depth.tolist()
    start = count + len(ceilings) + levels[-1]
    ends = list(accumulate((part.shape[1] for part in distributions), initial=start))
    parts = [[row[first:end] for row in packed] for first, end in pairwise(ends)]
    wrong = {row for row, _ in undrawn(proposal, parts)}
    depths = None if proposal.parents is None else trees.node_depths(proposal.parents).tolist()
    rows = []
    for index, (row, length) in enumerate(zip(packed, proposal.lengths.tolist(), strict=True)):
        ids = [int(value) for value in row[:count]]
        drafts, rest = ids[:length], ids[width:]
        parents = None if proposal.parents is None else proposal.parents[index, :length].tolist()
        depth = length if depths is None else max(depths[index][: length + 1])
        made = min(depth, stepped[index], len(levels) - 1)
        drawn_from = row[count + len(ceilings) :][: levels[made]]
        sound = index not in wrong and all(map(isfinite, drawn_from))
        node, token = (
            verify_point_masses(drafts, rest, parents) if point_masses else (rest[0], rest[1])
        )
        # A verdict that rests on NaN may name a node that was not drafted.
        node = node if sound else 0
        if parents is None:
            path, nodes, bonus = drafts[:node], list(range(node + 1)), node == length
        else:
            nodes = [0, *trees.path(parents, node)]
            path = [drafts[step - 1] for step in nodes[1:]]
            bonus = node not in parents
        sound = sound and all(isfinite(row[len(row) - width - 1 + step]) for step in nodes)
        most, first = (float(len(path) + 1), None) if point_masses else (None, None)
        if isinstance(verdict, Verdict):
            most = None if verdict.ceiling is None else row[count]
            first = None if verdict.first_ceiling is None else row[count + len(ceilings) - 1]
            first = None if first is None or isnan(first) else first
        rows.append(RowVerdict(length, depth, path, nodes, token, bonus, most, first, sound))
    return rows


class DraftFailure(Exception):
    """A drafter raised, or broke its contract.

    What it had drawn must be verified all the same where that decided whether it failed: dropping
    tokens by their values would change the output's distribution.

    Args:
        reason: the error.
        rest: the drafts that the round is to go on with.
        told: what is known of the drafts from which it was taken.
        cut: whether each row may have lost drafts.
    """

    def __init__(
        self, reason: Exception, rest: DraftProposal, told: Told, cut: Sequence[bool]
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.rest = rest
        self.told = told
        self.cut = cut

    def warn(self, drafter: object) -> None:
        """Warn a user whose drafter it is, at the call of theirs that it happened in."""
        warnings.warn(
            "the drafter failed, and the round went on with what is left: "
            f"{type(drafter).__name__}: {type(self.reason).__name__}: {self.reason}; further "
            "failures are counted in metrics.draft_failures; SpeculativeConfig(strict=True) raises",
            RuntimeWarning,
            _calls_inside(),
        )


def _calls_inside() -> int:
    """How many calls of ours and torch's the caller is inside of: the `stacklevel` of a warning."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and _package(frame) in ("outrider", "torch"):
        frame, level = frame.f_back, level + 1
    return level


def _package(frame: FrameType) -> str:
    """Of the module whose code it runs; code that is executed may have no module."""
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def no_drafts(batch: int, device: torch.device) -> DraftProposal:
    """Nothing drafted for B rows."""
    tokens = torch.empty(batch, 0, dtype=torch.int64, device=device)
    return DraftProposal(tokens, np.zeros(batch, dtype=np.int64), None)


class Stopwatch:
    """Times the parts of a round: by the wall clock, or on a CUDA device by events in its stream.

    An event is recorded without waiting for the device; `spans` reads them once the round's result
    has reached the host.

    Attributes:
        plan_s: seconds until the round was planned, on the wall clock; 0 before that.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._marks: list[float] = []
        self._events: list[torch.cuda.Event] = []
        self.plan_s = 0.0
        self.mark()

    def planned(self) -> None:
        """Note that the round is planned: the rest of its first part is setting it up."""
        self.plan_s = self.total()

    def mark(self) -> None:
        """End one part and begin the next."""
        self._marks.append(perf_counter())
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._device))
            self._events.append(event)

    def spans(self) -> list[float]:
        """Seconds of each part so far."""
        if self._cuda:
            self._events[-1].synchronize()
            pairs = zip(self._events, self._events[1:], strict=False)
            return [first.elapsed_time(second) / 1e3 for first, second in pairs]
        marks = zip(self._marks, self._marks[1:], strict=False)
        return [second - first for first, second in marks]

    def total(self) -> float:
        """Seconds on the wall clock since the start."""
        return perf_counter() - self._marks[0]


def check_plan(plan: object, states: Sequence[SequenceState]) -> None:
    """Raise InvalidConfigError unless a policy of a user's own gave a plan for these sequences."""
    expected = (
        f"a DraftPlan(depth) with depth an integer NumPy array [{len(states)}], a sequence each"
    )
    if not isinstance(plan, DraftPlan):
        told = f"the policy returned a {type(plan).__name__}"
        raise InvalidConfigError("policy", plan, expected, given=told)
    depth: object = plan.depth
    if not isinstance(depth, np.ndarray) or depth.dtype.kind not in "iu":
        told = f"the policy planned depth={shown(depth)}"
        raise InvalidConfigError("policy", plan, expected, given=told)
    if depth.shape != (len(states),):
        told = f"the policy planned depths of shape {depth.shape}"
        raise InvalidConfigError("policy", plan, expected, given=told)
    for row, (state, tokens) in enumerate(zip(states, depth.tolist(), strict=True)):
        most = max(0, state.remaining - 1)
        if not 0 <= tokens <= most:
            told = f"the policy planned {tokens} tokens for row {row}"
            wanted = f"0..{most}: its remaining tokens but the last, which is the target's own"
            raise InvalidConfigError("policy", plan, wanted, given=told)


def check_scores(scores: TargetScores, proposal: DraftProposal, vocab_size: int) -> None:
    """Check the shape of a target's work.

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
    if not isinstance(cached, tuple) or len(cached) not in (0, batch) or not _counts(cached):
        raise TargetShapeError(
            f"the target returned cached={shown(cached)}; expected a tuple of {batch} integers >= "
            "0, tokens of each prefix that it found computed, or an empty one"
        )


def _counts(values: Sequence[object]) -> bool:
    return all(isinstance(value, int) and value >= 0 for value in values)


def check_distributions(
    proposal: DraftProposal, context: RoundContext, vocab_size: int, greedy: bool
) -> list[Tensor]:
    """Check the distributions that drafts come with, and those that were made.

    Args:
        proposal: the drafts.
        context: what is known of them.
        vocab_size: that of the target.
        greedy: whether no verdict draws anything, so that one may be made again.

    Returns:
        Evidence that is on a device and can wait for the round's result.

    Raises:
        DraftFailure: a token was not drawn from its distribution, or that means nothing; the drafts before
            it are left.
    """
    apart = proposal.tokens.device.type != "cpu"
    found = evidence(proposal, vocab_size if apart else None)
    if apart and greedy:
        return found
    wrong = undrawn(proposal, [part.tolist() for part in found])
    made = context.witnesses
    suspect = bool(wrong) or (bool(made) and not isfinite(torch.cat(made, 1).sum()))
    failure = _failure(proposal, context, vocab_size, wrong) if suspect else None
    if failure:
        raise failure
    return []


def failed(error: Exception, context: RoundContext, vocab_size: int) -> DraftFailure:
    """That a drafter raised, or broke its contract: what it had drawn is left."""
    drawn = context.drawn(vocab_size)
    if drawn is None:
        rest = no_drafts(len(context.sequence_ids), context.device)
    else:
        rest = without(drawn, undrawn(drawn, [part.tolist() for part in evidence(drawn)]))
    return DraftFailure(error, rest, context.told, (deepest(rest) < context.depth).tolist())


def _failure(
    proposal: DraftProposal, context: RoundContext, vocab_size: int, wrong: list[tuple[int, int]]
) -> DraftFailure | None:
    """That tokens, by row and column, came with no distributions, or distributions of logits that mean nothing."""
    draft, ids, levels = context.witnesses, context.sequence_ids, context.levels
    drafted = deepest(proposal).tolist()
    made = [min(own) for own in zip(drafted, context.depth.tolist(), strict=True)]
    sound, told = list(drafted), {row for row, _ in wrong}
    reason: Exception | None = None
    found = torch.cat(draft, 1) if draft else torch.zeros(len(ids), 0)
    for row, position in (~found.isfinite()).nonzero().tolist():
        if position < levels[min(made[row], len(draft))]:
            reason = reason or _degenerate("draft model", ids[row], position)
            # Atoms say nothing of the logits that they were made of.
            if row not in told:
                sound[row] = min(sound[row], bisect(levels, position) - 1)
    if wrong and reason is None:
        row, column = wrong[0]
        reason = impossible(proposal, row, column, ids[row], vocab_size)
    if reason is None:
        return None
    rest = without(bounded(proposal, vocab_size), wrong, sound)
    cut = (rest.lengths < proposal.lengths).tolist()
    return DraftFailure(reason, rest, context.told, cut)


def check_witnesses(
    proposal: DraftProposal,
    target: Tensor,
    context: RoundContext,
    rows: list[RowVerdict],
    distributions: list[Tensor],
    vocab_size: int,
) -> None:
    """Name the model whose logits were degenerate, if some were.

    Args:
        proposal: the drafts, as they came.
        target: the target's witnesses [B, N + 1].
        context: has the draft model's, [B, M] for the nodes of each depth.
        rows: what was drafted and kept.
        distributions: the evidence of the distributions that came with the drafts, but for what was looked at.
        vocab_size: that of the target.

    Raises:
        DegenerateDistributionError: a witness of the target is not finite at a node that a row
            keeps, where decoding without drafts comes as well; with the sequence and the position.
        DraftFailure: the same of the draft model; the drafts before such distributions are left.
    """
    if all(row.sound for row in rows):
        return
    for row, position in (~torch.isfinite(target)).nonzero().tolist():
        if position in rows[row].nodes:
            raise _degenerate("target", context.sequence_ids[row], position)
    wrong = undrawn(proposal, [part.tolist() for part in distributions])
    failure = _failure(proposal, context, vocab_size, wrong)
    if failure:
        raise failure


def _degenerate(name: str, sequence_id: int, position: int) -> DegenerateDistributionError:
    return DegenerateDistributionError(
        f"the {name}'s logits for sequence {sequence_id} at position {position} of the round have "
        "NaN, +inf or no finite entry; expected finite logits (try a wider dtype, check the "
        "model's weights, or see whether the request forbids every token)",
        sequence_id=sequence_id,
    )


def check_steppable(batch: Batch) -> None:
    """Raise InvalidConfigError unless a batch has sequences, each once, and none is finished."""
    ids = [state.prefix.sequence_id for state in batch.states]
    if not ids or len(set(ids)) < len(ids):
        raise InvalidConfigError("batch", ids, "one or more sequences, each once")
    finished = [
        state.prefix.sequence_id for state in batch.states if state.finish_reason is not None
    ]
    if finished:
        raise InvalidConfigError(
            "batch", finished, "unfinished sequences; pack those of the last step that go on"
        )
