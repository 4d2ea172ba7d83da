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
from outrider.engine.calibration import ABREAST, DEPTHS
from outrider.policies import AdaptiveDepth
from outrider.types.acceptance import EDGES
from outrider.types.protocols import Policy
from outrider.types.records import DraftPlan, Prefix, RoundRecord, SequenceState

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
        entropies: of their distributions, in nats, [TOKENS, DEEPEST]: one for each class of `EDGES`.
    """

    prompt: int
    kept: NDArray[np.uint8]
    entropies: NDArray[np.float64]


@dataclass(frozen=True)
class Machine:
    """Milliseconds of what rounds do: forwards and steps about as on two cores of a Xeon.

    What reading takes, and how times vary, is made up.

    Attributes:
        forward: of a round of one sequence but for its drafting, with so many tokens drafted.
        row: what each sequence more adds to that where nothing is drafted, ...
        more: ... and each token more, drafted or not, where something is.
        rest: of it, what is not the target's forward.
        first, step: of a draft, and of each of its tokens.
        other, others: what each sequence more adds to them.
        reading, token: of reading on, and of each token that is read.
        noise: standard deviation of the logarithm of what a part of a round takes.
        slow: how likely a part of a round takes longer, by as much again on average.
    """

    forward: Sequence[float] = (16.6, 18.5, 17.8, 22.5, 22.7, 23.1, 23.9, 24.0, 24.5)
    row: float = 1.4
    more: float = 0.63
    rest: float = 1.2
    first: float = 0.5
    step: float = 2.5
    other: float = 0.5
    others: float = 0.1
    reading: float = 3.0
    token: float = 0.03
    noise: float = 0.08
    slow: float = 0.02

    def verifying(self, rows: int, drafted: int) -> float:
        """Of a round but for its drafting, in which so many tokens are drafted in all."""
        if rows == 1:
            return self.forward[drafted]
        if not drafted:
            return self.forward[0] + (rows - 1) * self.row
        return self.forward[1] + (rows + drafted - 2) * self.more

    def drafting(self, rows: int, depth: int, missing: int) -> float:
        """Of drafts for so many sequences, of which so many tokens are to be read before."""
        draft = self.first + self.step * depth + (rows - 1) * (self.other + self.others * depth)
        return draft + (self.reading + self.token * missing) * (missing > 0)


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
    """Plays a policy's rounds of one batch of texts after the other, and adds up what they take."""

    def __init__(self, policy: Policy, machine: Machine, random: int = 0, rows: int = 1) -> None:
        self._policy = policy
        self._machine = machine
        self._rng = np.random.default_rng(random)
        self._rows = rows
        self._read: dict[int, int] = {}
        if not isinstance(policy, AdaptiveDepth):
            return
        nothing = Text(16, np.zeros(TOKENS, np.uint8), np.zeros((TOKENS, DEEPEST)))
        for count, depths in ((1, DEPTHS), (rows, ABREAST)):
            if count == 1 and depths is ABREAST:
                continue
            asked = SamplingParams(max_tokens=100, depths=depths)
            states = [_start(-1 - row, nothing, asked) for row in range(count)]
            self._read.clear()
            for _ in depths:
                states, record = self._round(states, [nothing] * count)
                policy.measure(states, record, reading=count == 1)

    def seconds(self, found: Sequence[Text], temperature: float) -> float:
        """Of all texts, the target's reading of prompts apart."""
        total = 0.0
        for first in range(0, len(found), self._rows):
            params = SamplingParams(max_tokens=TOKENS, temperature=temperature)
            batch = [
                (_start(place, text, params), text)
                for place, text in enumerate(found[first : first + self._rows], first)
            ]
            self._read.clear()
            while batch:
                states, record = self._round(*map(list, zip(*batch, strict=True)))
                self._policy.observe(states, record)
                total += record.total_s
                pairs = zip(states, batch, strict=True)
                batch = [(state, text) for state, (_, text) in pairs if not state.finish_reason]
        return total

    def _round(
        self, states: list[SequenceState], found: list[Text]
    ) -> tuple[list[SequenceState], RoundRecord]:
        plan = self._policy.plan(states)
        places = [
            len(state.prefix) - text.prompt for state, text in zip(states, found, strict=True)
        ]
        depths, ended = self._drafted(plan, found, places)
        rows = range(len(states))
        entropies = [
            tuple(found[row].entropies[places[row], : depths[row]].tolist())
            if plan.keep_going
            else ()
            for row in rows
        ]
        accepted = [min(int(found[row].kept[places[row]]), depths[row]) for row in rows]
        emitted = [min(accepted[row] + 1, states[row].remaining) for row in rows]
        draft = self._took(self._draft(states, depths, accepted)) if any(depths) else 0.0
        whole = self._took(self._machine.verifying(len(states), sum(depths)))
        record = RoundRecord(
            sequence_ids=tuple(state.prefix.sequence_id for state in states),
            drafted=tuple(depths),
            depth=tuple(depths),
            accepted=tuple(accepted),
            emitted=tuple(emitted),
            bonus=tuple(accepted[row] == depths[row] for row in rows),
            ceiling=(None,) * len(states),
            first_ceiling=(None,) * len(states),
            draft_failed=False,
            looked_up=(False,) * len(states),
            ended=tuple(ended),
            entropies=tuple(entropies),
            cached=(0,) * len(states),
            draft_s=draft / 1e3,
            target_s=(whole - self._machine.rest) / 1e3,
            total_s=(draft + whole) / 1e3,
        )
        after = []
        for row, state in enumerate(states):
            known = state.acceptance
            if self._policy.learns and depths[row]:
                known = known.after(depths[row] + ended[row], accepted[row], entropies[row])
            over = "length" if accepted[row] + 1 >= state.remaining else None
            after.append(state.advanced([0] * emitted[row], depths[row], over, known, ()))
        return after, record

    def _drafted(
        self, plan: DraftPlan, found: list[Text], places: list[int]
    ) -> tuple[list[int], list[bool]]:
        """How deep the draft of each row goes, and whether the plan ended it."""
        most = [min(int(depth), DEEPEST) for depth in plan.depth]
        if not plan.keep_going:
            return most, [False] * len(most)
        depths, ended = [min(depth, 1) for depth in most], [False] * len(most)
        for step in range(1, DEEPEST):
            going = np.array([step < deep for deep in most]) & ~np.array(ended)
            if not going.any():
                break
            pairs = zip(found, places, strict=True)
            sure = np.stack([text.entropies[place, :step] for text, place in pairs])
            kept = plan.keep_going(sure, going)
            for row in np.flatnonzero(going).tolist():
                depths[row] += bool(kept[row])
                ended[row] = not kept[row]
        return depths, ended

    def _draft(self, states: list[SequenceState], depths: list[int], accepted: list[int]) -> float:
        """What drafts take, which are read on to where they begin."""
        unread = 0
        for state, depth, kept in zip(states, depths, accepted, strict=True):
            if depth:
                name, length = state.prefix.sequence_id, len(state.prefix)
                missing = length - self._read.get(name, 0)
                unread += missing * (missing > 2)
                self._read[name] = length + min(kept, depth - 1)
        return self._machine.drafting(sum(depth > 0 for depth in depths), max(depths), unread)

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
    from outrider.engine.rounds import no_drafts
    from outrider.types.protocols import DraftContext
    from outrider.types.records import DraftProposal

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
