"""What is known of the target: log-probabilities of texts, by a server or a model of yours."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from .client import Endpoint, EndpointError, RefusedError, id_in
from .records import Cells, Tokens, listed

if TYPE_CHECKING:
    from ...runtimes.base import Runtime

_TRIES = 3

_ROUND = 5
"""Tokens of one forward when a text is scored again: as many as a round of speculation has."""


class Reference(ABC):
    """Scores texts.

    Attributes:
        name: what it is.
        listed: how many tokens a listing has at most; None for all.
    """

    name: str
    listed: int | None

    @abstractmethod
    def score(self, prompt: Tokens, tokens: Tokens) -> list[Cells]:
        """Return the distribution before each token of a text.

        Raises:
            EndpointError: a server does not say.
        """

    @abstractmethod
    def again(self, prompt: Tokens, tokens: Tokens) -> list[Cells]:
        """Return them as computed in other company, which shows what rounding does."""


class ModelReference(Reference):
    """A model of one's own, on any runtime.

    Args:
        model: the same model as the server's.
        name: its name.
    """

    listed = None

    def __init__(self, model: Runtime, name: str) -> None:
        self.name = name
        self._model = model
        self._names = iter(range(1, 2**31))

    def score(self, prompt: Tokens, tokens: Tokens) -> list[Cells]:
        """Compute a text in one forward, or a few."""
        return list(self._rounds(prompt, tokens, max(1, len(tokens))))

    def again(self, prompt: Tokens, tokens: Tokens) -> list[Cells]:
        """Compute a text in rounds of a few tokens."""
        return list(self._rounds(prompt, tokens, _ROUND))

    def _rounds(self, prompt: Tokens, tokens: Tokens, most: int) -> Iterator[Cells]:
        import torch

        from ...types.records import Distributions, DraftProposal, Prefix

        name = next(self._names)
        for begin in range(0, len(tokens), most):
            drafted = tokens[begin : min(begin + most, len(tokens)) - 1]
            part = torch.tensor([drafted], dtype=torch.int64)
            part = part.to(self._model.device)
            drafts = DraftProposal(
                part, np.array([part.shape[1]]), Distributions(point_masses=part)
            )
            scores = self._model.verify([Prefix(name, (*prompt, *tokens[:begin]))], drafts)
            logits = scores.logits[0].double()
            rows, sums = logits.softmax(-1).cpu().numpy(), logits.logsumexp(-1).tolist()
            ids, rows = np.arange(rows.shape[1]), np.pad(rows, ((0, 0), (0, 1)))
            yield from (Cells(ids, *each) for each in zip(rows, sums, strict=True))
        self._model.release([name])


class EndpointReference(Reference):
    """A server of the same model without speculation, or the one that is certified itself.

    It gives the log-probabilities of a prompt's tokens in one request, as vLLM does, or else is
    asked for one token after each prefix.

    Args:
        endpoint: connected.
        most: how many likeliest tokens are asked for.
        concurrency: how many requests are sent at once.

    Raises:
        EndpointError: it gives neither.
    """

    def __init__(self, endpoint: Endpoint, most: int = 20, concurrency: int = 8) -> None:
        self.name = f"{endpoint.model} at {endpoint.url}"
        self._endpoint = endpoint
        self._concurrency = concurrency
        self.listed, self._prefills = most, True
        for self.listed in (most, 10, 5):
            with suppress(RefusedError):
                if self._after((1, 1)).most < 1:  # as many as were asked for
                    break
        else:
            raise EndpointError(
                f"{self.name} gives no log-probabilities of likeliest tokens by id, which a "
                "reference needs; take --reference-model, or a server that does"
            )
        try:
            self.score((1, 1), (1,))
        except RefusedError:
            self._prefills = False

    def score(self, prompt: Tokens, tokens: Tokens) -> list[Cells]:
        """Ask for the log-probabilities of a text as of a prompt, or step by step."""
        if not self._prefills:
            with ThreadPoolExecutor(self._concurrency) as pool:
                return list(pool.map(self._after, _prefixes(prompt, tokens)))
        choice = self._endpoint.first((*prompt, *tokens), prompt_logprobs=self.listed)
        given = choice.get("prompt_logprobs")
        if given is None:
            raise RefusedError(f"{self.name} gives no log-probabilities of prompts")
        return [
            self._listing({int(token): each["logprob"] for token, each in row.items()})
            for row in given[len(prompt) : len(prompt) + len(tokens)]
        ]

    def again(self, prompt: Tokens, tokens: Tokens) -> list[Cells]:
        """Ask for one token after each prefix, one request after another."""
        return [self._after(prefix) for prefix in _prefixes(prompt, tokens)]

    def _after(self, prefix: Tokens) -> Cells:
        """Ask for one token; an empty listing if nothing is said of others.

        llama.cpp says nothing where the token that it draws is an end, or a part of a letter.
        """
        found = self._asked(prefix)
        for _ in range(_TRIES):
            if len(found.ids):
                break
            found = self._asked(prefix)
        return found

    def _asked(self, prefix: Tokens) -> Cells:
        asked = {"logprobs": self.listed, "return_tokens_as_token_ids": True, "ignore_eos": True}
        choice = self._endpoint.first(prefix, **asked)
        logprobs: Mapping[str, Any] = choice.get("logprobs") or {}
        found: dict[int | None, float]
        if logprobs.get("content"):
            tops = logprobs["content"][0].get("top_logprobs") or ()
            found = {each.get("id"): each["logprob"] for each in tops}
        else:
            named = (logprobs.get("top_logprobs") or [None])[0] or {}
            found = {id_in(name): logprob for name, logprob in named.items()}
        ids = {token: value for token, value in found.items() if token is not None}
        if len(ids) < len(found):
            raise RefusedError(f"{self.name} gives no log-probabilities of likeliest tokens by id")
        return self._listing(ids)

    def _listing(self, given: Mapping[int, float | None]) -> Cells:
        """Return the likeliest tokens, which may not depend on what is drawn.

        Servers add the token that was drawn. Of several that are as likely as the last one that is
        listed, some are left out, but for a drawn one; all are left out here. JSON has no number
        for an impossible token.
        """
        logprobs = {token: value for token, value in given.items() if value is not None}
        order = sorted(logprobs, key=lambda token: (-logprobs[token], token))
        most = 1.0
        if self.listed is not None and len(order) >= self.listed:
            least = logprobs[order[self.listed - 1]]
            order = [token for token in order if logprobs[token] > least]
            most = math.exp(least)
        ids = np.array(order, dtype=np.int64)
        return listed(ids, np.exp([logprobs[token] for token in order]), most=most)


def _prefixes(prompt: Tokens, tokens: Tokens) -> list[Tokens]:
    return [(*prompt, *tokens[:length]) for length in range(len(tokens))]
