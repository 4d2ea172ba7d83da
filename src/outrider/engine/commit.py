"""The end of a round: the states after it, its record, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..drafters.context import DraftContext
from ..errors import InvalidConfigError, about
from ..policies.base import Policy
from ..sampling.batch import Batch
from ..sampling.logprobs import Report
from ..sampling.pipeline import LogitsPipeline
from ..types.protocols import Tokenizer
from ..types.records import (
    MODEL,
    DraftProposal,
    HiddenStates,
    RoundRecord,
    RowOutcome,
    SequenceState,
    TargetScores,
)
from .outputs import Origin
from .readback import RowVerdict
from .spans import Spans
from .stopping import until_stop


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one round.

    Attributes:
        batch: the sequences after it, finished ones included.
        emitted: the tokens each emitted.
        record: what the round did and where its time went.
        logprobs: of the tokens each emitted, for requests that ask; empty for the others.
    """

    batch: Batch
    emitted: tuple[list[int], ...]
    record: RoundRecord
    logprobs: tuple[Report, ...]

    def origin(self, row: int, index: int) -> Origin:
        """Return where the `index`-th token that a row emitted came from."""
        if index < self.record.accepted[row]:
            return "draft"
        return "bonus" if self.record.bonus[row] else "correction"


def advance(
    batch: Batch,
    proposal: DraftProposal,
    confidence: Sequence[tuple[float, ...]],
    rows: Sequence[RowVerdict],
    pipeline: LogitsPipeline | None,
    policy: Policy,
    tokenizer: Tokenizer | None,
) -> tuple[list[list[int]], list[SequenceState]]:
    """Return the tokens that each row emits, cut where it stops, and the states after them.

    Args:
        batch: the sequences before the round.
        proposal: the drafts.
        confidence: of each row's tokens; see `confidence_of`.
        rows: the verdicts.
        pipeline: of the target's logits; None for none.
        policy: remembers what became of each row's draft.
        tokenizer: for stop strings.

    Raises:
        UserCodeError: the tokenizer raised.
    """
    emitted, states = [], []
    sources = proposal.row_sources
    for index, (state, row) in enumerate(zip(batch.states, rows, strict=True)):
        with about(state.prefix.sequence_id, "decoding the text for stop strings"):
            tokens, reason = until_stop(state, row.tokens, tokenizer)
        source = sources[index]
        outcome = RowOutcome(source, row.depth, len(row.path), confidence[index])
        kept = state.processors if pipeline is None else pipeline.processors(index, tokens[:-1])
        states.append(
            replace(
                state,
                prefix=state.prefix.extended(tokens),
                depths=(*state.depths, row.depth if source == MODEL else -row.drafted),
                finish_reason=reason,
                history=policy.remember(state.history, outcome),
                processors=kept,
            )
        )
        emitted.append(tokens)
    return emitted, states


def kept_states(
    batch: Batch, rows: Sequence[RowVerdict], scores: TargetScores
) -> list[HiddenStates]:
    """Return the hidden states of the drafted tokens that a round kept and computed.

    Args:
        batch: the sequences before it.
        rows: the verdicts.
        scores: what the target computed.
    """
    if scores.hidden is None:
        return []
    return [
        HiddenStates(
            state.prefix.extended(row.path[: len(row.nodes) - 1]),
            len(state.prefix),
            scores.hidden[index, row.nodes[1:]],
        )
        for index, (state, row) in enumerate(zip(batch.states, rows, strict=True))
        if len(row.nodes) > 1
    ]


def check_steppable(batch: Batch) -> None:
    """Raise InvalidConfigError unless a batch has sequences, each once, and none is finished."""
    ids = list(batch.sequence_ids)
    if not ids or len(set(ids)) < len(ids):
        raise InvalidConfigError("batch", ids, "one or more sequences, each once")
    finished = [
        state.prefix.sequence_id for state in batch.states if state.finish_reason is not None
    ]
    if finished:
        raise InvalidConfigError(
            "batch", finished, "unfinished sequences; pack those of the last step that go on"
        )


def confidence_of(
    proposal: DraftProposal, context: DraftContext, rows: Sequence[RowVerdict]
) -> list[tuple[float, ...]]:
    """The confidence in each token of each row's chain; empty where none is known."""
    drawn, known = context.confidence.tolist(), proposal.confidence
    looked_up = [] if known is None else known.tolist()
    chains = proposal.parents is None
    found = []
    for index, (source, row) in enumerate(zip(proposal.row_sources, rows, strict=True)):
        values = drawn[index] if source == MODEL else looked_up[index] if looked_up else []
        found.append(tuple(values[: row.depth]) if chains else ())
    return found


def record_of(
    batch: Batch,
    proposal: DraftProposal,
    confidence: Sequence[tuple[float, ...]],
    rows: Sequence[RowVerdict],
    emitted: Sequence[list[int]],
    scores: TargetScores,
    spans: Spans,
    between_s: float,
    *,
    failed: bool,
) -> RoundRecord:
    """Record what a round did and where its time went; `between_s` before it, but for prefill."""
    pairs = list(zip(rows, emitted, strict=True))
    found = scores.cached or (0,) * len(rows)
    # Of new sequences, whose prompts may have been prefilled in parts.
    parts = [(0, 0.0) if s.round else (s.cached, s.draft_prefill_s) for s in batch.states]
    return RoundRecord(
        sequence_ids=batch.sequence_ids,
        drafted=tuple(row.drafted for row in rows),
        depth=tuple(row.depth for row in rows),
        accepted=tuple(min(len(row.path), len(tokens)) for row, tokens in pairs),
        emitted=tuple(map(len, emitted)),
        bonus=tuple(row.bonus for row in rows),
        ceiling=tuple(row.ceiling for row in rows),
        draft_failed=failed,
        sources=proposal.row_sources,
        confidence=tuple(confidence),
        cached=tuple(max(n, part) for n, (part, _) in zip(found, parts, strict=True)),
        draft_s=spans.seconds("draft"),
        target_s=spans.seconds("states") + spans.seconds("target"),
        total_s=spans.total(),
        plan_s=spans.seconds("plan"),
        between_s=between_s + sum(seconds for _, seconds in parts),
    )
