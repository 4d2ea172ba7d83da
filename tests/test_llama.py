"""llama.cpp as a peer: what it is given, what stays behind, and that it decodes the same model."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers as tf

from outrider import Pair, TransformersModel, load
from outrider.bench import gguf
from outrider.bench.llama import LlamaEntrant, entrants
from outrider.bench.matrix import Matrix
from outrider.bench.records import BenchResult, Contender, Prompt, Workload
from outrider.bench.run import run
from outrider.config.params import SamplingParams
from outrider_demo import PROMPTS

from .families import CONTEXT, VOCAB, greedy_reference, random_model

PLAIN = Contender("llama.cpp", "none")
LOOKUP = Contender("llama.cpp", "ngram", num_speculative_tokens=3)


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if llama-cpp-python were there; it is not called before anything is decoded."""
    monkeypatch.setitem(sys.modules, "llama_cpp", ModuleType("llama_cpp"))


def model(**settings: Any) -> Any:
    """A random Llama in float32."""
    return random_model("llama", **settings).float()


def pair(hf_model: Any) -> Pair:
    return Pair(TransformersModel(hf_model), None, None)


def found(hf_model: Any, held: ExitStack) -> tuple[list[str], list[str]]:
    """The labels of the contenders there are, and what is missing."""
    ready, missing = entrants(pair(hf_model), (2, 4, None), held, lambda _: None)
    return [each.contender.label for each in ready], missing


@pytest.mark.usefixtures("_importable")
def test_contenders_by_the_dtype_of_the_target(files: Path) -> None:
    lookups = ["llama.cpp ngram k=2", "llama.cpp ngram k=4"]
    whole = ["llama.cpp plain", *lookups]
    with ExitStack() as held:
        assert found(model(), held) == ([*whole, "llama.cpp f16 plain"], [])
        assert found(model().half(), held) == (whole, [])
        assert found(model().bfloat16(), held) == (whole, [])
        written = sorted(path.name for path in files.rglob("*.gguf"))
        assert written == [f"target-{number}.gguf" for number in ("bf16", "f16", "f16", "f32")]
        labels, (why,) = found(random_model("llama"), held)
        assert (labels, why) == ([], "llama.cpp: it does not compute in float64")
    assert list(files.iterdir()) == []


@pytest.mark.parametrize("module", ["llama_cpp", "gguf"])
def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", ModuleType("llama_cpp"))
    monkeypatch.setitem(sys.modules, module, None)
    with ExitStack() as held:
        labels, (missing,) = found(model(), held)
    assert labels == []
    assert missing.startswith("llama.cpp: not installed")
    assert module in missing
    assert missing.endswith('pip install "outrider[llama]"')


@pytest.mark.usefixtures("_importable")
def test_an_architecture_that_is_not_written_is_named(files: Path) -> None:
    with ExitStack() as held:
        labels, (missing,) = found(random_model("gpt2").float(), held)
    assert labels == []
    assert missing.startswith("llama.cpp: no GGUF of GPT2LMHeadModel")
    assert list(files.iterdir()) == []


@pytest.mark.usefixtures("_importable")
def test_a_full_disk_is_no_reason_to_measure_nothing(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf, "write", full)
    with ExitStack() as held:
        labels, (missing,) = found(model(), held)
    assert labels == []
    assert "No space left on device" in missing
    assert list(files.iterdir()) == []


@pytest.mark.usefixtures("_importable")
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyError("odd")])
def test_without_f16_there_is_still_f32(
    files: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    write = gguf.write

    def failing(hf_model: Any, path: Path, number: Any) -> None:
        if number == "f16":
            raise error
        write(hf_model, path, number)

    monkeypatch.setattr(gguf, "write", failing)
    with ExitStack() as held:
        labels, (missing,) = found(model(), held)
    assert labels == ["llama.cpp plain", "llama.cpp ngram k=2", "llama.cpp ngram k=4"]
    assert missing.startswith("llama.cpp f16: ")
    assert missing.endswith("No space left on device" if error.args[0] == 28 else "KeyError: 'odd'")
    assert list(files.iterdir()) == []


def test_a_package_that_fails_oddly_costs_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise AttributeError("no such attribute")

    monkeypatch.setattr("outrider.bench.llama.import_module", failing)
    run_ = bench()
    assert run_.missing == (
        "llama.cpp: llama-cpp-python cannot be used: AttributeError: no such attribute",
    )
    assert len(run_.measurements) == 2


def test_a_file_that_cannot_be_loaded_costs_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __init__(self, *_: Any, **__: Any) -> None:
            raise ValueError("Failed to load model from file")

    fake, lookup = ModuleType("llama_cpp"), ModuleType("llama_cpp.llama_speculative")
    fake.Llama = Broken
    lookup.LlamaPromptLookupDecoding = object
    monkeypatch.setitem(sys.modules, "llama_cpp", fake)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", lookup)
    run_ = bench(peer_depths=(None,))
    assert run_.missing == tuple(
        f"{name} plain: ValueError: Failed to load model from file"
        for name in ("llama.cpp", "llama.cpp f16")
    )
    assert len(run_.measurements) == 2


@pytest.mark.usefixtures("_importable")
def test_an_interrupted_run_leaves_no_file(files: Path) -> None:
    seen = []

    def report(done: int, total: int, what: str) -> None:
        seen.append(what)
        if "warming up" in what:
            assert len(list(files.rglob("*.gguf"))) == 2
            raise KeyboardInterrupt

    assert bench(report=report).partial
    assert "writing the target for llama.cpp, in f16, until the end of the run" in seen
    assert list(files.iterdir()) == []


def bench(report: Any = lambda *_: None, **settings: Any) -> BenchResult:
    matrix = Matrix(
        **{
            "contenders": (Contender("outrider", "ngram", "block", 2),),
            "temperatures": (0.0,),
            "max_tokens": 24,
            "peers": ("llama.cpp",),
            "peer_depths": (3,),
            "curve_rows": (),
            **settings,
        }
    )
    prompts = tuple(Prompt(tuple(range(first, first + 9)), "") for first in (1, 20, 40))
    return run(matrix, (Workload("kind", prompts),), lambda _: pair(model()), {}, report)


@pytest.fixture
def _real() -> None:
    pytest.importorskip("llama_cpp")


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    """A way of making an entrant over a model."""
    with ExitStack() as held:

        def make(hf_model: Any, contender: Contender = PLAIN, number: Any = "f32") -> LlamaEntrant:
            path = tmp_path / f"{contender.label}.gguf"
            gguf.write(hf_model, path, number)
            entrant = LlamaEntrant(contender, path, number)
            held.callback(entrant.close)
            return entrant

        yield make


def decoded(entrant: LlamaEntrant, prompt: Any, seed: int = 0, **asked: Any) -> Any:
    lane = entrant.lane([prompt], [SamplingParams(ignore_eos=True, **asked)], seed)
    lane.advance()
    assert not lane.running
    assert lane.failure is None
    return lane


@pytest.mark.usefixtures("_real")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
        {"head_dim": 16},
    ],
)
def test_logits_are_those_of_transformers(tmp_path: Path, settings: dict[str, Any]) -> None:
    import llama_cpp

    torch.manual_seed(0)
    config = tf.LlamaConfig(
        **{
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            **settings,
        }
    )
    hf_model = tf.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in hf_model.parameters():
            parameter.normal_(1 if parameter.ndim == 1 else 0, 0.3)
    tokens = torch.randint(VOCAB, (CONTEXT,)).tolist()
    gguf.write(hf_model, tmp_path / "model.gguf", "f32")
    llama = llama_cpp.Llama(
        str(tmp_path / "model.gguf"),
        n_ctx=256,
        logits_all=True,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        verbose=False,
    )
    llama.eval(tokens)
    scores = torch.from_numpy(llama.scores[:CONTEXT].copy())
    llama.close()
    with torch.inference_mode():
        logits = hf_model(torch.tensor([tokens])).logits[0]
    assert logits.std() > 1
    assert torch.allclose(scores, logits, atol=2e-3)


@pytest.fixture(scope="module")
def shipped() -> tuple[Any, list[tuple[list[int], tuple[int, ...]]]]:
    """The demo's target, and what transformers makes of two prompts."""
    demo = load("demo", dtype="float32", device="cpu")
    hf_model = demo.target.hf_model
    prompts = [demo.tokenizer(text)["input_ids"] for text in PROMPTS[:2]]
    return hf_model, [(prompt, greedy_reference(hf_model, prompt, 32)) for prompt in prompts]


@pytest.mark.usefixtures("_real")
@pytest.mark.parametrize("contender", [PLAIN, LOOKUP])
def test_greedy_tokens_of_the_demo_are_those_of_transformers(
    shipped: Any, made: Any, contender: Contender
) -> None:
    """Or the first that differs is nearly tied with the other."""
    hf_model, texts = shipped
    entrant = made(hf_model, contender)
    for prompt, expected in texts:
        (tokens,) = decoded(entrant, prompt, max_tokens=32, temperature=0).token_ids
        assert len(tokens) == 32
        at = next((at for at in range(32) if tokens[at] != expected[at]), None)
        if at is not None:
            with torch.inference_mode():
                logits = hf_model(torch.tensor([[*prompt, *expected[:at]]])).logits[0, -1]
            assert logits[expected[at]] - logits[tokens[at]] < 1e-3


@pytest.mark.usefixtures("_real")
def test_rounds_of_prompt_lookup(made: Any) -> None:
    """A text that repeats itself: drafts are looked up, and those that are kept are counted."""
    hf_model = model()
    prompt = [1, 2, 3, 4, 5] * 6
    plain = decoded(made(hf_model), prompt, max_tokens=40, temperature=0)
    lookup = decoded(made(hf_model, LOOKUP), prompt, max_tokens=40, temperature=0)
    assert plain.token_ids == lookup.token_ids
    assert [record.drafted for record in plain.records] == [(0,)] * 40
    assert [record.emitted for record in plain.records] == [(1,)] * 40
    assert sum(record.emitted[0] for record in lookup.records) == 40
    assert {record.drafted[0] for record in lookup.records} <= {0, 1, 2, 3}
    assert sum(record.accepted[0] for record in lookup.records) > 0
    for record in lookup.records[:-1]:
        assert record.emitted[0] == record.accepted[0] + 1
    assert len(lookup.records) < 40
    assert lookup.records[0].draft_s > 0 == plain.records[0].draft_s
    assert 0 < lookup.prompt_s < lookup.prompt_s + lookup.seconds


@pytest.mark.usefixtures("_real")
@pytest.mark.parametrize("contender", [PLAIN, LOOKUP])
def test_every_prompt_is_read_whole(
    made: Any, contender: Contender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither it nor its beginning is found in the cache."""
    import llama_cpp

    whole, read = llama_cpp.Llama.eval, []

    def counted(self: Any, tokens: Any) -> None:
        read.append(len(tokens))
        whole(self, tokens)

    monkeypatch.setattr(llama_cpp.Llama, "eval", counted)
    entrant = made(model(), contender)
    prompt = list(range(1, 30))
    texts = []
    for each in (prompt, [*prompt[:20], 50, 51], prompt, prompt):
        read.clear()
        texts.append(decoded(entrant, each, max_tokens=12, temperature=0).token_ids)
        assert read[0] == len(each)
        assert max(read[1:]) <= 4
    assert texts[0] == texts[2] == texts[3]


@pytest.mark.usefixtures("_real")
def test_a_prompt_longer_than_the_room_there_was(made: Any) -> None:
    entrant = made(model(), LOOKUP)
    for length in (10, 1100):
        prompt = [1 + step % 50 for step in range(length)]
        assert len(decoded(entrant, prompt, max_tokens=5, temperature=0).token_ids[0]) == 5


@pytest.mark.usefixtures("_real")
@pytest.mark.parametrize("contender", [PLAIN, LOOKUP])
def test_sampling_is_by_temperature_alone(made: Any, contender: Contender) -> None:
    """The rank of the second token after the first, by chi-square over fixed seeds; and how often
    it is one that a filter would cut off, which llama-cpp-python has on by default and applies
    before the temperature. One run in 100,000 fails by chance.
    """
    hf_model = model()
    with torch.no_grad():
        hf_model.lm_head.weight.mul_(0.5)
    prompt, edges = [7, 8, 9, 7, 8], (1, 5, 10, 20, 30, 40, VOCAB)
    with torch.inference_mode():
        ids = torch.tensor([[*prompt, token] for token in range(VOCAB)])
        logits, ranked = hf_model(ids).logits[:, -1].double().sort(1, descending=True)
    unscaled, likely = torch.softmax(logits, 1), torch.softmax(logits / 1.5, 1)
    cut = {
        "top_k": torch.arange(VOCAB).expand(VOCAB, -1) >= 40,
        "top_p": unscaled.cumsum(1) - unscaled >= 0.95,
        "min_p": unscaled < 0.05 * unscaled[:, :1],
    }
    entrant = made(hf_model, contender)
    seconds, firsts = torch.zeros(2, VOCAB, VOCAB, dtype=torch.float64)
    for seed in range(1000):
        lane = decoded(entrant, prompt, seed, max_tokens=2, temperature=1.5)
        ((first, second),) = lane.token_ids
        seconds[first] += ranked[first] == second
        firsts[first] += likely[first]
    sizes = [high - low for low, high in pairwise((0, *edges))]
    counts, means = (
        torch.stack([part.sum() for part in each.split(sizes, 1)]) for each in (seconds, firsts)
    )
    assert means.min() > 20
    distance = ((counts - means) ** 2 / means).sum()
    degrees = torch.tensor(len(edges) - 1, dtype=torch.float64)
    assert torch.special.gammaincc(degrees / 2, distance / 2) > 1e-6
    for name, tail in cut.items():
        mean = firsts[tail].sum()
        assert mean > 40, name
        assert abs(seconds[tail].sum() - mean) < 5 * mean.sqrt(), name


@pytest.mark.usefixtures("_real")
def test_bfloat16_is_decoded(made: Any) -> None:
    """Each token is the likeliest, or nearly: both sides round as they like, to 8 bits."""
    hf_model = model().bfloat16()
    prompt = [7, 8, 9, 7, 8]
    (tokens,) = decoded(
        made(hf_model, number="bf16"), prompt, max_tokens=8, temperature=0
    ).token_ids
    assert len(tokens) == 8
    with torch.inference_mode():
        logits = hf_model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert (logits.amax(1) - chosen).max() < 0.05 * logits.std()


@pytest.mark.usefixtures("_real")
@pytest.mark.parametrize("contender", [PLAIN, LOOKUP])
def test_what_is_closed_is_freed_at_once(made: Any, contender: Contender) -> None:
    """Its array of logits does not wait for the collector of cycles."""
    entrant = made(model(), contender)
    gc.disable()
    try:
        assert decoded(entrant, [1, 2, 3] * 3, max_tokens=5, temperature=0).token_ids
        scores = weakref.ref(entrant._llama.scores)
        whole = weakref.ref(entrant._llama)
        entrant.close()
        assert whole() is None
        assert scores() is None
    finally:
        gc.enable()


@pytest.mark.usefixtures("_real")
def test_seeds(made: Any) -> None:
    entrant = made(model())
    texts = [
        decoded(entrant, [1, 2, 3], seed, max_tokens=20, temperature=1.0).token_ids
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.usefixtures("_real")
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_run_beside_outrider(files: Path, temperature: float) -> None:
    found = bench(temperatures=(temperature,))
    assert found.missing == ()
    labels = ["llama.cpp plain", "llama.cpp ngram k=3", "llama.cpp f16 plain"]
    others = found.measurements[2:]
    assert [each.contender.label for each in others] == labels
    for each in others:
        assert each.tokens == (24, 24, 24)
        assert each.metrics is not None
        assert each.metrics.emitted == 72
        assert each.speedup is not None
    # Rounded weights are another model: it is labelled, and not held to this one's text.
    assert [each.metrics and each.metrics.lossy for each in others] == [False, False, True]
    same = 3 if temperature == 0 else None
    assert [each.identical for each in others] == [same, same, None]
    assert list(files.iterdir()) == []
