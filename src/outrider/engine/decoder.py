"""The engine: one step decodes a round for any number of sequences, each at its own depth."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, overload
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from ..config.params import SamplingParams, SpeculativeConfig
from ..drafters.base import Drafter
from ..drafters.model import ModelDrafter
from ..errors import (
    DraftError,
    InvalidConfigError,
    KeyReuseError,
)
from ..policies import policy_of
from ..policies.base import Policy
from ..random import Philox4x32, RoundDraws
from ..runtimes.base import Runtime
from ..sampling import distributions as sampling
from ..sampling.grammar import Grammars
from ..sampling.logprobs import TokenLogprob, report
from ..sampling.paths import Path
from ..types.protocols import Chance, Tokenizer
from ..types.records import (
    DraftPlan,
    DraftProposal,
    RoundRecord,
    SequenceState,
    Verdict,
)
from ..verification import Verifier
from .batch import Batch, StepResult
from .commit import advance, check_finite, check_steppable, confidence_of, record_of
from .compatibility import check_parts, check_vocabularies, common_device, parts_of
from .context import RoundContext
from .metrics import SpeculationMetrics, Tally
from .outputs import Choice, GenerationOutput, StreamEvent
from .readback import nothing_drafted, read_back
from .requests import Limits, Prompt, Request, check_tokens, parse_request, split_prompts
from .scheduler import Scheduler, naming_request
from .spans import Spans
from .stopping import final_text, reachable_nodes
from .streaming import events
from .validation import check_plan, checked_parts

_LOG = logging.getLogger(__name__)


class SpeculativeDecoder:
    """Decodes with a target model, several tokens a forward pass, from exactly its distribution.

    One thread at a time steps a decoder. Callbacks, processors, tokenizers, policies and drafters
    are called without any lock held.

    Args:
        target: the model whose distribution the output follows.
        drafter: proposes tokens; a runtime is wrapped in a `ModelDrafter`. None decodes plainly.
        tokenizer: turns text prompts into token ids, and output into text.
        config: how speculation is done.
        chance: the source of randomness; Philox4x32-10 keyed by each request's seed if None.
        verifier: a verification method of your own in place of the one that `config.verification`
            names; `outrider certify --module` finds out whether it is lossless.
        policy: a policy of your own in place of the one that `config.depth` names; it is bound by
            the tokens that remain, not by `num_speculative_tokens`.
        on_round: called with the record of each round that `metrics` counts; see `outrider.engine.trace`.

    Raises:
        VocabMismatchError: drafter and target have different vocabulary sizes.
        InvalidConfigError: drafter and target are on different devices, or an argument is of the
            wrong type.
        TokenOutOfRangeError: the configuration's `draft_params` name a token that there is not.
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
        self.target = target
        self.drafter = ModelDrafter(drafter) if isinstance(drafter, Runtime) else drafter
        self.tokenizer = tokenizer
        self.config = config or SpeculativeConfig()
        self.chance: Chance = chance or Philox4x32()
        check_parts(target, self.drafter, self.config, policy)
        check_vocabularies(target, self.drafter)
        if self.config.draft_params is not None:
            check_tokens(target.vocab_size, self.config.draft_params, "draft_params.")
        self.verifier = verifier or Verifier.of(self.config)
        self.policy = policy or policy_of(self.config, self.drafter)
        self.knowledge: Any = self.policy.start()
        self._parts = parts_of(target, self.drafter)
        self._runtimes = [part for part in self._parts if isinstance(part, Runtime)]
        self._drafters = [part for part in self._parts if isinstance(part, Drafter)]
        self._device = common_device(self._runtimes)
        self._target, self._drafter = checked_parts(
            target, self.drafter, self._drafters, self.config
        )
        lossy = self.verifier.lossy and drafter is not None
        drafts, mixes = drafter is not None, self.config.verification == "mixture"
        self._limits = Limits(
            target.vocab_size, target.max_length, target.eos_token_ids, drafts, drafts and mixes
        )
        self._grammars = Grammars(tokenizer, target.vocab_size, target.eos_token_ids)
        # Decoders that share a model must not share ids: each counts from a start of its own.
        self._next_id = secrets.randbits(40) << 22
        self._tally = Tally(lossy=lossy)
        self._counting = Lock()
        self._on_round = on_round
        self._failure_logged = False
        self._schedulers: WeakSet[Scheduler] = WeakSet()
        self.admission = Lock()

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
    def free_slots(self) -> int | None:
        """The number of sequences that may still be admitted; None for any."""
        if self.max_sequences is None:
            return None
        return self.max_sequences - sum(len(one.running) for one in list(self._schedulers))

    @property
    def holders(self) -> list[str]:
        """The names of the schedulers that hold room."""
        return [one.name for one in list(self._schedulers) if one.running]

    def register(self, scheduler: Scheduler) -> None:
        """Count a scheduler's sequences among those that hold room."""
        self._schedulers.add(scheduler)

    def reset_metrics(self) -> None:
        """Start counting anew."""
        self._tally = Tally(lossy=self._tally.lossy)

    def start(self, prompt: Prompt, params: SamplingParams | None = None) -> list[SequenceState]:
        """Return the starting states of a request: one for each of its n choices.

        Raises:
            EmptyPrefixError, TokenOutOfRangeError, ContextLengthError, InvalidConfigError: the
                request is refused; see `outrider.errors`.
        """
        request = self._parse(prompt, params)
        return request.states(self.claim(request.params.n))

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
            DegenerateDistributionError: the target's logits hold NaN, +inf or nothing finite.
        """
        check_steppable(batch)
        try:
            result = self._round(batch, chance)
        except DraftError as error:
            if self.config.on_draft_error == "raise":
                raise
            if not self._failure_logged:
                _LOG.warning("the drafter failed; its requests go on without drafts: %s", error)
                self._failure_logged = True
            plain = [replace(state, drafting=False) for state in batch.states]
            result = self._round(replace(batch, states=tuple(plain)), chance, failed=True)
        if chance is None:
            self.observe(result)
        return result

    def observe(self, result: StepResult) -> None:
        """Learn from a round, count it, and report it to `on_round`."""
        self.knowledge = self.policy.observe(self.knowledge, result.batch.states, result.record)
        with self._counting:
            self._tally.add(result.record)
        if self._on_round is not None:
            self._on_round(result.record)

    @torch.inference_mode()
    def _round(self, batch: Batch, chance: Chance | None, *, failed: bool = False) -> StepResult:
        spans = Spans(self._device)
        with spans.span("plan"):
            plan = self._plan(batch)
        coupled, prefixes = self.verifier.coupled, [state.prefix for state in batch.states]
        draws = batch.draws(chance or self.chance, plan.width, coupled=coupled)
        shaper, draft_shaper = batch.shapers(self._ended)
        context = RoundContext(
            batch, draws, plan, self.config, draft_shaper, learning=chance is None
        )
        with spans.span("read"):
            cached = self._read_ahead(batch, plan)
        with spans.span("draft"):
            proposal = self._propose(batch, plan, context)
        with spans.span("target"):
            scores = self._target.verify(prefixes, proposal)
        shaped = None if shaper is None else shaper(scores.logits, Path.to_nodes(proposal))
        logits = scores.logits if shaped is None else shaped.logits
        verdict, finite = self._verify(batch, proposal, logits, draws)
        rows = read_back(proposal, verdict, finite, context.finite)
        if shaped is not None:
            rows = [row.cut(shaped.usable(i, row.nodes)) for i, row in enumerate(rows)]
        check_finite(batch, rows)
        rows = [row.cut(row.sound) for row in rows]
        confidence = confidence_of(proposal, context, rows)
        emitted, states = advance(
            batch, proposal, confidence, rows, shaper, self.policy, self.tokenizer
        )
        record = record_of(batch, proposal, confidence, rows, emitted, spans)
        record = replace(record, cached=cached or scores.cached or record.cached)
        logprobs = report(
            scores.logits,
            [row.nodes for row in rows],
            emitted,
            [state.params.logprobs for state in batch.states],
        )
        record = replace(record, draft_failed=failed, total_s=spans.total())
        return StepResult(replace(batch, states=tuple(states)), tuple(emitted), record, logprobs)

    def _plan(self, batch: Batch) -> DraftPlan:
        if self._drafter is None:
            return DraftPlan(np.zeros(len(batch.states), dtype=np.int64))
        plan = self.policy.plan(self.knowledge, batch.states)
        check_plan(plan, batch.states)
        drafting = np.array([state.drafting for state in batch.states])
        return plan if drafting.all() else replace(plan, depth=np.where(drafting, plan.depth, 0))

    def _read_ahead(self, batch: Batch, plan: DraftPlan) -> tuple[int, ...]:
        """Let a drafter in the target's slots have new prompts read, in the target's time."""
        if plan.width and any(state.round == 0 for state in batch.states):
            prefixes = [state.prefix for state in batch.states]
            for drafter in self._drafters:
                if cached := drafter.read_ahead(prefixes):
                    return cached
        return ()

    def _propose(self, batch: Batch, plan: DraftPlan, context: RoundContext) -> DraftProposal:
        if self._drafter is None or not plan.width:
            return nothing_drafted(len(batch.states), self._device)
        try:
            return self._drafter.propose([state.prefix for state in batch.states], plan, context)
        except KeyReuseError:
            raise
        except Exception as error:
            raise DraftError(
                f"{type(self.drafter).__name__} failed: {type(error).__name__}: {error}; "
                'SpeculativeConfig(on_draft_error="disable") decodes plainly from there'
            ) from error

    def _verify(
        self,
        batch: Batch,
        proposal: DraftProposal,
        logits: Tensor,
        draws: RoundDraws,
    ) -> tuple[Verdict | Tensor, Tensor]:
        """Verify drafts beside the target's logits [B, N + 1, V].

        Logits that mean nothing do not spoil the verdict on a path that does not lead there: even
        distributions take their place.

        Returns:
            The verdict, or the target's tokens [B, N + 1] where all its distributions are point
            masses; and [B, N + 1] numbers that are finite where a row of logits means something.
        """
        made, finite = sampling.distributions(logits, batch.params)
        if made.probs is None:
            assert made.point_masses is not None
            return made.point_masses, finite
        sound = finite.isfinite()[..., None]
        probs = torch.where(sound, made.probs, 1 / made.probs.shape[-1])
        return self.verifier.verify(proposal, probs, draws), finite

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is a sequence of texts, too
        self, prompts: Prompt, params: SamplingParams | None = None
    ) -> GenerationOutput: ...

    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[GenerationOutput]: ...

    def generate(self, prompts: Any, params: Any = None) -> Any:
        """Decode prompts to the end.

        Args:
            prompts: one prompt, text or token ids, or a list of prompts. As many sequences are
                decoded together as the models have room for; the others wait. A chat is
                `tokenizer.apply_chat_template(messages, add_generation_prompt=True)`.
            params: for all prompts, or a list with one for each.

        Returns:
            One output for one prompt, a list for a list.

        Raises:
            EmptyPrefixError, TokenOutOfRangeError, ContextLengthError, InvalidConfigError: a
                request is refused, before anything is decoded.
            DegenerateDistributionError: one cannot go on; its index among the prompts is `request`.
        """
        listed, single = split_prompts(prompts)
        requests = self._parse_all(listed, params)
        groups = [request.states(self.claim(request.params.n)) for request in requests]
        ended = {
            state.prefix.sequence_id: _Ended(state, Tally(lossy=self._tally.lossy), [])
            for group in groups
            for state in group
        }
        with closing(self._steps(groups, "generate")) as steps:
            for result in steps:
                for row, state in enumerate(result.batch.states):
                    one = ended[state.prefix.sequence_id]
                    one.tally.add(result.record, row)
                    one.logprobs.extend(result.logprobs[row])
                    ended[state.prefix.sequence_id] = replace(one, state=state)
        outputs = [
            GenerationOutput(
                prompt_token_ids=request.token_ids,
                choices=tuple(self._choice(ended[state.prefix.sequence_id]) for state in group),
                seed=request.seed,
            )
            for request, group in zip(requests, groups, strict=True)
        ]
        return outputs[0] if single else outputs

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[StreamEvent]:
        """Decode prompts, and yield every token as soon as its round is over.

        Requests are checked when this is called. Until it ends or is closed the iterator holds room
        of the models.

        Args:
            prompts: as for `generate`.
            params: as for `generate`.
        """
        requests = self._parse_all(split_prompts(prompts)[0], params)
        groups = [request.states(self.claim(request.params.n)) for request in requests]
        return events(self._steps(groups, "an open stream"), groups, self.tokenizer)

    def release(self, states: Iterable[SequenceState], *, discard: bool = False) -> None:
        """Free what the models hold for sequences that will not be stepped again.

        `generate` and `stream` do it themselves. With `discard` what was computed for them is not
        shared with later sequences.
        """
        prefixes = [state.prefix for state in states]
        sequence_ids = [prefix.sequence_id for prefix in prefixes]
        for runtime in self._runtimes:
            runtime.release(sequence_ids, discard=discard)
        for drafter in self._drafters:
            if not discard:
                drafter.observe_output(prefixes)
            drafter.release(sequence_ids, discard=discard)

    def claim(self, count: int) -> int:
        """Return the first of `count` fresh sequence ids, consecutive."""
        with self._counting:
            self._next_id += count
            return self._next_id - count

    def _ended(self, state: SequenceState, drafted: tuple[int, ...]) -> bool:
        """Whether drafted tokens, were they emitted, would have ended a request."""
        return reachable_nodes(state, drafted, self.tokenizer) <= len(drafted)

    def _steps(self, groups: list[list[SequenceState]], name: str) -> Generator[StepResult]:
        scheduler = Scheduler(self, name=name)
        scheduler.submit(state for group in groups for state in group)
        owner = {s.prefix.sequence_id: index for index, group in enumerate(groups) for s in group}
        return naming_request(scheduler, owner)

    def _parse(self, prompt: Any, params: Any) -> Request:
        given = SamplingParams() if params is None else params
        return parse_request(prompt, given, self.tokenizer, self._limits, self._grammars)

    def _parse_all(self, prompts: Any, params: Any) -> list[Request]:
        if not isinstance(params, Sequence):
            return [self._parse(prompt, params) for prompt in prompts]
        if len(params) != len(prompts):
            raise InvalidConfigError(
                "params", f"a list of {len(params)}", f"one for all prompts, or {len(prompts)}"
            )
        return [self._parse(*pair) for pair in zip(prompts, params, strict=True)]

    def _choice(self, ended: _Ended) -> Choice:
        state = ended.state
        assert state.finish_reason is not None
        return Choice(
            index=state.choice,
            text=None if self.tokenizer is None else final_text(state, self.tokenizer),
            token_ids=tuple(state.output_ids),
            finish_reason=state.finish_reason,
            depths=state.depths,
            metrics=ended.tally.metrics(),
            logprobs=None if state.params.logprobs is None else tuple(ended.logprobs),
        )


@dataclass(frozen=True, slots=True)
class _Ended:
    """A sequence as it was after its last round, and its figures."""

    state: SequenceState
    tally: Tally
    logprobs: list[TokenLogprob]
