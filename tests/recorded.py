"""Texts of the demo pair, of which it is known how much of a draft is kept at every place.

At temperature 0, and with coupled verification above it, what a target writes does not depend on
what is drafted. So all that a depth policy can do with a text is known once a draft was made at
each of its places, and rounds can be played without a model: with times of our own.

`python -m tests.recorded` records them anew, in a few minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outrider import SamplingParams
from outrider.acceptance import EDGES
from outrider.calibration import DEPTHS
from outrider.depth import AdaptiveDepth
from outrider.protocols import DepthPolicy
from outrider.records import Prefix, RoundRecord, SequenceState

FILE = Path(__file__).parent / "data" / "recorded.npz"
KINDS = ("code", "editing", "json", "random")
TEMPERATURES = (0.0, 0.8)
TEXTS = 4
TOKENS = 256
DEEPEST = 8


@dataclass(frozen=True)
class Text:
    """One output.

    Attributes:
        prompt: how many tokens its prompt has.
        kept: how many of the tokens drafted at each place are kept, [TOKENS], DEEPEST at most.
        entropies: of their laws, in nats, [TOKENS, DEEPEST]: one for each class of `EDGES`.
    """

    prompt: int
    kept: NDArray[np.uint8]
    entropies: NDArray[np.float64]


@dataclass(frozen=True)
class Machine:
    """Milliseconds of what rounds do: forwards and steps about as on two cores of a Xeon.

    What reading takes, and how times vary, is made up.

    Attributes:
        forward: of a round but for its drafting, with so many tokens drafted.
        rest: of it, what is not the target's forward.
        first, step: of a draft, and of each of its tokens.
        reading, token: of reading on, and of each token that is read.
        noise: standard deviation of the logarithm of what a part of a round takes.
        slow: how likely a part of a round takes longer, by as much again on average.
    """

    forward: Sequence[float] = (16.6, 18.5, 17.8, 22.5, 22.7, 23.1, 23.9, 24.0, 24.5)
    rest: float = 1.2
    first: float = 0.5
    step: float = 2.5
    reading: float = 3.0
    token: float = 0.03
    noise: float = 0.08
    slow: float = 0.02


def texts(kind: str, temperature: float) -> list[Text]:
    """What was recorded of a kind."""
    with np.load(FILE) as found:
        name = f"{kind}-{temperature:g}"
        prompts, kept, classes = (found[f"{name}-{part}"] for part in ("prompt", "kept", "class"))
    edges = np.array([0.0, *EDGES, EDGES[-1] + 2])
    middle = (edges[1:] + edges[:-1]) / 2
    return [
        Text(int(prompt), own, middle[sure])
        for prompt, own, sure in zip(prompts, kept, classes, strict=True)
    ]


class Player:
    """Plays a policy's rounds of one text after the other, and adds up what they take."""

    def __init__(self, policy: DepthPolicy, machine: Machine, random: int = 0) -> None:
        self._policy = policy
        self._machine = machine
        self._rng = np.random.default_rng(random)
        self._read = 0
        if isinstance(policy, AdaptiveDepth):
            nothing = Text(16, np.zeros(TOKENS, np.uint8), np.zeros((TOKENS, DEEPEST)))
            state = _start(-1, nothing, SamplingParams(max_tokens=100, depths=DEPTHS))
            for _ in DEPTHS:
                state, record = self._round(state, nothing)
                policy.measure([state], record)

    def seconds(self, found: Sequence[Text], temperature: float) -> float:
        """Of all texts, the target's reading of prompts apart."""
        total = 0.0
        for place, text in enumerate(found):
            params = SamplingParams(max_tokens=TOKENS, temperature=temperature)
            state, self._read = _start(place, text, params), 0
            while state.finish_reason is None:
                state, record = self._round(state, text)
                self._policy.observe([state], record)
                total += record.total_s
        return total

    def _round(self, state: SequenceState, text: Text) -> tuple[SequenceState, RoundRecord]:
        place, length = len(state.prefix) - text.prompt, len(state.prefix)
        plan = self._policy.plan([state])
        most = min(int(plan.depth[0]), DEEPEST)
        depth, ended = (1 if plan.keep_going and most else most), False
        while plan.keep_going and 0 < depth < most and not ended:
            sure = text.entropies[place : place + 1, :depth]
            ended = not plan.keep_going(sure, np.array([True]))[0]
            depth += not ended
        entropies = tuple(text.entropies[place, :depth].tolist()) if plan.keep_going else ()
        accepted = min(int(text.kept[place]), depth)
        emitted = min(accepted + 1, state.remaining)
        draft = 0.0
        if depth:
            missing = length - self._read
            draft = self._machine.first + self._machine.step * depth
            draft += (self._machine.reading + self._machine.token * missing) * (missing > 2)
            draft, self._read = self._took(draft), length + min(accepted, depth - 1)
        whole = self._took(self._machine.forward[depth])
        known = state.acceptance
        if self._policy.learns and depth:
            known = known.after(depth + ended, accepted, entropies)
        over = "length" if accepted + 1 >= state.remaining else None
        record = RoundRecord(
            sequence_ids=(state.prefix.sequence_id,),
            drafted=(depth,),
            depth=(depth,),
            accepted=(accepted,),
            emitted=(emitted,),
            bonus=(accepted == depth,),
            ceiling=(None,),
            first_ceiling=(None,),
            draft_failed=False,
            looked_up=(False,),
            ended=(ended,),
            entropies=(entropies,),
            cached=(0,),
            draft_s=draft / 1e3,
            target_s=(whole - self._machine.rest) / 1e3,
            total_s=(draft + whole) / 1e3,
        )
        return state.advanced([0] * emitted, depth, over, known, ()), record

    def _took(self, usual: float) -> float:
        slow = self._rng.random() < self._machine.slow
        noise = np.exp(self._machine.noise * self._rng.standard_normal())
        return float(usual * (noise + slow * self._rng.exponential()))


def _start(place: int, text: Text, params: SamplingParams) -> SequenceState:
    prefix = Prefix(place, range(text.prompt))
    return SequenceState(prefix, text.prompt, params, frozenset(), place)


def _record() -> None:
    """Write the file: a draft at every place, of which nothing is used."""
    import outrider
    from outrider import ModelDrafter, SpeculativeConfig, SpeculativeDecoder
    from outrider.bench.workload import built_in
    from outrider.protocols import DraftContext
    from outrider.records import DraftPlan, DraftProposal
    from outrider.rounds import no_drafts

    class Always:
        learns = False

        def plan(self, states: Sequence[SequenceState]) -> DraftPlan:
            depth = [min(DEEPEST, max(0, state.remaining - 1)) for state in states]
            return DraftPlan(np.array(depth), keep_going=lambda _, drafting: drafting)

        def observe(self, states: Sequence[SequenceState], record: RoundRecord) -> None:
            pass

    class Unused(ModelDrafter):
        """Proposes nothing of what it drafted, so that every round emits one token."""

        drafts: dict[tuple[int, int], tuple[list[int], tuple[float, ...]]]

        def propose(
            self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
        ) -> DraftProposal:
            made = super().propose(prefixes, plan, ctx)
            for row, prefix in enumerate(prefixes):
                key = prefix.sequence_id, len(prefix)
                self.drafts[key] = made.tokens[row].tolist(), ctx.told.entropies[row]
            return no_drafts(len(prefixes), made.tokens.device)

    pair = outrider.load("demo", device="cpu", dtype="float32", max_sequences=TEXTS)
    drafting = pair.model_drafter
    assert isinstance(drafting, ModelDrafter)
    arrays = {}
    for workload in built_in(KINDS, pair.tokenizer, pair.target.vocab_size, TEXTS):
        for temperature in TEMPERATURES:
            drafter = Unused(drafting.model, drafting.vocab_size)
            drafter.drafts = {}
            verification = "coupled" if temperature else "block"
            config = SpeculativeConfig(verification=verification)
            decoder = SpeculativeDecoder(pair.target, drafter, config=config, policy=Always())
            prompts = [list(prompt.token_ids) for prompt in workload.prompts]
            params = SamplingParams(
                max_tokens=TOKENS + 2 * DEEPEST,
                temperature=temperature,
                seed=0 if temperature else None,
                ignore_eos=True,
            )
            outputs = decoder.generate(prompts, params)
            ids = sorted({sequence for sequence, _ in drafter.drafts})
            kept = np.zeros((TEXTS, TOKENS), np.uint8)
            classes = np.zeros((TEXTS, TOKENS, DEEPEST), np.uint8)
            for row, (sequence, prompt, output) in enumerate(
                zip(ids, prompts, outputs, strict=True)
            ):
                for place in range(TOKENS):
                    tokens, entropies = drafter.drafts[sequence, len(prompt) + place]
                    real = output.token_ids[place : place + DEEPEST]
                    same = [one == other for one, other in zip(tokens, real, strict=True)]
                    kept[row, place] = [*same, False].index(False)
                    classes[row, place] = np.digitize(entropies, EDGES)
            name = f"{workload.name}-{temperature:g}"
            arrays[f"{name}-prompt"] = np.array([len(prompt) for prompt in prompts])
            arrays[f"{name}-kept"], arrays[f"{name}-class"] = kept, classes
    FILE.parent.mkdir(exist_ok=True)
    np.savez_compressed(FILE, **arrays)


if __name__ == "__main__":
    _record()
