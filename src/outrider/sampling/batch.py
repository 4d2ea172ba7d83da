"""Sequences decoded together, and what their parameters ask of distributions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..config.params import SamplingParams
from ..random import RoundDraws, position_keys, round_keys
from ..types.protocols import Chance
from ..types.records import SequenceState
from .distributions import PackedParams
from .packed import PackedLogitsParams
from .pipeline import Ended, LogitsPipeline


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences decoded together, with what depends on the batch alone and not on its round.

    Attributes:
        states: the sequences.
        params: their sampling parameters, packed for the device.
        device: where their distributions live.
        logits_params: what is done to the target's logits; None for nothing.
        drafting: the parameters that chains are drafted under.
        ranking: those that trees are drafted under: greedy rows, whose likeliest tokens are
            proposed, have plain ones.
        deterministic: rows whose likeliest tokens are proposed.
        draft_logits_params: what is done to the draft's logits; None for nothing.
    """

    states: tuple[SequenceState, ...]
    params: PackedParams
    device: torch.device
    logits_params: PackedLogitsParams | None
    drafting: PackedParams
    ranking: PackedParams
    deterministic: tuple[bool, ...]
    draft_logits_params: PackedLogitsParams | None

    @staticmethod
    def of(
        states: tuple[SequenceState, ...],
        vocab_size: int,
        device: torch.device,
        draft_params: SamplingParams | None = None,
    ) -> Batch:
        """Pack the parameters of sequences.

        Args:
            states: the sequences.
            vocab_size: V.
            device: of their distributions.
            draft_params: takes the place of their own where they are drafted.
        """
        params = [state.params for state in states]
        packed = drafting = PackedParams.pack(params, vocab_size, device)
        on_logits = draft_logits_params = PackedLogitsParams.pack(states, device)
        if draft_params is not None:
            greedily = replace(draft_params, temperature=0)
            params = [
                _with_limits(greedily if state.params.greedy else draft_params, state, vocab_size)
                for state in states
            ]
            drafting = PackedParams.pack(params, vocab_size, device)
            drafted = [
                replace(state, params=asked, processors=())
                for state, asked in zip(states, params, strict=True)
            ]
            draft_logits_params = PackedLogitsParams.pack(drafted, device)
        ranking = drafting
        deterministic = tuple(asked.greedy for asked in params)
        if any(deterministic):
            plain = [SamplingParams() if asked.greedy else asked for asked in params]
            ranking = PackedParams.pack(plain, vocab_size, device)
        return Batch(
            states, packed, device, on_logits, drafting, ranking, deterministic, draft_logits_params
        )

    @property
    def sequence_ids(self) -> tuple[int, ...]:
        """The ids of the sequences, row by row."""
        return tuple(state.prefix.sequence_id for state in self.states)

    def pipelines(self, ended: Ended) -> tuple[LogitsPipeline | None, LogitsPipeline | None]:
        """Make a round's logits pipelines, the target's and the draft's, up to where they end."""
        states, device = self.states, self.device
        pipeline = drafting = None
        if self.logits_params is not None:
            pipeline = LogitsPipeline(self.logits_params, states, device, ended)
        if self.draft_logits_params is not None:
            if self.draft_logits_params is self.logits_params and pipeline is not None:
                drafting = pipeline.drafting()
            else:
                masks = None if pipeline is None else pipeline.masks
                drafting = LogitsPipeline(self.draft_logits_params, states, device, ended, masks)
        return pipeline, drafting

    def draws(self, chance: Chance, width: int, *, coupled: bool) -> RoundDraws:
        """Make the draws of a round of at most `width` drafted tokens a row."""
        positions = position_keys(self.states) if coupled else None
        return RoundDraws(chance, round_keys(self.states, width), positions)


def _with_limits(draft: SamplingParams, state: SequenceState, vocab_size: int) -> SamplingParams:
    """Return draft parameters that forbid what the request forbids as well.

    Limits of the draft's own are dropped where both together could leave it no token.
    """
    asked = state.params
    allowed, own = asked.allowed_token_ids, draft.allowed_token_ids
    if allowed is None or own is None:
        both = own if allowed is None else allowed
    else:
        both = tuple(set(allowed).intersection(own))
    words = draft.bad_words + asked.bad_words
    banned = {word[-1] for word in words} | (state.stop_ids if asked.min_tokens else set())
    if banned.issuperset(range(vocab_size) if both is None else both):
        words, both = asked.bad_words, allowed
    return replace(draft, bad_words=words, allowed_token_ids=both, min_tokens=asked.min_tokens)
