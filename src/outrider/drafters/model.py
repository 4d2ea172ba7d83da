"""Drafting with a smaller model, token by token, or a tree level by level."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..errors import InvalidConfigError
from ..types.protocols import AutoregressiveModel, DraftContext
from ..types.records import Distributions, DraftPlan, DraftProposal, Prefix
from .some_rows import opened
from .tree import draft_tree


class ModelDrafter:
    """Drafts chains, or trees, by sampling a model of the target's vocabulary.

    Each token is drawn from the distribution that the request's own sampling parameters make of the draft
    model's logits, and that distribution, as drawn from, is what verification sees. Drafted tokens stay on
    the device.

    Args:
        model: any autoregressive model, `TransformersModel` and `TabularModel` among them.
        vocab_size: the target's V, where the two models share a tokenizer but pad their logits to
            different widths: missing ids get no probability, surplus ones are masked before
            sampling. None takes the model's own.

    Raises:
        InvalidConfigError: `model` is no such model.
    """

    def __init__(self, model: AutoregressiveModel, vocab_size: int | None = None) -> None:
        if isinstance(model, type) or not isinstance(model, AutoregressiveModel):
            name = model.__name__ if isinstance(model, type) else type(model).__name__
            expected = "an instance of a model with vocab_size and open, such as TransformersModel"
            raise InvalidConfigError("model", name, expected)
        self.model = model
        self._vocab_size = vocab_size or model.vocab_size

    @property
    def models(self) -> tuple[AutoregressiveModel]:
        """The draft model."""
        return (self.model,)

    @property
    def vocab_size(self) -> int:
        """Width of the draft's distributions, V."""
        return self._vocab_size

    @property
    def ends_early(self) -> bool:
        """Chains end where the plan says so."""
        return True

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """A chain of `plan.depth` tokens for each row, or a tree of that depth.

        A chain is shorter where `plan.keep_going` ends it.
        """
        depth, lengths = plan.deepest, plan.depth
        cursor = opened(self.model, [self._readable(prefix) for prefix in prefixes], lengths)
        if plan.levels is not None:
            return draft_tree(cursor, plan, ctx, self._aligned)
        logits = cursor.logits
        tokens: list[Tensor] = []
        distributions: list[Distributions] = []
        for position in range(depth):
            if position:
                logits = cursor.step(tokens[-1])
            path = torch.stack(tokens, -1)[:, None] if tokens and ctx.shaped else None
            distributions.append(ctx.distribution(self._aligned(logits), path))
            tokens.append(ctx.pick(distributions[-1], position))
            lengths = ctx.settle()
            if (lengths <= len(tokens)).all():
                break
        drafted = torch.stack(tokens, 1)
        # Atoms are picked as they are.
        rows = [
            distribution.probs for distribution in distributions if distribution.probs is not None
        ]
        joint = (
            Distributions(probs=torch.stack(rows, 1))
            if rows
            else Distributions(point_masses=drafted)
        )
        return DraftProposal(drafted, lengths, joint)

    def _readable(self, prefix: Prefix) -> Prefix:
        """The prefix with ids that a narrower draft has no embedding for replaced by its last.

        Any distribution is a lawful draft distribution, so that this costs acceptance at most.
        """
        own = self.model.vocab_size
        if own >= self._vocab_size or prefix.tokens.max(initial=0) < own:
            return prefix
        return Prefix(prefix.sequence_id, np.minimum(prefix.tokens, own - 1))

    def _aligned(self, logits: Tensor) -> Tensor:
        surplus = logits.shape[-1] - self._vocab_size
        return logits if surplus == 0 else pad(logits, (0, -surplus), value=-torch.inf)
