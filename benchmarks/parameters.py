"""What each sampling parameter adds to a round, with models that answer from memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from string import ascii_letters
from time import perf_counter
from typing import Any

import tokenizers
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import outrider_demo as demo
from outrider import (
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    StatefulProcessor,
    StructuredOutput,
)
from outrider.engine.batch import Batch
from outrider.types.records import DraftProposal, Prefix, TargetScores

from .report import Report, Spread, add_row, columns

DEPTH, PROMPT_TOKENS = 4, 1000
VOCABULARIES, BATCHES = (32_000, 128_256), (1, 8)
_SKIPPED = 2
_PLAIN = "none of them"

_SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
        "required": ["name", "size"],
    },
    "minItems": 9,
}

_Cells = dict[tuple[str, int, int], Spread]
"""By parameter, vocabulary and batch size."""


def run(rounds: int) -> Report:
    """Time `rounds` rounds with each parameter, at each vocabulary and batch size.

    Forms are asked for with the demo pair's tokenizer, and at its vocabulary alone.
    """
    added: _Cells = {}
    whole: _Cells = {}
    tokenizer = demo.tokenizer()
    regimes = [(tokenizer, len(tokenizer), _forms())]
    regimes += [(_tokenizer(size), size, _parameters(size)) for size in VOCABULARIES]
    for (words, vocab_size, asked), rows in product(regimes, BATCHES):
        for name, times in _timed(words, vocab_size, asked, rows, rounds).items():
            cell = (name, vocab_size, rows)
            whole[cell] = Spread.of(times[_PLAIN])
            pairs = zip(times[name], times[_PLAIN], strict=True)
            added[cell] = Spread.of([own - plain for own, plain in pairs])
    return _report(added, whole, rounds, len(tokenizer))


@dataclass(frozen=True, slots=True)
class _Cursor:
    """The drafter in the middle of a round: the next of its rows each time it is fed."""

    rows: Tensor
    at: list[int]

    @property
    def logits(self) -> Tensor:
        return self.rows[:, self.at[0]]

    def step(self, tokens: Tensor) -> Tensor:
        self.at[0] += 1
        return self.logits[: len(tokens)]

    def expand(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """The same logits after each of the nodes [B, M]."""
        return self.step(tokens)[:, None].expand(-1, parents.shape[1], -1)


class _Remembered:
    """A target, or a draft, whose logits [B, k + 1, V] are the same in every round.

    A token's logit falls with the logarithm of its rank, so that 0.9 of the mass lies on few
    tokens, as in real models.
    """

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits

    @property
    def vocab_size(self) -> int:
        return self._logits.shape[-1]

    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        return TargetScores(self._logits[: len(prefixes), : proposal.width + 1])

    def open(self, prefixes: Sequence[Prefix], depth: int) -> _Cursor:
        return _Cursor(self._logits[: len(prefixes), :depth], [0])

    @staticmethod
    def pair(rows: int, vocab_size: int) -> tuple[_Remembered, _Remembered]:
        """A target and a draft that resembles it."""
        drawn = torch.Generator().manual_seed(0)
        falling = -1.5 * torch.arange(1, vocab_size + 1, dtype=torch.float32).log()
        ranks = torch.rand(rows, DEPTH + 1, vocab_size, generator=drawn).argsort(-1)
        target = falling[ranks]
        noise = torch.randn(target.shape, generator=drawn)
        return _Remembered(target), _Remembered(target + 0.5 * noise)


def _tokenizer(vocab_size: int) -> Any:
    """A byte-level tokenizer whose tokens are words of three letters, or four."""
    words = ("".join(word) for n in (3, 4) for word in product(ascii_letters, repeat=n))
    vocab = {word: index for index, word in zip(range(vocab_size), words, strict=False)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    backend.decoder = tokenizers.decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


class _Leaning:
    """A processor that remembers: it adds what it has seen of logits, decaying."""

    def __init__(self, vocab_size: int) -> None:
        self._memory = torch.zeros(vocab_size)

    def __call__(self, _: Tensor, logits: Tensor) -> Tensor:
        self._memory = 0.9 * self._memory + 0.01 * logits
        return logits + self._memory


def _forms() -> dict[str, dict[str, Any]]:
    """Structured output, beside none of it."""
    return {
        _PLAIN: {},
        "structured_output, a JSON schema": {
            "structured_output": StructuredOutput(json_schema=_SCHEMA)
        },
        "structured_output, a regex": {"structured_output": StructuredOutput(regex="[a-z ]*")},
    }


def _parameters(vocab_size: int) -> dict[str, dict[str, Any]]:
    """What is asked for beside a temperature; none of it ends a request."""
    drawn = torch.Generator().manual_seed(1)
    tokens = torch.randperm(vocab_size, generator=drawn).tolist()
    words = [tuple(tokens[3 * i : 3 * i + 1 + i % 3]) for i in range(100)]
    vector = torch.randn(vocab_size, generator=drawn)

    def processor(_: Tensor, logits: Tensor) -> Tensor:
        return logits + vector

    return {
        _PLAIN: {},
        "repetition_penalty": {"repetition_penalty": 1.2},
        "presence_penalty": {"presence_penalty": 0.5},
        "frequency_penalty": {"frequency_penalty": 0.5},
        "logit_bias, 50 tokens": {"logit_bias": dict.fromkeys(tokens[:50], 1.5)},
        "bad_words, 100 of 1-3 tokens": {"bad_words": tuple(words)},
        "min_tokens, 2 stop tokens": {"min_tokens": 10**6, "stop_token_ids": tuple(tokens[:2])},
        "stop, 3 strings": {"stop": ("\n\n", "</s>", "### ")},
        "logprobs, 5": {"logprobs": 5},
        "a processor that adds [V]": {"logits_processors": (processor,)},
        "a StatefulProcessor of [V]": {
            "logits_processors": (StatefulProcessor(_Leaning(vocab_size)),)
        },
        "top_k, 50": {"top_k": 50},
        "top_p, 0.9": {"top_p": 0.9},
        "min_p, 0.05": {"min_p": 0.05},
    }


def _timed(
    tokenizer: Any, vocab_size: int, asked: dict[str, dict[str, Any]], rows: int, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Seconds of each round with each parameter, beside those of the same round without.

    Rounds with and without alternate, one parameter after the other, and which comes first does.
    A batch of which a sequence has ended, its text being whole, starts anew.
    """
    target, draft = _Remembered.pair(rows, vocab_size)
    decoder = SpeculativeDecoder(
        target,
        draft,
        tokenizer=tokenizer,
        config=SpeculativeConfig(depth="fixed", num_speculative_tokens=DEPTH),
    )
    prompt = [(17 * i) % vocab_size for i in range(PROMPT_TOKENS)]
    batches = {name: _batch(decoder, prompt, rows, own) for name, own in asked.items()}
    times: dict[str, dict[str, list[float]]] = {
        name: {name: [], _PLAIN: []} for name in batches if name != _PLAIN
    }
    for index in range(_SKIPPED + rounds):
        for name, found in times.items():
            pair = (name, _PLAIN) if index % 2 else (_PLAIN, name)
            for which in pair:
                start = perf_counter()
                step = decoder.step(batches[which])
                seconds = perf_counter() - start
                batches[which] = step.batch
                if any(state.finish_reason for state in step.batch.states):
                    batches[which] = _batch(decoder, prompt, rows, asked[which])
                if index >= _SKIPPED:
                    found[which].append(seconds)
    return times


def _batch(
    decoder: SpeculativeDecoder, prompt: list[int], rows: int, asked: dict[str, Any]
) -> Batch:
    states = [
        decoder.start(prompt, SamplingParams(temperature=0.8, max_tokens=10**6, seed=row, **asked))
        for row in range(rows)
    ]
    return decoder.pack([state for (state,) in states])


def _report(
    added: dict[tuple[str, int, int], Spread],
    whole: dict[tuple[str, int, int], Spread],
    rounds: int,
    of_forms: int,
) -> Report:
    cells = list(product(VOCABULARIES, BATCHES))
    table = columns(
        "added to a round, milliseconds: median (and quartiles)",
        "",
        *(f"V {vocab_size:,}, batch {rows}" for vocab_size, rows in cells),
    )
    names = list(dict.fromkeys(name for name, size, _ in added if size != of_forms))
    add_row(table, "a round without", *(f"{whole[names[0], *cell].median:.2f}" for cell in cells))
    for name in names:
        add_row(table, name, *(str(added[name, *cell]) for cell in cells))
    table.caption_justify = "left"
    table.caption = "\n".join(
        f"{name}, V {size:,}, batch {rows}: {spread} to {whole[name, size, rows].median:.2f}"
        for (name, size, rows), spread in added.items()
        if size == of_forms
    )
    figures = [
        {
            "parameter": name,
            "vocab_size": vocab_size,
            "batch": rows,
            "added": spread.figures(),
            "round_without": whole[name, vocab_size, rows].figures(),
        }
        for (name, vocab_size, rows), spread in added.items()
    ]
    regime = (
        f"models that answer from memory, float32, CPU, chains of k = {DEPTH}, temperature 0.8, "
        f"block verification, prompt of {PROMPT_TOKENS} tokens; {rounds} rounds with each "
        "parameter, each beside a round without it, taking turns; what is added is their "
        f"difference; forms with the demo pair's tokenizer, V = {of_forms:,}"
    )
    return Report("parameters", regime, table, {"regime": regime, "k": DEPTH, "rows": figures})
