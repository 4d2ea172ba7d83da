"""Decode known texts again, with what drafts would have had kept and on a clock of known costs.

The engine, the drafters that look tokens up and the policy are those that decode; only the target,
the draft model and the clock are recordings. So all depths and policies follow from one record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from .. import ModelDrafter, SamplingParams, SpeculativeConfig, SpeculativeDecoder
from ..drafters.base import Drafter
from ..engine.commit import StepResult
from ..errors import ModelError
from ..runtimes.base import Capabilities, Cursor, Runtime
from ..types.records import MODEL, DraftProposal, Prefix, RoundRecord, SequenceState, TargetScores
from ..types.trees import node_depths
from .costs import Costs
from .records import Prompt
from .texts import Text

_LEAST, _OTHERS = 256, 64
"""Entries of a vocabulary, enough for the entropy of a draft that is not sure at all; and how many
of them are in no text: children of a node that are not kept."""


class Replay(SpeculativeDecoder):
    """Decodes texts again.

    Args:
        texts: what the target wrote, with the draft's record.
        drafter: makes what drafts, of a draft model; None for plain decoding.
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
        drafter: Callable[[ModelDrafter], Drafter | None],
        config: SpeculativeConfig,
        rounds: Costs,
        drawn: Costs | None = None,
        token_ratio: float = 0.02,
    ) -> None:
        self._script = _Script(texts)
        model = _Model(self._script, config, token_ratio)
        super().__init__(model, drafter(ModelDrafter(model)), config=config)
        self._rounds, self._drawn = rounds, drawn or rounds
        self._prefilled: set[int] = set()
        self._seconds = self.model_s = 0.0

    def run(self, batch: int = 1) -> Iterator[tuple[list[Prompt], int, float, float]]:
        """Decode all texts, so many together.

        Yields:
            For each batch its prompts, its tokens, the seconds that plain decoding takes for it
            without the target's prefill, and its own.
        """
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
            yield [text.prompt for text in texts], sum(lengths), plain, self._seconds - before

    def _started(self, text: int) -> SequenceState:
        """Start a text's sequence."""
        prompt, written = self._script.parts(text)
        params = SamplingParams(max_tokens=len(written), temperature=0, ignore_eos=True)
        (state,) = self.start(prompt, params)
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
        seconds = 0.0
        for name, own, source in zip(
            record.sequence_ids, record.depth, record.sources, strict=True
        ):
            if own and source == MODEL and name not in self._prefilled:
                self._prefilled.add(name)
                prompt = self._script.texts[self._script.rows[name]].prefill_s
                seconds += max(0.0, prompt - self._drawn.drafting(1))
        return seconds


class _Script:
    """The texts in a small vocabulary of their own, and which sequence writes which.

    Attributes:
        texts: what was recorded.
        rows: the text of each sequence.
        vocab_size: of all texts, the last of which are in none of them.
    """

    def __init__(self, texts: Sequence[Text]) -> None:
        self.texts = texts
        self.rows: dict[int, int] = {}
        whole = [np.array([*text.prompt.token_ids, *text.token_ids]) for text in texts]
        self._whole = [np.unique(tokens, return_inverse=True)[1] for tokens in whole]
        self.vocab_size = max(
            [_LEAST, *(int(tokens.max()) + 1 + _OTHERS for tokens in self._whole)]
        )

    def parts(self, text: int) -> tuple[list[int], list[int]]:
        """Return the tokens of a text's prompt, and those that were written."""
        tokens, start = self._whole[text].tolist(), len(self.texts[text].prompt.token_ids)
        return tokens[:start], tokens[start:]

    def after(self, prefix: Prefix, count: int) -> list[int]:
        """Return so many tokens that follow a prefix; 0 beyond the text's end."""
        tokens = self._whole[self.rows[prefix.sequence_id]]
        found: list[int] = tokens[prefix.length : prefix.length + count].tolist()
        return found + [0] * (count - len(found))

    def drafted(self, prefix: Prefix, depth: int, *, blocks: bool) -> tuple[list[int], list[float]]:
        """Return what a draft model proposes after a prefix, and its confidence in each token.

        One number, the same for all drafts from here, decides how much is kept.
        """
        text, place = self._place(prefix)
        reach = text.reach(place, depth, blocks=blocks)
        chance = np.random.default_rng([self.rows[prefix.sequence_id], place]).random()
        kept = int((chance < reach).sum())
        tokens = self.after(prefix, kept) + [self.vocab_size - 1] * (depth - kept)
        confidence = text.confidence[place : place + depth]
        return tokens, confidence + [0.5] * (depth - len(confidence))

    def ranks(self, prefix: Prefix, depth: int) -> list[int]:
        """Return which child of its node each of the next tokens is in a draft's tree.

        One number for each token decides it; a token that is kept among few children is so among
        more.
        """
        text, place = self._place(prefix)
        ranks = [_OTHERS] * depth
        for shift, among in enumerate(text.among[place : place + depth]):
            chance = np.random.default_rng([self.rows[prefix.sequence_id], place + shift]).random()
            ranks[shift] = next((n for n, kept in enumerate(among) if chance < kept), _OTHERS)
        return ranks

    def _place(self, prefix: Prefix) -> tuple[Text, int]:
        text = self.texts[self.rows[prefix.sequence_id]]
        return text, prefix.length - len(text.prompt.token_ids)


class _Model(Runtime):
    """Writes the script as a target, and as a draft proposes what was kept of it, and then others.

    Args:
        script: the texts.
        config: how drafts are verified, and whether they are trees.
        token_ratio: see `Runtime`.
    """

    def __init__(self, script: _Script, config: SpeculativeConfig, token_ratio: float) -> None:
        self._script, self._trees, self._ratio = script, config.drafts_trees, token_ratio
        self._blocks = config.verification != "token"

    @property
    def capabilities(self) -> Capabilities:
        """Chains and trees of any size."""
        return Capabilities(self._script.vocab_size, torch.device("cpu"))

    @property
    def token_ratio(self) -> float:
        """What one more token costs; see `Runtime`."""
        return self._ratio

    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        """Return point masses [B, N + 1, V] on the tokens of the script."""
        tokens = torch.tensor([self._script.after(each, proposal.width + 1) for each in prefixes])
        tokens = tokens.gather(1, torch.from_numpy(node_depths(proposal.structure)))
        logits = torch.zeros(*tokens.shape, self._script.vocab_size)
        return TargetScores(logits.scatter_(-1, tokens[..., None], 1.0))

    def open(self, prefixes: Sequence[Prefix], depth: int) -> Cursor:
        """Open a cursor at the end of the prefixes."""
        if self._trees:
            tokens = torch.tensor([self._script.after(each, depth) for each in prefixes])
            ranks = torch.tensor([self._script.ranks(each, depth) for each in prefixes])
            return _Tree(tokens, ranks, self._script.vocab_size)
        drafts = [self._script.drafted(each, depth, blocks=self._blocks) for each in prefixes]
        chains, confidence = zip(*drafts, strict=True)
        return _Chain(torch.tensor(chains), torch.tensor(confidence), self._script.vocab_size)


class _Chain(Cursor):
    """Gives one token after another, in distributions as sure of them as the draft model was."""

    def __init__(self, tokens: Tensor, confidence: Tensor, vocab_size: int) -> None:
        others = _others(confidence, vocab_size)
        logits = (others / (vocab_size - 1)).log()[..., None].expand(*tokens.shape, vocab_size)
        self._logits = logits.scatter(-1, tokens[..., None], torch.log1p(-others)[..., None])
        self._place = 0

    @property
    def logits(self) -> Tensor:
        """Logits [B, V]."""
        return self._logits[:, self._place]

    def step(self, tokens: Tensor) -> Tensor:
        """Go on, whatever was drawn; see `Cursor`."""
        self._place += 1
        return self.logits


class _Tree(Cursor):
    """Ranks a script's token among the children of each node that lies on it.

    Args:
        tokens: of the script, int64 [B, K].
        ranks: of each among its siblings, [B, K].
        vocab_size: V.
    """

    def __init__(self, tokens: Tensor, ranks: Tensor, vocab_size: int) -> None:
        self._tokens, self._ranks, self._depth = tokens, ranks, 0
        self._on = torch.ones(len(tokens), 1, dtype=torch.bool)  # of each node, the prefix first
        self._others = torch.full((vocab_size,), -1e3)
        self._others[-_OTHERS:] = -2.0 * torch.arange(_OTHERS) - 1

    @property
    def logits(self) -> Tensor:
        """Logits [B, V]."""
        return self._ranked(self._on)[:, 0]

    def step(self, tokens: Tensor) -> Tensor:
        """Refuse a chain, as `Cursor.expand` refuses trees."""
        raise ModelError("a recorded tree is fed nodes, and no chain; feed it by expand")

    def expand(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Feed nodes; see `Cursor`."""
        on = self._on.gather(1, parents) & (tokens == self._tokens[:, self._depth, None])
        self._on, self._depth = torch.cat([self._on, on], 1), self._depth + 1
        return self._ranked(on)

    def _ranked(self, on: Tensor) -> Tensor:
        """Return the logits after nodes [B, M] at the present depth."""
        token, rank = self._tokens[:, self._depth], self._ranks[:, self._depth]
        logits = self._others.repeat(*on.shape, 1)
        places = token[:, None, None].expand(*on.shape, 1)
        found = torch.where(on & (rank < _OTHERS)[:, None], -2.0 * rank[:, None], -1e3)
        return logits.scatter(-1, places, found[..., None])


def _others(confidence: Tensor, vocab_size: int) -> Tensor:
    """Return the mass of all tokens but the drafted one that makes a draft so confident.

    Confidence is 1 - sqrt(.2 H) with H the entropy; see `DraftContext`.
    """
    share = np.linspace(1e-9, 0.99, 4096)
    entropy = -share * np.log(share / (vocab_size - 1)) - (1 - share) * np.log1p(-share)
    wanted = (1 - confidence.double().numpy()) ** 2 / 0.2
    return torch.from_numpy(np.interp(wanted, entropy, share))
