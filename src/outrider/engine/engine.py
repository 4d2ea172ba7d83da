"""The engine: one step decodes a round for any number of sequences, each at its own depth."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count, islice
from math import inf
from time import perf_counter
from typing import Any

import numpy as np
import torch

from ..config.params import SpeculativeConfig
from ..drafters.base import Drafter
from ..drafters.context import DraftContext
from ..drafters.model import ModelDrafter
from ..errors import CacheFullError, DraftError, computing
from ..policies.base import Policy
from ..random import Philox4x32
from ..runtimes.base import Found, PrefillProgress, Runtime
from ..sampling.batch import Batch
from ..sampling.logprobs import report
from ..types.protocols import Chance, Tokenizer
from ..types.records import (
    DraftPlan,
    DraftProposal,
    Prefix,
    RoundRecord,
    SequenceState,
    TargetScores,
)
from ..verification import Verifier
from .commit import StepResult, advance, check_steppable, confidence_of, kept_states, record_of
from .compatibility import (
    check_lossy,
    check_parts,
    check_vocabularies,
    common_device,
    parts_of,
    policy_of,
)
from .drafting import Drafting
from .metrics import SpeculationMetrics, Tally
from .readback import verify
from .requests import check_tokens
from .slots import Slots
from .spans import Spans
from .stopping import until_stop
from .validation import check_plan, check_scores, checked_verifier, wanted


class Engine:
    """Decodes sequences round by round, with a target, a drafter, a policy and a verifier.

    It knows sequences alone: requests and texts are `SpeculativeDecoder`'s, which says what the
    arguments are, and who takes part in a round is the scheduler's.
    """

    def __init__(
        self,
        target: Runtime,
        drafter: Drafter | Runtime | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        config: SpeculativeConfig | None = None,
        chance: Chance | None = None,
        verifier: Verifier | None = None,
        policy: Policy | None = None,
        on_round: Callable[[RoundRecord], object] | None = None,
    ) -> None:
        self.target = self._watched = target
        self.drafter = ModelDrafter(drafter) if isinstance(drafter, Runtime) else drafter
        check_parts(target, self.drafter, config, policy, verifier)
        self.tokenizer = tokenizer
        self.config = config or SpeculativeConfig()
        self.chance: Chance = chance or Philox4x32()
        self.verifier = checked_verifier(verifier or Verifier.of(self.config), self.config.validate)
        check_lossy(self.verifier, self.drafter)
        check_vocabularies(target, self.drafter)
        if self.config.draft_params is not None:
            check_tokens(target.vocab_size, self.config.draft_params, "draft_params.")
        coupled = self.verifier.coupled
        self.policy = policy or policy_of(
            self.config, self.drafter, coupled=coupled, token_ratio=target.token_ratio
        )
        self.knowledge: Any = self.policy.start()
        parts = parts_of(target, self.drafter)
        self._runtimes = [part for part in parts if isinstance(part, Runtime)]
        self._device = common_device(self._runtimes)
        drafters = [part for part in parts if isinstance(part, Drafter)]
        self._drafting = Drafting(
            self.drafter, drafters, self.config, target.vocab_size, self._device
        )
        if self._drafting.hidden_layers:
            # `target` stays the user's own, for other decoders: what these compute is not shown.
            self._watched = target.with_hidden(self._drafting.hidden_layers, self._drafting)
        self._check_scores = wanted(self.config.validate, [target])
        # Decoders that share a model must not share ids: each counts from a start of its own.
        self._ids = count(secrets.randbits(40) << 22)
        self._tally = Tally(lossy=self.verifier.lossy and drafter is not None)
        self._on_round = on_round
        self._between_s = 0.0
        self.slots = Slots(self.max_sequences)

    @property
    def metrics(self) -> SpeculationMetrics:
        """Figures over every round since the decoder was made or last reset."""
        return self._tally.metrics()

    @property
    def max_sequences(self) -> int | None:
        """The number of sequences that can be decoded together; None for any."""
        bounds = [runtime.max_sequences for runtime in self._runtimes]
        return min((bound for bound in bounds if bound is not None), default=None)

    @property
    def max_length(self) -> int | None:
        """The longest sequence, prompt included, in tokens; None if the target sets no bound."""
        return self.target.max_length

    @property
    def follows(self) -> bool:
        """Whether nothing is drafted in a sequence's first round; see `Drafter.follows`."""
        looks_up = self.drafter is not None and self.drafter.looks_up
        return self._drafting.follows and not looks_up

    def reset_metrics(self) -> None:
        """Start counting anew."""
        self._tally = Tally(lossy=self._tally.lossy)

    def pack(self, states: Iterable[SequenceState]) -> Batch:
        """Make a batch of sequences, to be stepped together."""
        return Batch.of(
            tuple(states), self.target.vocab_size, self._device, self.config.draft_params
        )

    def step(self, batch: Batch, chance: Chance | None = None) -> StepResult:
        """Decode one round: at least one token for every sequence of the batch.

        Args:
            batch: unfinished sequences, in any order and of any length.
            chance: takes the place of the decoder's own; then nothing is learnt or counted, and the
                round is a pure function of its arguments and `knowledge`.

        Raises:
            InvalidConfigError: the batch is empty, or has a finished sequence or one twice; or a
                policy of your own made no plan that can be carried out.
            DraftError: the drafter failed, unless `on_draft_error` is "disable".
            CacheFullError: a model's cache has no room for all of them; nothing has changed.
            ModelError: the target raised.
            DegenerateDistributionError: the target's logits hold NaN, +inf or nothing finite.
            UserCodeError: a processor, a criterion, the tokenizer or a verification method failed.
        """
        check_steppable(batch)
        failed = False
        while True:
            try:
                result = self._round(batch, chance, failed=failed)
                break
            except DraftError as error:
                if isinstance(error.__cause__, CacheFullError) and len(batch.states) > 1:
                    raise error.__cause__ from None  # others may give way
                batch, failed = self._drafting.without_failed(batch, error), True
        if chance is None:
            self.observe(result)
        return result

    def prefill(self, state: SequenceState, most: int) -> PrefillProgress:
        """Prefill a part of a prompt: the target, and after it a draft model that is to draft.

        Args:
            state: of a sequence before its first round.
            most: how many tokens are computed at most.

        Raises:
            DraftError: the drafter failed, unless `on_draft_error` is "disable".
            ModelError: the target raised.
        """
        with computing(self.target):
            found = self._watched.prefill(state.prefix, most)
        if found.missing or not self._plan([state]).model_depth.any():
            return found
        start = perf_counter()
        missing = self._drafting.prefill(state.prefix, most)
        return replace(found, missing=missing, draft_s=perf_counter() - start)

    def observe(self, result: StepResult) -> None:
        """Learn from a round, count it, and report it to `on_round`."""
        start = perf_counter()
        self.knowledge = self.policy.observe(self.knowledge, result.batch.states, result.record)
        self._between_s = perf_counter() - start
        self._tally.add(result.record)
        if self._on_round is not None:
            self._on_round(result.record)

    @torch.inference_mode()
    def _round(self, batch: Batch, chance: Chance | None, *, failed: bool) -> StepResult:
        spans = Spans(self._device)
        with spans.span("plan"):
            plan = self._plan(batch.states)
        draws = batch.draws(chance or self.chance, plan.width, coupled=self.verifier.coupled)
        pipeline, draft_pipeline = batch.pipelines(self._ended)
        context = DraftContext(
            batch, draws, plan, self.config, draft_pipeline, learning=chance is None
        )
        with spans.span("states"):
            self._prepare(batch.states, plan)
        with spans.span("draft"):
            proposal = self._drafting.propose(batch, plan, context)
        with spans.span("target"):
            scores = self.score(batch, proposal)
        rows = verify(
            batch, proposal, scores.logits, pipeline, self.verifier, draws, context.finite
        )
        confidence = confidence_of(proposal, context, rows)
        emitted, states = advance(
            batch, proposal, confidence, rows, pipeline, self.policy, self.tokenizer
        )
        nodes = [row.nodes for row in rows]
        self._drafting.observe_round(kept_states(batch, rows, scores))
        tops = [state.params.logprobs for state in states]
        logprobs = report(scores.logits, nodes, emitted, tops)
        record = record_of(
            batch,
            proposal,
            confidence,
            rows,
            emitted,
            scores,
            spans,
            self._between_s,
            failed=failed,
        )
        return StepResult(replace(batch, states=tuple(states)), tuple(emitted), record, logprobs)

    def _plan(self, states: Sequence[SequenceState]) -> DraftPlan:
        if self.drafter is None:
            return DraftPlan(np.zeros(len(states), dtype=np.int64))
        plan = self.policy.plan(self.knowledge, states)
        check_plan(plan, states)
        drafting = np.array([s.drafting and (s.round > 0 or not self.follows) for s in states])
        return plan if drafting.all() else replace(plan, depth=np.where(drafting, plan.depth, 0))

    def _prepare(self, states: Sequence[SequenceState], plan: DraftPlan) -> None:
        """Have the target compute what drafters draft from: of sequences that it has lost."""
        if not self._drafting.hidden_layers:
            return
        for state, depth in zip(states, plan.model_depth.tolist(), strict=True):
            last = len(state.prefix) - 1
            depth = depth if state.round else 0  # prompts are verified first
            for held in (False, True):
                if not depth or self._drafting.known(state.prefix) >= last:
                    break
                with computing(self.target):
                    if held:  # without states: of what is new again, they are computed
                        self.target.release([state.prefix.sequence_id])
                    self._watched.prefill(state.prefix, last)

    def score(self, batch: Batch, proposal: DraftProposal) -> TargetScores:
        """Compute the target's scores of proposals; drafters are shown its hidden states.

        Raises:
            ModelError: the target raised.
            DraftError: a drafter failed, unless `on_draft_error` is "disable".
        """
        with computing(self.target):
            scores = self._watched.verify([state.prefix for state in batch.states], proposal)
        if self._check_scores:
            check_scores(scores, proposal, self.target.vocab_size)
        return scores

    def release(self, states: Iterable[SequenceState], *, discard: bool = False) -> None:
        """Free what the models hold for sequences that will not be stepped again.

        `generate`, `stream` and schedulers do it themselves. Drafters learn from texts that ended,
        not from those that were cut. With `discard` nothing is learnt, and what was computed is not
        shared with later sequences.

        Raises:
            ModelError: a model raised.
            DraftError: a drafter failed, unless `on_draft_error` is "disable". All is free.
        """
        states = tuple(states)
        ended = [] if discard else [state.prefix for state in states if state.finish_reason]
        self._free([state.prefix.sequence_id for state in states], ended, discard=discard)

    def fitting(
        self, newcomers: Iterable[SequenceState], live: int
    ) -> Iterator[tuple[SequenceState, int]]:
        """Yield new sequences as long as the models' caches have room for them.

        Args:
            newcomers: the sequences.
            live: how many others there are: a block is left for each, so that it can go on. Where
                there are none, the first newcomer fits.

        Yields:
            Each, and how many tokens of its prompt the target has not computed yet.
        """
        free = [inf if each.free_blocks is None else each.free_blocks for each in self._runtimes]
        free = [blocks - live for blocks in free]
        for place, state in enumerate(newcomers):
            found = [self._lookup(runtime, state.prefix) for runtime in self._runtimes]
            free = [blocks - each.blocks for blocks, each in zip(free, found, strict=True)]
            if live + place and min(free) < 0:
                return
            tokens = [each.tokens for each in found[: None if self._drafting.hidden_layers else 1]]
            yield state, len(state.prefix) - min(tokens)

    def release_dropped(self) -> None:
        """Free what the models still hold for sequences of dropped schedulers."""
        dropped = self.slots.dropped.copy()
        if dropped:
            self._free(list(dropped), [], discard=True)
            self.slots.dropped.difference_update(dropped)

    def new_sequence_ids(self, count: int) -> list[int]:
        """Return fresh sequence ids, as many as asked for."""
        return list(islice(self._ids, count))

    def _lookup(self, runtime: Runtime, prefix: Prefix) -> Found:
        with computing(runtime):
            return runtime.lookup(prefix)

    def _free(self, ids: list[int], ended: list[Prefix], *, discard: bool) -> None:
        for runtime in self._runtimes:
            with computing(runtime):
                runtime.release(ids, discard=discard)
        start = perf_counter()
        self._drafting.release(ids, ended, discard=discard)
        self._between_s += perf_counter() - start

    def _ended(self, state: SequenceState, drafted: tuple[int, ...]) -> bool:
        """Whether drafted tokens, were they emitted, would have ended a request."""
        return until_stop(state, drafted, self.tokenizer)[1] is not None
