"""The engine: one step decodes a round for any number of sequences, each at its own depth.

A round plans how far to draft, proposes, has the target score every draft in one forward, makes the
distributions, verifies, and commits. Plain decoding is a round that drafts nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, overload

import torch

from ..config.params import SamplingParams, SpeculativeConfig
from ..drafters.model import ModelDrafter
from ..errors import InvalidConfigError, KeyReuseError
from ..policies import policy_of
from ..random.chance import Philox4x32
from ..sampling.grammar import Grammars
from ..sampling.logprobs import TokenLogprob, report
from ..sampling.paths import Path
from ..types.protocols import (
    AutoregressiveModel,
    CachedModel,
    Chance,
    Drafter,
    KeepsSequences,
    LearnsOutputs,
    Policy,
    ReadsAhead,
    Target,
    Tokenizer,
)
from ..types.records import DraftPlan, DraftProposal, Prefix, RoundRecord, SequenceState
from ..verification import Verifier
from .batch import Batch, Step
from .calibration import calibrate
from .compatibility import check_models, check_vocabularies, common_device, parts_of
from .context import RoundContext
from .metrics import SpeculationMetrics, Tally
from .outputs import Choice, GenerationOutput, StreamEvent
from .proposals import bounded, check_proposal
from .requests import Limits, Prompt, Request, check_tokens, is_single_prompt, parse_request
from .rounds import (
    DraftFailure,
    Stopwatch,
    check_distributions,
    check_plan,
    check_scores,
    check_steppable,
    check_witnesses,
    failed,
    judge,
    no_drafts,
    read,
)
from .scheduler import Run
from .stopping import final_text, until_stop
from .streaming import events


class SpeculativeDecoder:
    """Decodes with a target model, several tokens a forward pass, from exactly the target's distribution.

    Args:
        target: the model whose distribution the output follows.
        drafter: proposes tokens; a model is wrapped in a `ModelDrafter`. None decodes plainly.
        tokenizer: turns text prompts into token ids, and output into text.
        config: how speculation is done.
        chance: where randomness comes from; Philox4x32-10 keyed by each request's seed if None.
        verifier: a verification method of your own, in the place of the one that
            `config.verification` names; `outrider certify --module` tells whether it is lossless.
        policy: a depth policy of your own, in the place of the one that `config.depth` names; it
            is not bound by `num_speculative_tokens`, only by the tokens that remain.
        on_round: is told each round that `metrics` counts, one at a time; see `outrider.trace`.

    Raises:
        VocabMismatchError: drafter and target have different vocabulary sizes.
        InvalidConfigError: drafter and target are on different devices, or are no models at all, or
            the policy is none.
        TokenOutOfRangeError: the configuration's `draft_params` name a token that there is not.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | AutoregressiveModel | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        config: SpeculativeConfig | None = None,
        chance: Chance | None = None,
        verifier: Verifier | None = None,
        policy: Policy | None = None,
        on_round: Callable[[RoundRecord], object] | None = None,
    ) -> None:
        self.target = target
        self.drafter = (
            ModelDrafter(drafter) if isinstance(drafter, AutoregressiveModel) else drafter
        )
        self.tokenizer = tokenizer
        self.config = config or SpeculativeConfig()
        self.chance: Chance = chance or Philox4x32()
        check_models(target, self.drafter, self.config, policy)
        check_vocabularies(target, self.drafter)
        if self.config.draft_params is not None:
            check_tokens(target.vocab_size, self.config.draft_params, "draft_params.")
        self.verifier = verifier or Verifier.of(self.config)
        if self.config.verification == "coupled" and isinstance(self.chance, Philox4x32):
            self.chance.prepare()
        # Plain decoding is exact, whatever would check drafts.
        self._lossy = self.verifier.lossy and self.drafter is not None
        self._uniforms = self.chance.uniforms if type(self.chance) is Philox4x32 else None
        self._own_policy = policy is not None
        self.policy = policy or policy_of(self.config, self.drafter, target)
        parts = parts_of(target, self.drafter)
        self._cached = [model for model in parts if isinstance(model, CachedModel)]
        self._keepers = [part for part in parts if isinstance(part, KeepsSequences)]
        self._learners = [part for part in parts if isinstance(part, LearnsOutputs)]
        self._ahead = [part for part in parts if isinstance(part, ReadsAhead)]
        self._device = common_device(self._cached)
        eos = target.eos_token_ids if isinstance(target, CachedModel) else frozenset[int]()
        contexts = [
            (part.max_length, "draft" if place else "target")
            for place, part in enumerate(parts)
            if isinstance(part, CachedModel)
        ]
        length, shortest = min(contexts, default=(None, "target"), key=lambda c: c[0])
        drafts, mixes = self.drafter is not None, self.config.verification == "mixture"
        self._limits = Limits(target.vocab_size, length, shortest, eos, drafts, drafts and mixes)
        self._grammars = Grammars(tokenizer, target.vocab_size, eos)
        # Decoders that share a model must not share ids: each counts from a start of its own.
        self._next_id = secrets.randbits(40) << 22
        self._lock = Lock()
        self._tally = Tally(lossy=self._lossy)
        self._on_round, self._warned = on_round, False
        if policy is None and self.policy.learns and self.drafter is not None and self._cached:
            calibrate(self, self._round, self._cached)

    @property
    def metrics(self) -> SpeculationMetrics:
        """Figures over every round since the decoder was made or last reset."""
        return self._tally.metrics()

    @property
    def max_sequences(self) -> int | None:
        """How many sequences can be decoded together; None if the models set no bound."""
        return min((model.max_sequences for model in self._cached), default=None)

    @property
    def max_length(self) -> int | None:
        """The longest sequence, prompt included, in tokens; None if the models set no bound."""
        return self._limits.max_length

    def reset_metrics(self) -> None:
        """Start counting anew."""
        self._tally = Tally(lossy=self._lossy)

    def start(self, prompt: Prompt, params: SamplingParams | None = None) -> list[SequenceState]:
        """The starting states of a request: one for each of its n choices.

        Raises:
            EmptyPrefixError, TokenOutOfRangeError, ContextLengthError, InvalidConfigError: the
                request is refused; see `outrider.errors`.
        """
        request = self._parse(prompt, params)
        return request.states(self.claim(request.params.n))

    def pack(self, states: Iterable[SequenceState]) -> Batch:
        """A batch of sequences, to be stepped together."""
        return Batch.of(
            tuple(states), self.target.vocab_size, self._device, self.config.draft_params
        )

    @torch.inference_mode()
    def step(self, batch: Batch, chance: Chance | None = None) -> Step:
        """Decode one round: at least one token for every sequence of the batch.

        Args:
            batch: unfinished sequences, in any order and of any length.
            chance: takes the place of the decoder's own; the round is then not counted in
                `metrics`.

        A round whose drafter fails, or whose drafts cannot have come from their distributions, goes on with
        what was drafted before, unless `strict`.

        Raises:
            InvalidConfigError: the batch is empty, or has a finished sequence or one twice; or a
                policy of your own gave no plan that can be carried out.
            DegenerateDistributionError: a model's logits hold NaN, +inf or nothing finite.
            DraftShapeError, TargetShapeError, DistributionWidthError, TokenOutOfRangeError: a
                drafter or a target broke its contract.
        """
        check_steppable(batch)
        with self._lock:
            watch = Stopwatch(self._device)
            plan = self.policy.plan(batch.states)
            if self._own_policy:
                check_plan(plan, batch.states)
            watch.planned()
        try:
            return self._round(batch, plan, chance, watch)
        except DraftFailure as failure:
            if self.config.strict:
                raise failure.reason from None
            self._warn(failure)
            return self._round(batch, plan, chance, watch, failure)

    def _round(
        self,
        batch: Batch,
        plan: DraftPlan,
        chance: Chance | None,
        watch: Stopwatch,
        failure: DraftFailure | None = None,
    ) -> Step:
        """A round by a plan, or in the place of one whose drafter failed."""
        prefixes, vocab_size = [state.prefix for state in batch.states], self.target.vocab_size
        ahead = None if chance is not None or self.verifier.coupled else self._uniforms
        noise = batch.next_noise(ahead, plan.width)
        draws = batch.draws(chance or self.chance, plan.width, noise, coupled=self.verifier.coupled)
        shaper, draft_shaper = batch.shapers(vocab_size, everywhere=self.verifier.keeps_forbidden)
        context = RoundContext(
            batch, draws, plan, self._device, self.config, draft_shaper, remembers=chance is None
        )
        watch.mark()
        found = () if failure else self._read_ahead(batch, prefixes, plan)
        watch.mark()
        given = failure.rest if failure else self._propose(prefixes, plan, context)
        distributions = (
            []
            if failure
            else check_distributions(given, context, vocab_size, batch.params.all_greedy)
        )
        proposal = given if self._device.type == "cpu" else bounded(given, vocab_size)
        watch.mark()
        scores = self.target.verify(prefixes, proposal)
        watch.mark()
        check_scores(scores, proposal, vocab_size)
        logits = scores.logits if shaper is None else shaper(scores.logits, Path.to_nodes(proposal))
        verdict, witness = judge(proposal, logits, batch.params, self.verifier, draws)
        rows = read(proposal, verdict, witness, context, distributions)
        check_witnesses(given, witness, context, rows, distributions, vocab_size)
        read_s, draft_s, verify_s = watch.spans()[-3:]
        told = (failure or context).told.within([row.depth for row in rows])
        looked_up, planned, repeats = proposal.stepless, plan.model_steps, plan.repeated
        states, emitted, accepted = [], [], []
        for index, (state, row) in enumerate(zip(batch.states, rows, strict=True)):
            tokens, reason = until_stop(state, [*row.path, row.token], self.tokenizer)
            known = state.acceptance
            if self.policy.learns and not looked_up[index]:
                # What the drafter failed at, or was not sure of, counts as drafted and refused.
                cut = bool(failure and failure.cut[index]) and row.depth < planned[index]
                seen = row.depth + (cut or told.ended[index] or bool(row.depth < repeats[index]))
                known = known.after(seen, len(row.path), told.entropies[index])
            own = () if shaper is None else shaper.processors(index, row.path)
            states.append(state.advanced(tokens, row.depth, reason, known, own))
            emitted.append(tokens)
            accepted.append(min(len(row.path), len(tokens)))
        tops = [state.params.logprobs for state in batch.states]
        logprobs = report(scores.logits, [row.nodes for row in rows], emitted, tops)
        record = RoundRecord(
            sequence_ids=context.sequence_ids,
            drafted=tuple(row.drafted for row in rows),
            depth=tuple(row.depth for row in rows),
            accepted=tuple(accepted),
            emitted=tuple(map(len, emitted)),
            bonus=tuple(row.bonus for row in rows),
            ceiling=tuple(row.ceiling for row in rows),
            first_ceiling=tuple(row.first_ceiling for row in rows),
            draft_failed=failure is not None,
            looked_up=looked_up,
            ended=told.ended,
            entropies=told.entropies,
            cached=found or scores.cached or (0,) * len(rows),
            draft_s=draft_s,
            target_s=read_s + verify_s,
            total_s=watch.total(),
            plan_s=watch.plan_s,
        )
        if chance is None:
            with self._lock:
                self._tally.add(record)
                self.policy.observe(states, record)
                if self._on_round is not None:
                    self._on_round(record)
        after = replace(batch, states=tuple(states), noise=noise)
        return Step(after, tuple(emitted), record, logprobs)

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
            prompts: one prompt, text or token ids, or a list of prompts, be it of none. As many
                sequences are decoded together as the models have room for; the others wait.
            params: for all prompts, or a list with one for each.

        Returns:
            One output for one prompt, a list for a list.

        Raises:
            EmptyPrefixError, TokenOutOfRangeError, ContextLengthError, InvalidConfigError: a
                request is refused, before anything is decoded.
            DegenerateDistributionError: one cannot go on; its index among the prompts is `request`.
        """
        single = is_single_prompt(prompts)
        requests = self._parse_all([prompts] if single else prompts, params)
        runs = self._runs(requests)
        tallies = {
            state.prefix.sequence_id: Tally(lossy=self._lossy) for run in runs for state in run
        }
        ends = {}
        told: dict[int, list[TokenLogprob]] = {i: [] for i in tallies}
        for step in Run.of(self, runs):
            for row, state in enumerate(step.batch.states):
                tallies[state.prefix.sequence_id].add(step.record, row)
                told[state.prefix.sequence_id] += step.logprobs[row]
                ends[state.prefix.sequence_id] = state
        outputs = [
            GenerationOutput(
                prompt_token_ids=request.token_ids,
                choices=tuple(
                    self._choice(ends[i], tallies[i], told[i])
                    for i in (state.prefix.sequence_id for state in run)
                ),
                seed=request.seed,
            )
            for request, run in zip(requests, runs, strict=True)
        ]
        return outputs[0] if single else outputs

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[StreamEvent]:
        """Decode prompts, and yield every token as soon as its round is over.

        Requests are checked when this is called. Closing the iterator frees what it held.

        Args:
            prompts: as for `generate`.
            params: as for `generate`.
        """
        listed: Any = [prompts] if is_single_prompt(prompts) else prompts
        runs = self._runs(self._parse_all(listed, params))
        return events(Run.of(self, runs), runs, self.tokenizer)

    def release(self, states: Iterable[SequenceState], *, discard: bool = False) -> None:
        """Free what the models hold for sequences that will not be stepped again.

        `generate` and `stream` do it themselves. With `discard` what was computed for them is not
        shared with later sequences.
        """
        prefixes = [state.prefix for state in states]
        if not discard:
            for learner in self._learners:
                learner.ended(prefixes)
        for keeper in self._keepers:
            keeper.release([prefix.sequence_id for prefix in prefixes], discard=discard)

    def _propose(self, prefixes: list[Prefix], plan: DraftPlan, ctx: RoundContext) -> DraftProposal:
        if self.drafter is None or plan.width == 0:
            return no_drafts(len(prefixes), self._device)
        try:
            proposal = self.drafter.propose(prefixes, plan, ctx)
            check_proposal(proposal, plan, self.target.vocab_size, self._device)
        except Exception as error:
            if error is ctx.request_error or isinstance(error, KeyReuseError):
                raise
            raise failed(error, ctx, self.target.vocab_size) from error
        ctx.forget()
        return proposal

    def _read_ahead(self, batch: Batch, prefixes: list[Prefix], plan: DraftPlan) -> tuple[int, ...]:
        """Let the target read new prompts before they are drafted from in its own slots."""
        if self._ahead and plan.width and any(state.round == 0 for state in batch.states):
            return self._ahead[0].read_ahead(prefixes)
        return ()

    def _warn(self, failure: DraftFailure) -> None:
        """Say once that the drafter fails."""
        if not self._warned:
            self._warned = True
            failure.warn(self.drafter)

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

    def _runs(self, requests: list[Request]) -> list[list[SequenceState]]:
        return [request.states(self.claim(request.params.n)) for request in requests]

    def claim(self, count: int) -> int:
        """The first of `count` fresh sequence ids, consecutive."""
        with self._lock:
            self._next_id += count
            return self._next_id - count

    def _choice(self, state: SequenceState, tally: Tally, logprobs: list[TokenLogprob]) -> Choice:
        assert state.finish_reason is not None
        return Choice(
            index=state.choice,
            text=None if self.tokenizer is None else final_text(state, self.tokenizer),
            token_ids=tuple(state.output_ids),
            finish_reason=state.finish_reason,
            depths=state.depths,
            metrics=tally.metrics(),
            logprobs=None if state.params.logprobs is None else tuple(logprobs),
        )
