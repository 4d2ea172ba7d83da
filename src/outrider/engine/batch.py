"""Sequences decoded together, and what a round made of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..config.params import SamplingParams
from ..random.chance import Noise, RoundDraws, Uniforms, position_keys, round_keys
from ..sampling.distributions import PackedParams
from ..sampling.logprobs import Report
from ..sampling.shaping import Shaper, Shaping
from ..types.protocols import Chance
from ..types.records import RoundRecord, SequenceState
from ..types.transfer import sent
from .outputs import Origin

_NOISE_ROWS = 32
"""Uniforms are made ahead for this many rows of rounds: 32 rounds of one sequence, 4 of eight."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences decoded together, with what depends on the batch alone and not on its round.

    Attributes:
        states: the sequences.
        params: their sampling parameters, packed for the device.
        device: where their distributions live.
        shaping: what they do to logits; None for nothing.
        drafting: the parameters that chains are drafted under.
        ranking: those that trees are drafted under: those of greedy rows, whose likeliest tokens
            are proposed, in plain form.
        outright: rows whose likeliest tokens are proposed.
        draft_shaping: what is done to the draft's logits; None for nothing.
        noise: uniforms of their next rounds; None before the first that draws.
    """

    states: tuple[SequenceState, ...]
    params: PackedParams
    device: torch.device
    shaping: Shaping | None
    drafting: PackedParams
    ranking: PackedParams
    outright: tuple[bool, ...]
    draft_shaping: Shaping | None
    noise: Noise | None = None

    @staticmethod
    def of(
        states: tuple[SequenceState, ...],
        vocab_size: int,
        device: torch.device,
        draft_params: SamplingParams | None = None,
    ) -> Batch:
        """Pack the parameters of sequences over `vocab_size` tokens for `device`.

        Args:
            states: the sequences.
            vocab_size: V.
            device: of their distributions.
            draft_params: takes the place of their own where they are drafted.
        """
        params = [state.params for state in states]
        packed = drafting = PackedParams.pack(params, vocab_size, device)
        shaping = draft_shaping = Shaping.pack(states, device)
        if draft_params is not None:
            greedily = replace(draft_params, temperature=0)
            params = [greedily if asked.greedy else draft_params for asked in params]
            drafting = PackedParams.pack(params, vocab_size, device)
            drafted = [
                replace(state, params=asked, processors=())
                for state, asked in zip(states, params, strict=True)
            ]
            draft_shaping = Shaping.pack(drafted, device)
        ranking = drafting
        outright = tuple(asked.greedy for asked in params)
        if any(outright):
            plain = [SamplingParams() if asked.greedy else asked for asked in params]
            ranking = PackedParams.pack(plain, vocab_size, device)
        return Batch(states, packed, device, shaping, drafting, ranking, outright, draft_shaping)

    def shapers(self, vocab_size: int, *, everywhere: bool) -> tuple[Shaper | None, Shaper | None]:
        """What does to a round's logits what is asked: to the target's, and to the draft's.

        Args:
            vocab_size: V.
            everywhere: whether tokens that are forbidden may be kept.
        """
        states, device = self.states, self.device
        shaper = drafting = None
        if self.shaping is not None:
            shaper = Shaper(self.shaping, states, vocab_size, device, None, everywhere)
        if self.draft_shaping is not None:
            if self.draft_shaping is self.shaping and shaper is not None:
                drafting = shaper.drafting()
            else:
                masks = None if shaper is None else shaper.masks
                drafting = Shaper(self.draft_shaping, states, vocab_size, device, masks)
        return shaper, drafting

    def next_noise(self, make: Uniforms | None, width: int) -> Noise | None:
        """The noise with one more round taken, made anew by `make` if it does not reach that far.

        None where nothing is drawn, or where draws are asked for one by one.
        """
        if make is None or self.params.all_greedy:
            return None
        if self.noise is not None and self.noise.covers(width):
            return Noise(self.noise.uniforms, self.noise.used + 1)
        rounds = max(1, _NOISE_ROWS // len(self.states))
        uniforms = torch.from_numpy(make(round_keys(self.states, width, rounds)))
        return Noise(sent(uniforms, self.device), 1)

    def draws(
        self, chance: Chance, width: int, noise: Noise | None, *, coupled: bool
    ) -> RoundDraws:
        """The draws of a round: from noise made ahead, or key by key."""
        if noise is not None:
            return RoundDraws(chance, None, noise.uniforms[noise.used - 1])
        if self.params.all_greedy:
            return RoundDraws(chance, None, None)
        positions = position_keys(self.states) if coupled else None
        return RoundDraws(chance, round_keys(self.states, width)[0], None, positions)


@dataclass(frozen=True, slots=True)
class Step:
    """What a round made of a batch.

    Attributes:
        batch: the sequences after it, finished ones included.
        emitted: the tokens each emitted.
        record: what it did and where its time went.
        logprobs: of the tokens each emitted, for those that ask; empty for the others.
    """

    batch: Batch
    emitted: tuple[list[int], ...]
    record: RoundRecord
    logprobs: tuple[Report, ...]

    def origin(self, row: int, index: int) -> Origin:
        """Where the `index`-th token that a row emitted came from."""
        if index < self.record.accepted[row]:
            return "draft"
        return "bonus" if self.record.bonus[row] else "correction"
