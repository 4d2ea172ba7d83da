"""What requests do to logits: transformers' processors, node by node; OpenAI's penalties."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from outrider import SamplingParams, StatefulProcessor, StructuredOutput
from outrider.errors import DegenerateDistributionError, UserCodeError
from outrider.sampling.grammar import Grammars
from outrider.sampling.packed import PackedLogitsParams
from outrider.sampling.paths import Path
from outrider.sampling.pipeline import LogitsPipeline, PipelineResult
from outrider.types.records import Distributions, DraftProposal, Prefix, SequenceState
from tests.support.alphabet import alphabet

CPU = torch.device("cpu")
V = 12


def state(prompt: list[int], output: list[int], params: SamplingParams, eos: int) -> SequenceState:
    stops = frozenset({eos, *params.stop_token_ids})
    return SequenceState(Prefix(0, [*prompt, *output]), len(prompt), params, stops, stream_key=0)


def processed(states: list[SequenceState], logits: torch.Tensor, path: Path) -> torch.Tensor:
    packed = PackedLogitsParams.pack(states, CPU)
    assert packed is not None
    made = LogitsPipeline(packed, states, CPU)(logits, path)
    assert made.blocked == {}
    return made.logits


def as_transformers(
    params: SamplingParams, prompt: list[int], history: list[int], row: torch.Tensor, eos: list[int]
) -> torch.Tensor:
    """The same by transformers' processors, in the order its `generate` has them."""
    processors: list[Any] = []
    if params.logit_bias:
        processors.append(
            tf.SequenceBiasLogitsProcessor([[[token], bias] for token, bias in params.biases])
        )
    if params.repetition_penalty != 1:
        processors.append(tf.RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.bad_words:
        processors.append(tf.NoBadWordsLogitsProcessor([list(word) for word in params.bad_words]))
    if params.allowed_token_ids:
        others = sorted(set(range(V)) - set(params.allowed_token_ids))
        processors.append(tf.SuppressTokensLogitsProcessor(others))
    if params.min_tokens:
        processors.append(tf.MinNewTokensLengthLogitsProcessor(len(prompt), params.min_tokens, eos))
    scores = row[None]
    for processor in processors:
        scores = processor(torch.tensor([history]), scores)
    return scores[0]


def openai_penalties(params: SamplingParams, output: list[int], row: torch.Tensor) -> torch.Tensor:
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, c over the output alone."""
    row = row.clone()
    for token, count in Counter(output).items():
        row[token] -= count * params.frequency_penalty + params.presence_penalty
    return row


def random_params(rng: random.Random) -> SamplingParams:
    every: dict[str, Any] = {
        "logit_bias": {rng.randrange(V): rng.randint(-24, 24) / 8 for _ in range(3)},
        "repetition_penalty": rng.choice([0.7, 1.3, 2.0]),
        "bad_words": [tuple(rng.randrange(V) for _ in range(rng.randint(1, 3))) for _ in range(4)],
        "allowed_token_ids": rng.sample(range(V), V // 2),
        "min_tokens": rng.randint(1, 6),
    }
    names = rng.sample(sorted(every), rng.randint(1, 5))
    return SamplingParams(max_tokens=20, **{name: every[name] for name in names})


def test_penalties_are_those_of_counts_over_the_whole_vocabulary() -> None:
    """To the bit, at every drafted position: ragged prefixes, repeated drafts, and token 0."""
    asked = [(1.3, 0.5, 0.25), (0.7, -1.0, 1.5), (1.0, 0.0, 0.0)]
    names = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    params = [SamplingParams(**dict(zip(names, values, strict=True))) for values in asked]
    texts = [([1, 2, 1], [3, 3, 5]), ([0], [7]), ([4, 4, 4], [])]
    states = [state(*text, of, 11) for text, of in zip(texts, params, strict=True)]
    drafts = torch.tensor([[3, 8, 8], [0, 0, 7], [9, 4, 9]])
    path = Path(drafts[:, None].expand(-1, 4, -1), torch.arange(4)[None])
    logits = torch.randn((3, 4, V), generator=torch.Generator().manual_seed(0))
    found = processed(states, logits, path)
    for row, ((prompt, output), of) in enumerate(zip(texts, params, strict=True)):
        for node in range(4):
            drafted = drafts[row, :node].tolist()
            counts = torch.bincount(torch.tensor([*output, *drafted, V]), minlength=V)[:V]
            given = logits[row, node]
            punished = torch.where(
                given > 0, given / of.repetition_penalty, given * of.repetition_penalty
            )
            seen = torch.isin(torch.arange(V), torch.tensor([*prompt, *output, *drafted]))
            expected = torch.where(seen, punished, given) - of.frequency_penalty * counts
            assert torch.equal(found[row, node], expected - of.presence_penalty * (counts > 0))


@pytest.mark.parametrize("seed", range(40))
def test_every_node_is_processed_as_transformers_processes_its_history(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    batch, width, eos = 4, 5, rng.randrange(V)
    prompts = [[rng.randrange(V) for _ in range(rng.randint(1, 6))] for _ in range(batch)]
    outputs = [[rng.randrange(V) for _ in range(rng.randint(0, 5))] for _ in range(batch)]
    params = [random_params(rng) for _ in range(batch)]
    states = [state(*row, eos) for row in zip(prompts, outputs, params, strict=True)]
    tokens = torch.randint(0, V, (batch, width))
    parents = np.array([[rng.randint(0, i) for i in range(width)] for _ in range(batch)])
    proposal = DraftProposal(
        tokens,
        np.full(batch, width),
        Distributions(point_masses=tokens),
        rng.choice([None, parents]),
    )
    logits = torch.randn(batch, width + 1, V, dtype=torch.float64)
    before = logits.clone()
    found = processed(states, logits, Path.to_nodes(proposal))
    assert (logits == before).all()
    structure = proposal.structure
    for row in range(batch):
        for node in range(width + 1):
            path, at = [], node
            while at:
                path.append(int(tokens[row, at - 1]))
                at = int(structure[row, at - 1])
            history = [*prompts[row], *outputs[row], *path[::-1]]
            expected = as_transformers(params[row], prompts[row], history, logits[row, node], [eos])
            torch.testing.assert_close(found[row, node], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_presence_and_frequency_penalties_are_openais(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    prompts = [[rng.randrange(V) for _ in range(3)] for _ in range(3)]
    outputs = [[rng.randrange(4) for _ in range(rng.randint(0, 6))] for _ in range(3)]
    params = [
        SamplingParams(frequency_penalty=rng.uniform(-2, 2), presence_penalty=rng.uniform(-2, 2))
        for _ in range(3)
    ]
    states = [state(*row, 0) for row in zip(prompts, outputs, params, strict=True)]
    tokens = torch.randint(0, 4, (3, 2, 3))
    logits = torch.randn(3, 2, V, dtype=torch.float64)
    found = processed(states, logits, Path.of(tokens))
    for row in range(3):
        for node in range(2):
            output = [*outputs[row], *tokens[row, node].tolist()]
            expected = openai_penalties(params[row], output, logits[row, node])
            torch.testing.assert_close(found[row, node], expected, rtol=0, atol=1e-6)


def test_nothing_is_packed_where_nothing_is_asked_for() -> None:
    plain = state([1], [2], SamplingParams(temperature=0.5, top_k=3, stop_token_ids=(4,)), 0)
    assert PackedLogitsParams.pack([plain, plain], CPU) is None
    asked = state([1], [2], SamplingParams(presence_penalty=1), 0)
    logits = torch.randn(2, 1, V)
    found = processed([plain, asked], logits, Path.of(torch.empty(2, 1, 0, dtype=torch.int64)))
    assert (found[0] == logits[0]).all()
    assert found[1, 0, 2] == logits[1, 0, 2] - 1


def asking(processor: Any, **fields: Any) -> SequenceState:
    """A sequence with a processor of its own."""
    params = SamplingParams(logits_processors=(processor,), **fields)
    found = state([1], [2], params, 0)
    return replace(found, processors=params.logits_processors)


def chain(*tokens: int) -> Path:
    """The path to every node of a drafted chain."""
    drafted = torch.tensor([tokens])
    return Path.to_nodes(
        DraftProposal(drafted, np.array([len(tokens)]), Distributions(point_masses=drafted))
    )


def ends_at(token: int) -> Any:
    """A request that ends at a token."""
    return lambda _, drafted: token in drafted


def run(one: SequenceState, path: Path, ended: Any = None) -> tuple[PipelineResult, LogitsPipeline]:
    packed = PackedLogitsParams.pack([one], CPU)
    assert packed is not None
    pipeline = LogitsPipeline(packed, [one], CPU, ended)
    return pipeline(torch.zeros(1, path.tokens.shape[1], V), path), pipeline


def test_processors_are_not_asked_behind_the_end_nor_below_what_is_forbidden() -> None:
    seen: list[list[int]] = []

    def watch(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        seen.append(history.tolist())
        return logits.index_fill(0, torch.tensor([7]), -torch.inf)

    for fields, path in (
        ({}, chain(3, 5, 4)),  # 5 ends the request
        ({}, chain(3, 7, 4)),  # the processor forbids 7
        ({"bad_words": ((3, 9),)}, chain(3, 9, 4)),
    ):
        seen.clear()
        found, _ = run(asking(watch, **fields), path, ends_at(5))
        assert seen == [[1, 2], [1, 2, 3]]
        assert found.blocked == {(0, 2): None, (0, 3): None}
        assert found.usable(0, [0, 1]) == found.usable(0, [0, 1, 2, 3]) == 2


def test_an_error_counts_where_a_sequence_comes_to_it() -> None:
    def picky(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        logits += 1  # what it had done is undone
        if 4 in history.tolist():
            raise KeyError("four")
        return logits

    found, _ = run(asking(picky), chain(3, 4, 5))
    error = found.blocked[0, 2]
    assert isinstance(error, UserCodeError)
    assert isinstance(error.__cause__, KeyError)
    assert error.sequence_id == 0
    assert found.blocked[0, 3] is None
    assert found.logits[0, :, 0].tolist() == [1, 1, 0, 0]
    assert found.usable(0, [0, 1, 2]) == 2
    assert found.usable(1, [0, 1, 2]) == 3
    with pytest.raises(UserCodeError, match=r"logits_processors\[0\] of sequence 0.*four"):
        found.usable(0, [2, 3])


def test_an_interrupt_is_not_put_off() -> None:
    def stop(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(asking(stop), chain(3))


class Counting:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        assert history.tolist() != [1, 2, 3, 4], "after 3 and 4 it fails"
        return logits


def test_processors_stand_as_after_the_last_call_that_succeeded() -> None:
    _, pipeline = run(asking(StatefulProcessor(Counting())), chain(3, 4, 5))

    def calls(*path: int) -> int:
        (one,) = pipeline.processors(0, path)
        count: int = one.processor.calls
        return count

    assert [calls(), calls(3), calls(3, 4), calls(3, 4, 5), calls(6)] == [1, 2, 2, 2, 1]
    assert pipeline.drafting().processors(0, ())[0].processor.calls == 0


def test_a_dead_end_of_a_grammar_blocks_its_node_and_those_below() -> None:
    texts = ("a", "b", "c")
    grammars = Grammars(alphabet(texts), V, frozenset())
    form = StructuredOutput(choice=("ab", "c"))
    params = SamplingParams(structured_output=form, bad_words=((0, 1),))
    one = SequenceState(Prefix(0, [9]), 1, params, frozenset({3}), 0)
    one = replace(one, grammar=grammars.of(form, one.stop_ids).copy(1))
    found, _ = run(one, chain(0, 1))
    assert (found.logits[0, 0] > -torch.inf).nonzero().flatten().tolist() == [0, 2]
    assert isinstance(found.blocked[0, 1], DegenerateDistributionError)
    with pytest.raises(DegenerateDistributionError, match=r"no token could follow.*bad_words"):
        found.usable(0, [1])
    # The text is whole after "ab", which the request forbids: nothing is asked of what follows.
    found, _ = run(one, chain(2, 2))
    assert (found.logits[0, 1] > -torch.inf).nonzero().flatten().tolist() == [3]
    assert (0, 2) in found.blocked
