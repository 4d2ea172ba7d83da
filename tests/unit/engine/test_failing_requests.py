"""What a caller plugs in and raises ends its own request, and names it; the others go on."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from outrider import (
    NgramDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    StatefulProcessor,
    StructuredOutput,
)
from outrider.engine.scheduler import Scheduler
from outrider.errors import (
    DegenerateDistributionError,
    DraftError,
    EmptyPrefixError,
    InvalidConfigError,
    ModelError,
    OutriderError,
    TokenOutOfRangeError,
    UserCodeError,
)
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.types.records import DraftPlan, DraftProposal
from tests.support.alphabet import alphabet

V = 6
TEXTS = ("a", "b", "c", "d", "e")
PROMPTS = [[0], [1], [2], [3]]


def raising(length: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A processor that fails where there are so many tokens, prompt and drafts included."""

    def failing(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        if len(history) >= length:
            raise KeyError("no such state")
        return logits

    return failing


class Stateful:
    """Fails at its third call."""

    calls = 0

    def __call__(self, history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 3:
            raise ZeroDivisionError
        return logits


class Calm:
    """Changes nothing."""

    def __call__(self, history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        return logits


def never(processor: Any) -> Any:
    """A fork that fails once its processor was called."""
    if processor.calls:
        raise OSError("cannot be copied now")
    return Stateful()


DECODERS: list[dict[str, Any]] = [
    {"draft": None},
    {"num_speculative_tokens": 3},
    {"draft": NgramDrafter(2)},
    {"tree_shape": (2, 2)},
    {"verification": "coupled"},
]


def decoder_of(*, tokenizer: Any = None, **asked: Any) -> SpeculativeDecoder:
    target, draft = mock_pair(V, 1)
    drafter: Any = asked.pop("draft", draft)
    config = SpeculativeConfig(depth="fixed", **asked)
    tokenizer = alphabet(TEXTS) if tokenizer is None else tokenizer
    return SpeculativeDecoder(target, drafter, tokenizer=tokenizer, config=config)


def params_of(*processors: Any, **more: Any) -> list[SamplingParams]:
    """Four requests; the second has processors."""
    params = [SamplingParams(max_tokens=8, seed=seed, **more) for seed in range(4)]
    params[1] = SamplingParams(max_tokens=8, seed=1, logits_processors=processors, **more)
    return params


@pytest.mark.parametrize("asked", DECODERS, ids=lambda asked: ",".join(asked) or "plain")
@pytest.mark.parametrize(
    ("processor", "kept", "cause"),
    [
        (raising(1), 0, KeyError),
        (raising(5), 4, KeyError),
        (StatefulProcessor(Stateful()), 2, ZeroDivisionError),
        (StatefulProcessor(Stateful(), never), 1, OSError),
    ],
    ids=["first call", "in the middle", "stateful", "fork"],
)
def test_a_processor_that_raises_ends_its_own_request(
    asked: dict[str, Any], processor: Any, kept: int, cause: type[Exception]
) -> None:
    params = params_of(lambda history, logits: logits, processor)
    whole = decoder_of(**asked).generate(PROMPTS, params_of())
    decoder = decoder_of(**asked)
    outputs = decoder.generate(PROMPTS, params, on_error="return")
    assert [output.error is None for output in outputs] == [True, False, True, True]
    for index in (0, 2, 3):
        assert outputs[index].token_ids == whole[index].token_ids
    failed = outputs[1]
    assert isinstance(failed.error, UserCodeError)
    assert isinstance(failed.error.__cause__, cause)
    assert failed.error.request == 1
    assert f"sequence {failed.error.sequence_id}" in str(failed.error)
    assert (failed.finish_reason, len(failed.token_ids)) == ("error", kept)
    assert failed.text == "".join(TEXTS[t] for t in failed.token_ids if t < len(TEXTS))
    if cause is not OSError:
        assert "logits_processors[1]" in str(failed.error)
    with pytest.raises(
        UserCodeError, match=r'prompts\[1\].*on_error="return" keeps them'
    ) as caught:
        decoder.generate(PROMPTS, params)
    assert caught.value.request == 1
    with pytest.raises(UserCodeError, match=r"^(?!prompts)"):
        decoder.generate(PROMPTS[1], params[1])


def spoils(value: float, length: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A processor that returns such logits where there are so many tokens."""

    def spoiling(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        found = logits * 1.0
        if len(history) >= length:
            found[... if value < 0 else 2] = value
        return found

    return spoiling


def reshaping(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """A processor that returns a token less, where there are five."""
    return logits[:-1] if len(history) >= 5 else logits


@pytest.mark.parametrize("asked", DECODERS, ids=lambda asked: ",".join(asked) or "plain")
@pytest.mark.parametrize(
    ("processor", "kept", "said"),
    [
        (spoils(np.nan, 1), 0, "spoiling, returned logits whose largest is nan"),
        (spoils(np.nan, 5), 4, "spoiling, returned logits whose largest is nan"),
        (spoils(np.inf, 5), 4, "spoiling, returned logits whose largest is inf"),
        (spoils(-np.inf, 5), 4, "spoiling, returned logits whose largest is -inf"),
        (
            reshaping,
            4,
            r"reshaping, returned a tensor of shape \[5\]; .*of the shape that it is given, \[6\]",
        ),
    ],
    ids=["NaN at once", "NaN", "inf", "nothing", "shape"],
)
def test_a_processor_that_returns_no_logits_is_named_not_a_model(
    asked: dict[str, Any], processor: Any, kept: int, said: str
) -> None:
    params = params_of(lambda history, logits: logits, processor, StatefulProcessor(Calm()))
    whole = decoder_of(**asked).generate(PROMPTS, params_of())
    outputs = decoder_of(**asked).generate(PROMPTS, params, on_error="return")
    for index in (0, 2, 3):
        assert (outputs[index].error, outputs[index].token_ids) == (None, whole[index].token_ids)
    failed = outputs[1].error
    assert isinstance(failed, UserCodeError)
    assert re.search(said, str(failed))
    assert str(failed).startswith("logits_processors[1] of sequence")
    assert failed.request == 1
    assert len(outputs[1].token_ids) == kept


@pytest.mark.parametrize("asked", DECODERS, ids=lambda asked: ",".join(asked) or "plain")
def test_streams_end_with_the_error_and_go_on_with_the_others(asked: dict[str, Any]) -> None:
    params = params_of(raising(5), n=2)
    whole = decoder_of(**asked).generate(PROMPTS, params_of(n=2))
    found: dict[tuple[int, int], list[Any]] = {}
    for event in decoder_of(**asked).stream(PROMPTS, params, on_error="return"):
        found.setdefault((event.request, event.choice), []).append(event)
    assert len(found) == 8
    for (request, choice), events in found.items():
        *before, last = events
        assert all(event.error is None for event in before)
        if request == 1:
            assert isinstance(last.error, UserCodeError)
            assert (last.token_id, last.text, last.finish_reason) == (-1, "", "error")
            assert len(before) == last.position == 4
        else:
            assert last.error is None
            tokens = tuple(event.token_id for event in events)
            assert tokens == whole[request].choices[choice].token_ids
    with pytest.raises(UserCodeError, match="on_error"):
        list(decoder_of(**asked).stream(PROMPTS, params))


def test_one_choice_may_fail_and_the_others_are_whole() -> None:
    def after_0(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        if len(history) > 1 and history[1] == 0:
            raise ValueError("not after 0")
        return logits

    decoder = decoder_of(num_speculative_tokens=3)
    params = SamplingParams(max_tokens=6, n=12, seed=5)
    whole = decoder.generate([2], params)
    asked = SamplingParams(max_tokens=6, n=12, seed=5, logits_processors=(after_0,))
    found = decoder.generate([2], asked, on_error="return")
    failed = [choice.index for choice in found.choices if choice.error is not None]
    assert failed == [choice.index for choice in whole.choices if choice.token_ids[0] == 0]
    assert 0 < len(failed) < 12
    assert found.error is found.choices[failed[0]].error
    for one, other in zip(found.choices, whole.choices, strict=True):
        expected = ((0,), "error") if one.index in failed else (other.token_ids, "length")
        assert (one.token_ids, one.finish_reason) == expected


@pytest.mark.parametrize("asked", DECODERS, ids=lambda asked: ",".join(asked) or "plain")
def test_what_no_text_comes_to_ends_nothing(asked: dict[str, Any]) -> None:
    """The processor fails behind tokens that it forbids: they are drafted, and refused."""
    failures = []

    def odd(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        if (history[1:] == 0).any():
            failures.append(history.tolist())
            raise ValueError("0 was forbidden")
        logits = logits.clone()
        logits[0] = -torch.inf
        return logits

    outputs = decoder_of(**asked).generate(PROMPTS, params_of(odd), on_error="return")
    assert [output.error for output in outputs] == [None] * 4
    assert 0 not in outputs[1].token_ids


class Failing:
    """Draws up a text of tokens but for one, at which it fails."""

    def __init__(self, token: int) -> None:
        self.token = token
        self.own = alphabet(TEXTS)

    def encode(self, text: str) -> list[int]:
        if "d" in text:
            raise LookupError("no d")
        return list(self.own.encode(text))

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        if self.token in token_ids:
            raise LookupError("no such token")
        return str(self.own.decode(token_ids, skip_special_tokens=skip_special_tokens))


@pytest.mark.parametrize("asked", DECODERS, ids=lambda asked: ",".join(asked) or "plain")
@pytest.mark.parametrize("stop", [(), ("zz",)])
def test_a_tokenizer_that_raises_ends_the_requests_that_it_raises_for(
    asked: dict[str, Any], stop: tuple[str, ...]
) -> None:
    params = [SamplingParams(max_tokens=4, seed=seed, stop=stop) for seed in range(12)]
    prompts = [[seed % 4] for seed in range(12)]
    whole = decoder_of(**asked).generate(prompts, params)
    fails = [4 in output.token_ids for output in whole]
    assert 0 < sum(fails) < 12
    decoder = decoder_of(tokenizer=Failing(4), **asked)
    for output, failed, before in zip(
        decoder.generate(prompts, params, on_error="return"), fails, whole, strict=True
    ):
        assert (output.error is not None) == failed
        if failed:
            assert isinstance(output.error, UserCodeError)
            assert isinstance(output.error.__cause__, LookupError)
        else:
            assert (output.text, output.token_ids) == (before.text, before.token_ids)
    ended = {
        event.request: event.error
        for event in decoder.stream(prompts, params, on_error="return")
        if event.finish_reason
    }
    assert [ended[index] is not None for index in range(12)] == fails


@pytest.mark.parametrize("k", [0, 1, 5])
@pytest.mark.parametrize(
    "stops", [{"stop_token_ids": (2,)}, {"stop_token_ids": (2,), "stop": "zz"}, {"stop": "bc"}]
)
def test_a_tokenizer_that_fails_behind_the_stop_ends_nothing(k: int, stops: dict[str, Any]) -> None:
    """The model writes "abce", and nothing can decode the "e"."""

    def rows(prefix: tuple[int, ...]) -> Any:
        return np.eye(V)[(0, 1, 2, 4, 4)[min(4, len(prefix) - 1)]]

    model = TabularModel(rows, V)
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=k)
    drafter = model if k else None
    decoder = SpeculativeDecoder(model, drafter, tokenizer=Failing(4), config=config)
    output = decoder.generate([3], SamplingParams(max_tokens=6, temperature=0, **stops))
    assert output.text == ("ab" if "stop_token_ids" in stops else "a")


def test_refused_requests_are_outputs_with_their_errors() -> None:
    decoder = decoder_of(tokenizer=Failing(9), num_speculative_tokens=2)
    prompts: list[Any] = ["ab", [], [99], "d", "ba", 3.5]
    outputs = decoder.generate(prompts, SamplingParams(max_tokens=5, seed=1), on_error="return")
    alone = decoder.generate(["ab", "ba"], SamplingParams(max_tokens=5, seed=1))
    assert [outputs[i].token_ids for i in (0, 4)] == [output.token_ids for output in alone]
    expected: dict[int, type[OutriderError]] = {
        1: EmptyPrefixError,
        2: TokenOutOfRangeError,
        3: UserCodeError,
        5: InvalidConfigError,
    }
    for index, output in enumerate(outputs):
        if index not in (0, 4):
            assert isinstance(output.error, expected[index])
            assert output.error.request == index
            assert (output.token_ids, output.text, output.finish_reason) == ((), None, "error")
    with pytest.raises(EmptyPrefixError, match=r"prompts\[1\] is refused: the prompt") as caught:
        decoder.generate(prompts, SamplingParams(max_tokens=5))
    assert caught.value.request == 1
    events = list(decoder.stream(prompts, SamplingParams(max_tokens=5, seed=1), on_error="return"))
    assert sorted(event.request for event in events if event.error) == [1, 2, 3, 5]
    with pytest.raises(InvalidConfigError, match=r"on_error='keep'.*'raise', 'return'"):
        decoder.generate(prompts, on_error="keep")  # type: ignore[call-overload]  # refused


@pytest.mark.parametrize("processor", [raising(3), spoils(np.nan, 3)], ids=["raises", "NaN"])
@pytest.mark.parametrize("asked", DECODERS, ids=lambda asked: ",".join(asked) or "plain")
def test_many_that_fail_together_cost_one_round(asked: dict[str, Any], processor: Any) -> None:
    rounds: list[Any] = []
    verified: list[int] = []

    class Counted(TabularModel):
        def verify(self, prefixes: Any, proposal: Any) -> Any:
            verified.append(len(prefixes))
            return super().verify(prefixes, proposal)

    target, draft = mock_pair(V, 1)
    config = SpeculativeConfig(depth="fixed", **{k: v for k, v in asked.items() if k != "draft"})
    decoder = SpeculativeDecoder(
        Counted(target.probabilities, V),
        asked.get("draft", draft),
        config=config,
        on_round=rounds.append,
    )
    params = [SamplingParams(max_tokens=4, seed=0)]
    params += [SamplingParams(max_tokens=4, logits_processors=(processor,))] * 30
    outputs = decoder.generate([[i % V] for i in range(31)], params, on_error="return")
    assert [output.error is None for output in outputs] == [True, *[False] * 30]
    assert {output.error.request for output in outputs[1:] if output.error} == {*range(1, 31)}
    assert len(verified) <= len(rounds) + 3, "those that failed at the same token, together"
    assert all(len(output.token_ids) == 2 for output in outputs[1:])


def test_logits_and_forms_that_lead_nowhere_end_their_own_request() -> None:
    def rows(prefix: tuple[int, ...]) -> Any:
        return np.full(V, np.nan if prefix[0] == 1 and len(prefix) > 3 else 1 / V)

    class Unchecked(TabularModel):
        def logits(self, prefix: tuple[int, ...]) -> torch.Tensor:
            return torch.from_numpy(rows(prefix)).log()

    form = StructuredOutput(grammar='start: "a" /[ab&&[^ab]]/ | "b" "c"')
    decoder = SpeculativeDecoder(Unchecked(rows, V), None, tokenizer=alphabet(TEXTS))
    params = [SamplingParams(max_tokens=6, seed=seed) for seed in range(3)]
    dead = [SamplingParams(max_tokens=6, seed=s, structured_output=form) for s in range(8)]
    prompts = [[0], [1], [2], *([4] for _ in dead)]
    outputs = decoder.generate(prompts, [*params, *dead], on_error="return")
    assert [output.error is None for output in outputs[:3]] == [True, False, True]
    assert len(outputs[1].token_ids) == 3
    found = {(output.text, output.error is None) for output in outputs[3:]}
    assert found == {("a", False), ("bc", True)}
    errors = [output.error for output in outputs if output.error is not None]
    assert all(isinstance(error, DegenerateDistributionError) for error in errors)


class Picky(NgramDrafter):
    """Cannot draft for sequences that end with token 2, and says so or does not."""

    named = True

    def propose(self, prefixes: Any, plan: DraftPlan, ctx: Any) -> DraftProposal:
        for prefix in prefixes:
            if prefix.tokens[-1] == 2:
                raise DraftError(
                    "not after 2", sequence_id=prefix.sequence_id if self.named else None
                )
        return super().propose(prefixes, plan, ctx)


def test_an_error_about_no_one_request_ends_all_that_have_not_ended() -> None:
    drafter = Picky(2)
    decoder = decoder_of(draft=drafter, num_speculative_tokens=2)
    params = [SamplingParams(max_tokens=n, seed=0, temperature=0) for n in (1, 9, 9)]
    found = decoder.generate([[0], [1], [2]], params, on_error="return")
    assert isinstance(found[2].error, DraftError)
    drafter.named = False
    found = decoder.generate([[0], [1], [2]], params, on_error="return")
    assert found[0].error is None or found[0].error is found[1].error
    assert isinstance(found[1].error, DraftError)
    assert found[1].error is found[2].error
    assert decoder.slots.free is None


class Tired(TabularModel):
    """Raises in one of its methods, `verify` where a text has five tokens."""

    def __init__(self, method: str, cause: Exception) -> None:
        super().__init__(mock_pair(V, 1)[0].probabilities, V)
        self.method, self.cause = method, cause

    def fail(self, method: str, *, now: bool = True) -> None:
        if method == self.method and now:
            raise self.cause

    def verify(self, prefixes: Any, proposal: DraftProposal) -> Any:
        self.fail("verify", now=max(map(len, prefixes)) > 4)
        return super().verify(prefixes, proposal)

    def release(self, sequence_ids: Any, *, discard: bool = False) -> None:
        self.fail("release", now=len(list(sequence_ids)) > 1)

    def prefill(self, prefix: Any, most: int) -> Any:
        self.fail("prefill")
        return super().prefill(prefix, most)

    def lookup(self, prefix: Any) -> Any:
        self.fail("lookup")
        return super().lookup(prefix)


@pytest.mark.parametrize("method", ["verify", "release"])
@pytest.mark.parametrize("cause", [MemoryError("full"), KeyError("layer")], ids=repr)
def test_a_model_that_raises_is_named_and_what_ended_before_is_kept(
    cause: Exception, method: str
) -> None:
    decoder = SpeculativeDecoder(Tired(method, cause), tokenizer=alphabet(TEXTS))
    params = [SamplingParams(max_tokens=n, seed=0, ignore_eos=True) for n in (2, 7, 7)]
    whole = decoder_of(draft=None).generate([[0], [1], [2]], params)
    found = decoder.generate([[0], [1], [2]], params, on_error="return")
    assert (found[0].token_ids, found[0].error) == (whole[0].token_ids, None)
    for output, expected in zip(found[1:], whole[1:], strict=True):
        assert isinstance(output.error, ModelError)
        assert output.error.__cause__ is cause
        assert "Tired failed" in str(output.error)
        kept = output.token_ids
        assert len(kept) == (4 if method == "verify" else 6)
        assert kept == expected.token_ids[: len(kept)]
    with pytest.raises(ModelError, match="Tired failed"):
        decoder.generate([[0], [1], [2]], params)


@pytest.mark.parametrize("method", ["prefill", "lookup"])
def test_a_model_that_raises_as_a_prompt_is_prefilled_is_named(method: str) -> None:
    decoder = SpeculativeDecoder(Tired(method, OSError("gone")))
    with Scheduler(decoder, prefill_chunk=2) as scheduler:
        scheduler.submit(decoder.start([0, 1, 2, 3, 4]))
        with pytest.raises(ModelError, match="Tired failed: OSError: gone"):
            scheduler.step()
