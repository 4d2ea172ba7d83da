"""A draft of another vocabulary: the target's distribution stays exact, and its greedy text the same."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from outrider import (
    ModelDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    TransformersModel,
    VocabularyDrafter,
    load,
)
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, target_distribution
from outrider.drafters.vocabulary import drafter as vocabulary
from outrider.drafters.vocabulary.respelling import Respeller, Writer
from outrider.drafters.vocabulary.spelling import Spelling, counterparts
from outrider.errors import InvalidConfigError, VocabMismatchError
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.types.protocols import KeepsSequences
from outrider.types.records import DraftPlan, Prefix

from .families import Distributions, greedy_reference

TOLERANCE = 1e-12
TEXT = '''def area(width, height):
    """The area of a rectangle: naïve, in m² — größer als 0 €."""
    if width < 0 or height < 0:
        raise ValueError("a side is negative")
    return width * height


def volume(width, height, depth):
    """The volume of a box; 体积 is width × height × depth."""
    return area(width, height) * depth


for number in range(10):
    print(number, area(number, 2 * number), volume(number, number, number))
'''


def fast(tokenizer: Tokenizer, **marks: str) -> Any:
    return tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks)


def toy(words: list[str], merges: list[tuple[str, str]], end: str | None = None) -> Any:
    """A byte-level tokenizer of a few tokens, numbered as they are listed."""
    made = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    made.decoder = decoders.ByteLevel()
    if end is None:
        return fast(made)
    made.add_special_tokens([end])
    return fast(made, eos_token=end)


def byte_level(size: int, text: str, end: str = "<|end|>") -> Any:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[end],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([text], trainer)
    return fast(made, eos_token=end)


def metaspace(size: int, text: str) -> Any:
    """As Llama's: a space before every text, and bytes for characters it does not have."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    lone = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<unk>", "<s>", "</s>", *lone], show_progress=False
    )
    made.train_from_iterator([text.replace("体积", "")], trainer)
    state = json.loads(made.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < 3]
    return fast(Tokenizer.from_str(json.dumps(state)), bos_token="<s>", eos_token="</s>")


TARGET = toy(["a", "b", "ab", "c"], [("a", "b")])
DRAFTS = {
    "smaller": toy(["b", "a"], []),
    "larger": toy(["c", "bb", "a", "b", "ab", "ca"], [("b", "b"), ("a", "b"), ("c", "a")]),
    "one_common": toy(["cc", "c"], [("c", "c")]),
}


def error(
    drafter: Any,
    params: SamplingParams,
    seed: int = 0,
    prompt: tuple[int, ...] = (0, 1, 2),
    **config: Any,
) -> float:
    target, _ = mock_pair(4, seed)
    settings = SpeculativeConfig(depth="fixed", **{"num_speculative_tokens": 2, **config})
    decoder = SpeculativeDecoder(target, drafter, config=settings)
    found = exact_distribution(decoder, prompt, params)
    return distance(found, target_distribution(target, prompt, params))


def drafter(name: str, match: str = "tokens", seed: int = 0) -> VocabularyDrafter:
    tokenizer = DRAFTS[name]
    model = mock_pair(len(tokenizer), 40 + seed)[0]
    return VocabularyDrafter(model, tokenizer, TARGET, match=match)


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("match", ["tokens", "text"])
@pytest.mark.parametrize("verification", ["token", "block", "coupled"])
def test_the_distribution_is_the_targets(name: str, match: str, verification: str) -> None:
    for seed in range(2):
        params = SamplingParams(max_tokens=4, stop_token_ids=(3,))
        made = drafter(name, match, seed)
        assert error(made, params, seed, verification=verification) < TOLERANCE


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 0.6, "top_k": 2},
        {"top_p": 0.7},
        {"repetition_penalty": 1.4, "presence_penalty": 0.3},
        {"logit_bias": {0: -100.0, 1: -100.0}},
        {"bad_words": [[0], [1]]},
        {"bad_words": [[0], [1], [3]]},
    ],
    ids=str,
)
@pytest.mark.parametrize("match", ["tokens", "text"])
def test_the_distribution_under_parameters(params: dict[str, Any], match: str) -> None:
    """Be it that they forbid every token that the draft has: "smaller" has 0 and 1 only."""
    asked = SamplingParams(max_tokens=3, **params)
    for name in ("smaller", "larger"):
        assert error(drafter(name, match), asked) < TOLERANCE


@pytest.mark.parametrize("match", ["tokens", "text"])
def test_the_distribution_where_the_prefix_is_settled_on_the_way(match: str) -> None:
    """After 48 tokens a part of the prefix is cut off, in branches of one sequence id."""
    prompt = (0, 1, 2, 3, 0, 2) * 8
    for length in (46, 47, 48):
        made = drafter("larger", match)
        assert error(made, SamplingParams(max_tokens=4), prompt=prompt[:length]) < TOLERANCE


@pytest.mark.parametrize(
    "config",
    [
        {"verification": "traversal", "tree_shape": (2, 1)},
        {"verification": "traversal", "tree_shape": (2,), "tree_children": "with_replacement"},
        {"verification": "recursive", "tree_budget": 3},
    ],
    ids=str,
)
def test_the_distribution_of_trees(config: dict[str, Any]) -> None:
    for name in ("smaller", "larger"):
        assert error(drafter(name), SamplingParams(max_tokens=3), **config) < TOLERANCE


def test_a_distribution_reported_in_another_order_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: columns of the draft's distribution are named one place off from those drawn from."""
    made = drafter("larger")
    propose = made._drafter.propose

    def shifted(*given: Any) -> Any:
        proposal = propose(*given)
        distributions = replace(
            proposal.distributions, probs=proposal.distributions.probs.roll(1, -1)
        )
        return replace(proposal, distributions=distributions)

    monkeypatch.setattr(made._drafter, "propose", shifted)
    assert error(made, SamplingParams(max_tokens=3)) > 1e-3


def test_the_distribution_drawn_from_is_the_drafts_cut_to_the_common_tokens() -> None:
    """P(t) / P(common), Timor et al. 2025; the tokens 1 "b" and 0 "a" are the draft's 0 and 1."""
    model = mock_pair(2, 3)[0]
    cursor = (
        VocabularyDrafter(model, DRAFTS["smaller"], TARGET)
        ._drafter.models[0]
        .open([Prefix(0, [0, 2, 1])], 2)
    )
    after = (1, 1, 0, 0)  # "a" "ab" "b" in the draft's tokens
    distribution = cursor.logits.softmax(-1)[0]
    np.testing.assert_allclose(distribution[[1, 0]], model.probabilities(after), atol=1e-15)
    assert distribution[[2, 3]].tolist() == [0, 0]
    distribution = cursor.step(torch.tensor([1])).softmax(-1)[0]
    np.testing.assert_allclose(distribution[[1, 0]], model.probabilities((*after, 0)), atol=1e-15)


LARGE = byte_level(420, TEXT)
SMALL = byte_level(330, TEXT[::-1] + TEXT[:200])
SPACED = metaspace(420, TEXT)


def respeller(target: Any, draft: Any) -> tuple[Respeller, Spelling]:
    spelt, own = Spelling.of(target), Spelling.of(draft)
    return Respeller(spelt, Writer(draft, own), counterparts(spelt, own)), own


def test_tokens_meet_by_their_bytes() -> None:
    spelt, own = Spelling.of(LARGE), Spelling.of(SPACED)
    common = counterparts(spelt, own)
    assert len(common) > 50
    for index, other in common.items():
        if index not in spelt.specials:
            assert LARGE.decode([index]) == "�" or spelt.words[index] == own.words[other]
    assert own.words[own.ids[b" width"]] == b" width"
    assert SPACED.convert_ids_to_tokens(common[spelt.ids[b" width"]]) == "▁width"
    assert common[LARGE.eos_token_id] == SPACED.eos_token_id
    assert spelt.ids[b"\n"] in common  # "Ċ" here, "<0x0A>" or a character there


@pytest.mark.parametrize("draft", [SMALL, SPACED], ids=["byte_level", "metaspace"])
def test_a_growing_prefix_is_written_as_its_text(draft: Any) -> None:
    """Token by token, characters cut in two included; as the draft's tokenizer writes it."""
    ids = LARGE.encode(TEXT)
    spelt = Spelling.of(LARGE)
    writes, own = respeller(LARGE, draft)
    prefix = Prefix(7, ids[:1])
    for token in ids[1:]:
        prefix = prefix.extended([token])
        written = writes.written(prefix).tokens.tolist()
        text = b"".join(spelt.words[i] for i in prefix.tokens.tolist())
        assert b"".join(own.words[i] for i in written).removeprefix(b" ") == text
    whole = writes.written(Prefix(8, ids)).tokens.tolist()
    if draft is SMALL:  # the other one has tokens across words
        assert whole == written == draft.encode(TEXT)


def test_what_lies_back_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = LARGE.encode(TEXT * 12)
    writes, _ = respeller(LARGE, SMALL)
    prefix = Prefix(1, ids[:600])
    writes.written(prefix)
    sizes = []
    text = Writer._text
    monkeypatch.setattr(
        Writer, "_text", lambda s, t, *, opens: sizes.append(len(t)) or text(s, t, opens=opens)
    )
    for token in ids[600:900]:
        prefix = prefix.extended([token])
        writes.written(prefix)
    assert max(sizes) < 300


@pytest.mark.parametrize("draft", [SMALL, SPACED], ids=["byte_level", "metaspace"])
def test_how_a_prefix_is_written_depends_on_nothing_else(draft: Any) -> None:
    """Not on how it grew, nor on what the sequence was before: distributions of a draft are to repeat."""
    ids = LARGE.encode(TEXT + TEXT[::-1])
    writes, _ = respeller(LARGE, draft)
    rng = np.random.default_rng(0)
    for length in rng.integers(1, len(ids), 150).tolist():
        other = [*ids[: length // 2], *ids[: length // 3]]
        for tokens in (ids[:length], other):
            found = writes.written(Prefix(1, tokens)).tokens
            fresh = respeller(LARGE, draft)[0].written(Prefix(2, tokens)).tokens
            assert found.tolist() == fresh.tolist()


def test_a_sequence_that_went_another_way_is_written_anew() -> None:
    ids = LARGE.encode(TEXT)
    writes, _ = respeller(LARGE, SMALL)
    writes.written(Prefix(1, ids))
    other = LARGE.encode(TEXT.replace("width", "breadth"))
    assert writes.written(Prefix(1, other)).tokens.tolist() == SMALL.encode(
        TEXT.replace("width", "breadth")
    )
    assert writes.written(Prefix(1, ids[:9])).tokens.tolist() == SMALL.encode(LARGE.decode(ids[:9]))
    writes.release([1, 2])
    assert writes._settled == {}


def test_special_tokens_and_bytes_that_make_no_character() -> None:
    end = LARGE.eos_token_id
    writes, own = respeller(LARGE, SPACED)
    spelt = Spelling.of(LARGE)
    lone = [spelt.ids[bytes([0xFF])], spelt.ids[bytes([0xE2])]]
    ids = [*LARGE.encode("one"), end, *lone, *LARGE.encode("two"), 419 + 5]
    written = writes.written(Prefix(3, ids)).tokens.tolist()
    assert written.count(SPACED.eos_token_id) == 1
    assert b"".join(own.words.get(i, b"|") for i in written) == b" one|\xff\xe2two"
    only = Respeller(spelt, Writer(DRAFTS["smaller"], Spelling.of(DRAFTS["smaller"])), {})
    assert only.written(Prefix(4, [end])).tokens.tolist() == [0]


def llama(tokenizer: Any, seed: int, hidden: int = 32, context: int = 256) -> Any:
    torch.manual_seed(seed)
    config = tf.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=False,
    )
    model = tf.LlamaForCausalLM(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.35)
    model.generation_config.eos_token_id = None
    return model


@pytest.fixture(scope="module")
def large() -> tuple[Any, TransformersModel]:
    model = llama(LARGE, 0)
    return model, TransformersModel(llama(LARGE, 0), max_sequences=4)


@pytest.fixture(scope="module", params=["byte_level", "metaspace"])
def draft(request: pytest.FixtureRequest) -> tuple[Any, TransformersModel]:
    tokenizer = {"byte_level": SMALL, "metaspace": SPACED}[request.param]
    return tokenizer, TransformersModel(llama(tokenizer, 1), max_sequences=4)


PROMPTS = ("def area", "体积 — größer", "for number in range(10):\n    print(", "x" * 40)


@pytest.mark.parametrize("match", ["tokens", "text"])
def test_greedy_text_is_the_targets_own(large: Any, draft: Any, match: str) -> None:
    """At every depth, on a ragged batch, with text in several scripts."""
    reference, target = large
    tokenizer, model = draft
    made = VocabularyDrafter(model, tokenizer, LARGE, match=match)
    prompts = [LARGE.encode(prompt) for prompt in PROMPTS]
    expected = [greedy_reference(reference, prompt, 24) for prompt in prompts]
    for k in range(9):
        config = SpeculativeConfig(depth="fixed", num_speculative_tokens=k)
        decoder = SpeculativeDecoder(target, made, tokenizer=LARGE, config=config)
        outputs = decoder.generate(prompts, SamplingParams(max_tokens=24, temperature=0))
        assert [out.token_ids for out in outputs] == expected
    trees = SpeculativeConfig(depth="fixed", tree_shape=(2, 2), num_speculative_tokens=2)
    decoder = SpeculativeDecoder(target, made, tokenizer=LARGE, config=trees)
    out = decoder.generate(PROMPTS[0], SamplingParams(max_tokens=24, temperature=0))
    assert out.token_ids == expected[0]
    assert not target.live_sequences
    assert not model.live_sequences
    keeper = [part for part in made.models if isinstance(part, KeepsSequences)][-1]
    prefixes = getattr(keeper, "_prefixes", keeper)
    assert prefixes._respeller._settled == {}


TRAINED = {"smaller": (LARGE, SMALL), "larger": (SMALL, LARGE)}
"""Target and draft, by what the draft is beside the target."""


def trained_error(names: str, match: str, flat: bool = False, **config: Any) -> float:
    """How far the distribution is from the target's, of two byte-level BPEs that were trained.

    Four tokens are allowed at each place, to keep the enumeration small: those that the draft
    writes first, where it writes text, and letters, which both have.

    Args:
        names: of `TRAINED`.
        match: by tokens, or by text.
        flat: a fault: the draft's distribution is reported as if all tokens it allows were as likely.
        config: of the decoder, beside two tokens at most.
    """
    tokenizer, other = TRAINED[names]
    target = TransformersModel(llama(tokenizer, 0), max_sequences=8)
    model = TransformersModel(llama(other, 1), max_sequences=9)
    made = VocabularyDrafter(model, other, tokenizer, match=match)
    if flat:
        propose = made._drafter.propose

        def faulty(*given: Any) -> Any:
            proposal = propose(*given)
            allowed = (proposal.distributions.probs > 0).double()
            distributions = replace(
                proposal.distributions, probs=allowed / allowed.sum(-1, keepdim=True)
            )
            return replace(proposal, distributions=distributions)

        made._drafter.propose = faulty
    settings = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, **config)
    decoder = SpeculativeDecoder(target, made, tokenizer=tokenizer, config=settings)
    prompt = tokenizer.encode(PROMPTS[0])
    letters = [tokenizer.encode(letter)[0] for letter in "abcd"]
    if match == "text":
        context: Any = SimpleNamespace(device=torch.device("cpu"))
        plan = DraftPlan(np.array([2]))
        with torch.inference_mode():
            written = made.propose([Prefix(1, prompt)], plan, context).tokens[0].tolist()
        letters = [*written, *letters]
    allowed = dict.fromkeys(list(dict.fromkeys(letters))[:4], 80.0)
    params = SamplingParams(max_tokens=3, top_k=4, temperature=2.0, logit_bias=allowed)
    decoder.generate([prompt] * 64, [replace(params, seed=seed) for seed in range(64)])
    assert 0 < decoder.metrics.accepted < decoder.metrics.drafted
    reference = Distributions(llama(tokenizer, 0))
    expected = target_distribution(reference, tuple(prompt), params)
    return distance(exact_distribution(decoder, prompt, params), expected)


@pytest.mark.parametrize("names", TRAINED)
@pytest.mark.parametrize("match", ["tokens", "text"])
@pytest.mark.parametrize(
    "config",
    [
        {"verification": "block"},
        {"verification": "token"},
        {"verification": "coupled"},
        {"tree_shape": (2, 1)},
    ],
    ids=str,
)
def test_the_distribution_with_trained_tokenizers(
    names: str, match: str, config: dict[str, Any]
) -> None:
    assert trained_error(names, match, **config) < 1e-9


@pytest.mark.parametrize("names", TRAINED)
def test_a_fault_shows_with_trained_tokenizers(names: str) -> None:
    assert trained_error(names, "tokens", flat=True) > 1e-3


def renumbered(tokenizer: Any, order: list[int]) -> Any:
    """The tokenizer with its token `order[i]` as number i."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    place = {old: new for new, old in enumerate(order)}
    vocab = state["model"]["vocab"]
    state["model"]["vocab"] = {token: place[index] for token, index in vocab.items()}
    for token in state["added_tokens"]:
        token["id"] = place[token["id"]]
    return fast(Tokenizer.from_str(json.dumps(state)), eos_token=tokenizer.eos_token)


@pytest.mark.parametrize("shape", [None, (2, 1, 1)])
def test_a_draft_that_is_the_target_in_other_ids_is_kept(large: Any, shape: Any) -> None:
    """The same model with its tokens numbered otherwise proposes what the target says."""
    reference, target = large
    order = torch.randperm(len(LARGE), generator=torch.Generator().manual_seed(1))
    turned = llama(LARGE, 0)
    with torch.no_grad():
        turned.model.embed_tokens.weight.copy_(reference.model.embed_tokens.weight[order])
        turned.lm_head.weight.copy_(reference.lm_head.weight[order])
    tokenizer = renumbered(LARGE, order.tolist())
    assert tokenizer.encode(TEXT) != LARGE.encode(TEXT)
    made = VocabularyDrafter(TransformersModel(turned, max_sequences=4), tokenizer, LARGE)
    assert made.match == "tokens"
    assert made.common == len(LARGE)
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=3, tree_shape=shape)
    decoder = SpeculativeDecoder(target, made, tokenizer=LARGE, config=config)
    out = decoder.generate(TEXT[:100], SamplingParams(max_tokens=4, temperature=0))
    assert out.metrics.accepted == 3
    assert out.depths == (3,)


def test_how_text_is_written_does_not_depend_on_the_batch() -> None:
    """A row of one token beside one of four, which would write "ab" for the first row, too."""
    alternating = TabularModel(lambda prefix: [0, 1] if prefix[-1] == 0 else [1, 0], 2)
    made = VocabularyDrafter(alternating, toy(["b", "a"], []), TARGET, match="text")
    params = SamplingParams(max_tokens=2, seed=3)
    longer = replace(params, max_tokens=9)
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=4)
    seen = []
    for seed in range(30):
        target, _ = mock_pair(4, seed)
        decoder = SpeculativeDecoder(target, made, config=config)
        alone = decoder.generate([3, 2], params)
        beside, _ = decoder.generate([[3, 2], [3, 2]], [params, longer])
        assert alone.token_ids == beside.token_ids
        assert alone.depths == beside.depths
        seen.append(alone.token_ids)
    assert len(set(seen)) > 3


def test_what_a_draft_is_shown_does_not_depend_on_depths() -> None:
    """Of a text that is longer than its context, as long as a quarter of that is not exceeded."""
    letters = byte_level(258, "a b")
    model = TransformersModel(llama(letters, 2), max_length=96)
    spelling = Spelling.of(letters)
    prefixes = vocabulary._Prefixes(model, Respeller(spelling, Writer(letters, spelling), {}))
    for length in range(60, 200):
        prefix = Prefix(length, letters.encode("ab" * 100)[:length])
        shown = [prefixes.written([prefix], depth)[0].tokens.tolist() for depth in (0, 2, 7, 24)]
        assert shown[1:] == shown[:-1]
        assert 36 <= len(shown[0]) <= 72
    assert len(prefixes.written([prefix], 60)[0]) <= 36


def test_tokens_that_the_draft_has_no_embedding_for() -> None:
    """A mark that was added to its tokenizer alone, in a prompt; and padding that was left on."""
    marked = byte_level(330, TEXT)
    plain = llama(marked, 1)
    expected = Writer(marked, Spelling.of(marked)).written(b"def area", opens=True)
    marked.add_special_tokens({"pad_token": "[PAD]"})
    assert len(marked) > plain.config.vocab_size
    assert len(expected) > 1
    for longest in (1, 64):
        marked(["a"], padding="max_length", max_length=longest, truncation=True)
        assert Writer(marked, Spelling.of(marked)).written(b"def area", opens=True) == expected
    model = TransformersModel(plain, max_sequences=2)
    target = TransformersModel(llama(LARGE, 0), max_sequences=2)
    prompt = LARGE.encode("def [PAD] area")
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, strict=True)
    for match in ("tokens", "text"):
        made = VocabularyDrafter(model, marked, LARGE, match=match)
        decoder = SpeculativeDecoder(target, made, tokenizer=LARGE, config=config)
        out = decoder.generate(prompt, SamplingParams(max_tokens=9, temperature=0))
        assert out.token_ids == greedy_reference(llama(LARGE, 0), prompt, 9)


def test_text_is_proposed_as_the_target_writes_it() -> None:
    """The draft writes "a", "b", "a", "b"; the target has a token for "ab"."""
    target = TabularModel(lambda _: [0, 0, 1, 0], 4)
    alternating = TabularModel(lambda prefix: [0, 1] if prefix[-1] == 0 else [1, 0], 2)
    made = VocabularyDrafter(alternating, toy(["b", "a"], []), TARGET, match="text")
    decoder = SpeculativeDecoder(target, made)
    out = decoder.generate([3, 2], SamplingParams(max_tokens=6))
    assert out.token_ids == (2,) * 6
    assert out.depths == (2, 1, 0)  # four letters make two tokens, two make one


def test_a_text_longer_than_the_drafts_context(large: Any) -> None:
    """The draft needs several tokens for one of the target's: it is shown the end of the text."""
    reference, target = large
    letters = byte_level(258, "a b")
    model = TransformersModel(llama(letters, 2, context=256), max_length=96)
    made = VocabularyDrafter(model, letters, LARGE)
    prompt = LARGE.encode(TEXT)[:60]
    assert len(letters.encode(LARGE.decode(prompt))) > 96
    fixed = SpeculativeConfig(depth="fixed")
    decoder = SpeculativeDecoder(target, made, tokenizer=LARGE, config=fixed)
    out = decoder.generate(prompt, SamplingParams(max_tokens=30, temperature=0))
    assert out.token_ids == greedy_reference(reference, prompt, 30)
    assert out.metrics.drafted > 0


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(VocabMismatchError, match="no token of the draft's tokenizer"):
        VocabularyDrafter(mock_pair(2)[0], toy(["x", "y"], []), TARGET)
    words = fast(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    with pytest.raises(VocabMismatchError, match="does not say what bytes a token spells"):
        VocabularyDrafter(mock_pair(1)[0], words, TARGET)
    with pytest.raises(InvalidConfigError, match="match='bytes'"):
        drafter("smaller", "bytes")
    with pytest.raises(InvalidConfigError, match="a fast tokenizer"):
        VocabularyDrafter(mock_pair(2)[0], object(), TARGET)


def test_a_text_that_the_draft_ends_ends_for_the_target() -> None:
    ending = fast(
        Tokenizer.from_str(toy(["a", "b", "ab", "c"], [("a", "b")]).backend_tokenizer.to_str()),
        eos_token="<end>",
    )
    other = fast(
        Tokenizer.from_str(toy(["b", "a"], []).backend_tokenizer.to_str()), eos_token="</s>"
    )
    stops = TabularModel(lambda prefix: [0, 0, 1] if prefix[-1] == 0 else [1, 0, 0], 3)
    for match in ("tokens", "text"):
        made = VocabularyDrafter(stops, other, ending, match=match)
        target = TabularModel(lambda prefix: np.eye(5)[4 if prefix[-1] == 1 else 1], 5)
        out = SpeculativeDecoder(target, made).generate(
            [0], SamplingParams(max_tokens=9, stop_token_ids=(4,))
        )
        assert out.token_ids == (1, 4)
        assert out.metrics.rounds == 1


def test_few_common_tokens_go_by_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drafter("larger", "auto").match == "tokens"
    monkeypatch.setattr(vocabulary, "_FEW", 0.9)
    assert drafter("larger", "auto").match == "text"


def test_load_goes_by_text_where_few_tokens_are_common(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """One token in twelve is common to the two: "c", of a draft that knows no other letter."""
    runs = ["c" * length for length in range(1, 13)]
    letters = toy(runs, [("c" * (length - 1), "c") for length in range(2, 13)])
    target, draft = saved(tmp_path, "target", LARGE, 0), saved(tmp_path, "draft", letters, 1)
    with caplog.at_level("INFO", logger="outrider"):
        pair = load(target, draft, dtype="float64")
    assert "have 1 tokens in common: drafting by text" in caplog.text
    fixed = SpeculativeConfig(depth="fixed")
    decoder = SpeculativeDecoder(
        pair.target, pair.model_drafter, tokenizer=pair.tokenizer, config=fixed
    )
    out = decoder.generate(PROMPTS[0], SamplingParams(max_tokens=12, temperature=0))
    expected = greedy_reference(llama(LARGE, 0), LARGE.encode(PROMPTS[0]), 12)
    assert out.token_ids == expected
    assert out.metrics.drafted > 0


def saved(folder: Any, name: str, tokenizer: Any, seed: int) -> Any:
    place = folder / name
    llama(tokenizer, seed).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def test_load_puts_a_vocabulary_drafter_between_two_tokenizers(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    target = saved(tmp_path, "target", LARGE, 0)
    small = saved(tmp_path, "draft", SMALL, 1)
    with caplog.at_level("INFO", logger="outrider"):
        pair = load(target, small, dtype="float64")
    assert isinstance(pair.model_drafter, VocabularyDrafter)
    assert f"have {pair.model_drafter.common} tokens in common: drafting by tokens" in caplog.text
    decoder = SpeculativeDecoder(pair.target, pair.drafter, tokenizer=pair.tokenizer)
    out = decoder.generate(PROMPTS[0], SamplingParams(max_tokens=12, temperature=0))
    prompt = LARGE.encode(PROMPTS[0])
    assert out.token_ids == greedy_reference(llama(LARGE, 0), prompt, 12)
    assert isinstance(load(target, target).model_drafter, ModelDrafter)
    foreign = toy(["x y", "z z"], [])
    with pytest.raises(VocabMismatchError, match="no token of the draft's tokenizer"):
        load(target, saved(tmp_path, "foreign", foreign, 1))
