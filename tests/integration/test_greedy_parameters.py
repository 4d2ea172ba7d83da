"""Greedy decoding with every parameter that changes it: transformers' own text, token for token.

Each row of a batch has other parameters, and what they name is taken from the row's plain text, so
that each of them changes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import transformers as tf

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder, TransformersModel
from outrider.errors import TokenOutOfRangeError
from outrider.sampling.paths import Path
from outrider.types.records import DraftProposal
from tests.support.families import VOCAB, greedy_reference, random_model, resembling
from tests.support.tokenizers import toy_tokenizer

FAMILIES = ("llama", "gpt2", "gemma3")
LENGTH = 16


@dataclass(frozen=True)
class Row:
    """A prompt, what transformers is asked for, the same asked of us, and transformers' answer."""

    prompt: list[int]
    theirs: dict[str, Any]
    ours: SamplingParams
    expected: tuple[int, ...]
    plain: tuple[int, ...]


def asked_for(
    plain: tuple[int, ...], tokenizer: Any
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What to ask transformers for, beside what to ask us for, given the row's plain text."""
    early, late = plain[3], plain[7]
    words = [[plain[0]], [plain[4], plain[5]], [plain[5], plain[6], plain[7]]]
    bias = {plain[1]: -50.0, (plain[1] + 7) % VOCAB: 2.5, plain[9]: -3.0}
    pieces = [tokenizer.decode([token]) for token in plain]
    across = pieces[5][-1] + pieces[6][:1]
    many = {"repetition_penalty": 1.25}
    return [
        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"repetition_penalty": 0.7}, {"repetition_penalty": 0.7}),
        ({"bad_words_ids": words}, {"bad_words": tuple(map(tuple, words))}),
        ({"eos_token_id": [early, late]}, {"stop_token_ids": (early, late)}),
        (
            {"eos_token_id": [early, late], "min_new_tokens": 9},
            {"stop_token_ids": (early, late), "min_tokens": 9},
        ),
        ({"sequence_bias": {(t,): b for t, b in bias.items()}}, {"logit_bias": bias}),
        ({"stop_strings": [across, "nope"]}, {"stop": (across, "nope")}),
        (
            many
            | {"eos_token_id": [late], "min_new_tokens": 5, "bad_words_ids": words[1:]}
            | {"sequence_bias": {(early,): -2.0}},
            many
            | {"stop_token_ids": (late,), "min_tokens": 5, "logit_bias": {early: -2.0}}
            | {"bad_words": tuple(map(tuple, words[1:]))},
        ),
        ({}, {}),
    ]


class Family:
    """A family's model, a draft that resembles it, and a batch with transformers' answers."""

    def __init__(self, name: str) -> None:
        self.tokenizer = toy_tokenizer()
        model = random_model(name)
        hashes = torch.Generator().manual_seed(11)
        self.rows = []
        for index in range(9):
            # The last token's text is in no stop string: what we look for is in the output alone.
            drawn = torch.randint(VOCAB - 1, (2 + 3 * index,), generator=hashes)
            prompt = [*drawn.tolist(), VOCAB - 1]
            plain = greedy_reference(model, prompt, LENGTH)
            theirs, ours = asked_for(plain, self.tokenizer)[index]
            self.rows.append(
                Row(
                    prompt,
                    theirs,
                    SamplingParams(max_tokens=LENGTH, temperature=0, **ours),
                    self.generate(model, prompt, theirs),
                    plain,
                )
            )
        draft = resembling(model)
        self.target = TransformersModel(model, max_sequences=9)
        self.draft = TransformersModel(draft, max_sequences=9)

    def generate(self, model: Any, prompt: list[int], asked: dict[str, Any]) -> tuple[int, ...]:
        config = tf.GenerationConfig(
            max_new_tokens=LENGTH, do_sample=False, pad_token_id=VOCAB - 1, **asked
        )
        ids = torch.tensor([prompt])
        tokenizer = {"tokenizer": self.tokenizer} if "stop_strings" in asked else {}
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), generation_config=config, **tokenizer
        )
        return tuple(out[0, len(prompt) :].tolist())

    def decode(self, k: int, params: list[SamplingParams]) -> list[tuple[int, ...]]:
        decoder = SpeculativeDecoder(
            self.target,
            self.draft,
            tokenizer=self.tokenizer,
            config=SpeculativeConfig(depth="fixed", num_speculative_tokens=k),
        )
        outputs = decoder.generate([row.prompt for row in self.rows], params)
        return [output.token_ids for output in outputs]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return Family(request.param)


def test_every_parameter_changes_its_row(family: Family) -> None:
    """So that a parameter that is not honoured, or at drafted positions not, shows."""
    assert [row.expected != row.plain for row in family.rows] == [True] * 8 + [False]


@pytest.mark.parametrize("k", [0, 1, 3, 8])
def test_mixed_batches_equal_generate(family: Family, k: int) -> None:
    found = family.decode(k, [row.ours for row in family.rows])
    assert found == [row.expected for row in family.rows]


@pytest.mark.parametrize("fault", ["another row's parameters", "drafted tokens not seen"])
def test_the_comparison_sees_a_planted_fault(
    family: Family, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = [row.ours for row in family.rows]
    if fault == "another row's parameters":
        params = [params[-1], *params[:-1]]
    else:

        def blind(proposal: DraftProposal) -> Path:
            nodes = proposal.tokens[:, None, :0].expand(-1, proposal.width + 1, -1)
            return Path.of(nodes)

        monkeypatch.setattr(Path, "to_nodes", staticmethod(blind))
    found = family.decode(4, params)
    assert found != [row.expected for row in family.rows]


def test_a_parameter_of_another_vocabulary_is_refused_before_any_forward(family: Family) -> None:
    rows = [row.ours for row in family.rows]
    rows[3] = replace(rows[3], logit_bias={VOCAB: 1.0})
    with pytest.raises(TokenOutOfRangeError, match=f"logit_bias has token id {VOCAB}"):
        family.decode(4, rows)
