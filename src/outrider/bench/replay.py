"""Decode known texts again, with what drafts would have had kept and on a clock of known costs.

The engine, the drafters that look tokens up and the policy are those that decode; only the target,
the draft model and the clock are recordings. So all depths and policies follow from one record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import one_hot

from .. import SamplingParams, SpeculativeConfig, SpeculativeDecoder, SuffixDrafter
from ..drafters.base import DraftContext, Drafter, nothing_drafted
from ..engine.commit import StepResult
from ..engine.methods import make_drafter
from ..runtimes.base import Capabilities, Runtime
from ..types.records import (
    MODEL,
    Distributions,
    DraftPlan,
    DraftProposal,
    Prefix,
    RoundRecord,
    SequenceState,
    TargetScores,
)
from ..types.trees import node_depths
from .costs import Costs
from .speedup import Stretch
from .texts import Text


class Replay(SpeculativeDecoder):
    """Decodes texts again.

    Args:
        texts: what the target wrote at one temperature, with the draft's record.
        method: what drafts; see `make_drafter`.
        config: how speculation is done.
        rounds: the costs of rounds without a draft model.
        drawn: those with one.
        token_ratio: of the target; see `Runtime`.

    Attributes:
        model_s: the part of all seconds that the draft model takes.
    """

    def __init__(
        self,
        texts: Sequence[Text],
        method: str,
        config: SpeculativeConfig,
        rounds: Costs,
        drawn: Costs | None = None,
        token_ratio: float = 0.02,
    ) -> None:
        self._script = _Script(texts, token_ratio)
        model = _Model(self._script, blocks=config.verification != "token")
        suffix = SuffixDrafter(max_pool_tokens=0)
        drafter = make_drafter(method, self._script, model, suffix=suffix)
        super().__init__(self._script, drafter, config=config)
        self._rounds, self._drawn = rounds, drawn or rounds
        self._prefilled: set[int] = set()
        self._seconds = self.model_s = 0.0

    def run(self, batch: int = 1) -> Iterator[Stretch]:
        """Decode all texts, so many together; plain decoding is timed without the prefill, too."""
        for first in range(0, len(self._script.texts), batch):
            texts = self._script.texts[first : first + batch]
            before = self._seconds
            live = [self._started(first + place) for place in range(len(texts))]
            while live:
                after = self.step(self.pack(live)).batch.states
                self.release(state for state in after if state.finish_reason)
                live = [state for state in after if not state.finish_reason]
            lengths = [len(text.token_ids) for text in texts]
            plain = self._rounds.plain * (max(lengths) - 1)
            prompts = [text.prompt for text in texts]
            taken = self._seconds - before
            yield Stretch.of(texts[0].temperature, prompts, sum(lengths), plain, taken)

    def _started(self, text: int) -> SequenceState:
        written = len(self._script.texts[text].token_ids)
        params = SamplingParams(max_tokens=written, temperature=0, ignore_eos=True)
        (state,) = self.start(self._script.whole[text][:-written].tolist(), params)
        self._script.rows[state.prefix.sequence_id] = text
        return state

    def observe(self, result: StepResult) -> None:
        """Put the round on the clock before anything is learnt of it."""
        record = result.record
        first = result.batch.states[0].round == 1
        depths = zip(record.depth, record.sources, strict=True)
        depth = max((own for own, source in depths if source == MODEL), default=0)
        drafting = record.draft_s
        if depth:
            drafting = self._drawn.drafting(depth) + self._prefill(record)
            self.model_s += drafting
        costs = self._drawn if depth else self._rounds
        rest = costs.verifying(max(record.drafted))
        total = record.plan_s + drafting + rest
        super().observe(replace(result, record=replace(record, draft_s=drafting, total_s=total)))
        # The target's prefill verifies the first draft.
        self._seconds += total + self._between_s - rest * first

    def _prefill(self, record: RoundRecord) -> float:
        """Return what the draft model takes for the prompts of rows that it drafts at first."""
        rows = zip(record.sequence_ids, record.depth, record.sources, strict=True)
        drawn = {name for name, own, source in rows if own and source == MODEL}
        texts = [self._script.texts[self._script.rows[name]] for name in drawn - self._prefilled]
        self._prefilled |= drawn
        return sum(max(0.0, text.prefill_s - self._drawn.drafting(1)) for text in texts)


class _Script(Runtime):
    """A target that writes the texts, in a small vocabulary of their own.

    Attributes:
        texts: what was recorded.
        whole: the tokens of each, those of its prompt first, int64 [n].
        rows: the text of each sequence.
        other: the last token of the vocabulary, which is in no text.
    """

    def __init__(self, texts: Sequence[Text], token_ratio: float) -> None:
        self.texts = texts
        self.rows: dict[int, int] = {}
        self._token_ratio = token_ratio
        whole = [np.array([*text.prompt.token_ids, *text.token_ids]) for text in texts]
        self.whole = [np.unique(tokens, return_inverse=True)[1] for tokens in whole]
        self.other = 1 + max(int(tokens.max()) for tokens in self.whole)

    @property
    def capabilities(self) -> Capabilities:
        """Chains and trees of any size."""
        return Capabilities(self.other + 1, torch.device("cpu"))

    @property
    def token_ratio(self) -> float:
        """What one more token costs; see `Runtime`."""
        return self._token_ratio

    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        """Return point masses [B, N + 1, V] on the tokens of the script."""
        depths = node_depths(proposal.structure)
        after = np.array([self.after(each, proposal.width + 1) for each in prefixes])
        tokens = torch.from_numpy(np.take_along_axis(after, depths, 1))
        return TargetScores(one_hot(tokens, self.vocab_size).float())

    def after(self, prefix: Prefix, count: int) -> NDArray[np.int64]:
        """Return so many tokens that follow a prefix; 0 beyond the text's end."""
        tokens = self.whole[self.rows[prefix.sequence_id]][prefix.length :][:count]
        return np.pad(tokens, (0, count - len(tokens)))

    def draw(self, prefix: Prefix, further: int = 0) -> tuple[Text, int, float]:
        """Return the text of a prefix, a place from its end on, and what is drawn there."""
        row = self.rows[prefix.sequence_id]
        text = self.texts[row]
        place = prefix.length - len(text.prompt.token_ids) + further
        return text, place, np.random.default_rng([row, place]).random()


class _Model(Drafter):
    """Drafts what was kept of a draft model's tokens, and another token where none was.

    One number, the same for all drafts from a place of a text, decides how much of a chain is kept,
    and one for each place where among its siblings a token of a tree is.

    Args:
        script: the texts.
        blocks: whether chains are verified as blocks.
    """

    def __init__(self, script: _Script, *, blocks: bool) -> None:
        self._script, self._blocks = script, blocks

    @property
    def vocab_size(self) -> int:
        """The target's."""
        return self._script.vocab_size

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """Propose trees, or chains that end by the plan's stop rule."""
        depth = plan.model_depth
        if not depth.any():
            return nothing_drafted(len(prefixes), ctx.device)
        if plan.tree is not None:
            return self._trees(prefixes, plan)
        deepest = int(depth.max())
        tokens = np.full((len(prefixes), deepest), self._script.other)
        confidence = np.full(tokens.shape, 0.5)
        for row, prefix in enumerate(prefixes):
            text, place, chance = self._script.draw(prefix)
            kept = int((chance < text.reach(place, deepest, blocks=self._blocks)).sum())
            tokens[row, :kept] = self._script.after(prefix, kept)
            known = text.confidence[place : place + deepest]
            confidence[row, : len(known)] = known
        ctx.limit_depths(depth)
        for position, column in enumerate(tokens.T):
            ctx.distribution(one_hot(torch.from_numpy(column), self.vocab_size).float())
            depth = ctx.depths(torch.from_numpy(confidence[:, position]))
            if (depth <= position + 1).all():
                break
        drafted = torch.from_numpy(tokens[:, : depth.max()])
        return DraftProposal(drafted, depth, Distributions(point_masses=drafted))

    def _trees(self, prefixes: Sequence[Prefix], plan: DraftPlan) -> DraftProposal:
        """Propose trees whose nodes have as many children at each depth as the plan says."""
        assert plan.tree is not None
        assert plan.tree.children is not None
        levels, nodes = list[NDArray[np.int64]](), np.zeros(1, dtype=np.int64)
        for children in plan.tree.children[: plan.deepest]:
            levels.append(np.repeat(nodes, children))
            nodes = nodes[-1] + 1 + np.arange(len(levels[-1]))
        parents = np.concatenate(levels)
        tokens = np.full((len(prefixes), len(parents)), self._script.other)
        for row, prefix in enumerate(prefixes):
            node = 0
            for level, token in enumerate(self._script.after(prefix, int(plan.depth[row]))):
                siblings = np.flatnonzero(parents == node)
                text, place, chance = self._script.draw(prefix, level)
                refused = sum(among <= chance for among in text.among[place])
                if refused >= len(siblings):
                    break
                node = int(siblings[refused]) + 1
                tokens[row, node - 1] = token
        drafted = torch.from_numpy(tokens)
        made = Distributions(point_masses=drafted)
        return DraftProposal(drafted, plan.lengths, made, np.tile(parents, (len(prefixes), 1)))
