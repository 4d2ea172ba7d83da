"""Records of other engines are read for what they are, and depths predicted from them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outrider.errors import InvalidConfigError
from outrider.integrations.engine_records import Engine, read_records
from tests.support.engine_answers import of_vllm


def test_histograms_give_the_lengths_of_smaller_depths() -> None:
    text = "\n".join(json.dumps(each) for each in (of_vllm(), {"choices": []}, of_vllm()))
    found = read_records("vllm", text, "x")
    assert (found.requests, found.rounds, found.drafted, found.accepted) == (2, 20, 60, 34)
    assert found.exact
    assert found.length == pytest.approx(2.7)
    assert found.lengths() == pytest.approx([1, 1.8, 2.3, 2.7])
    steps = [0, 0, 1, 1, 1, 2, 3, 3, 3, 3]
    assert read_records("vllm", json.dumps([of_vllm(per_step_accepted=steps)]), "x").lengths() == (
        pytest.approx([1, 1.8, 2.3, 2.7])
    )


def test_vllms_counters_are_read_by_position() -> None:
    text = """# HELP vllm:spec_decode_num_drafts_total Number of rounds.
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 30.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 17.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 8.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="2"} 4.0
"""
    found = read_records("vllm", text, "metrics.txt")
    assert (found.rounds, found.accepted, found.depth) == (10, 17, 3)
    assert found.lengths() == pytest.approx([1, 1.8, 2.3, 2.7])


def test_sums_alone_are_taken_to_be_of_tokens_that_are_kept_alike() -> None:
    timings = {"predicted_n": 100, "draft_n": 100, "draft_n_accepted": 75}
    found = read_records("llama.cpp", f"data: {json.dumps({'timings': timings})}", "x")
    assert (found.rounds, found.depth, found.exact) == (25, 4, False)
    lengths = found.lengths()
    assert lengths[0] == 1
    assert lengths[4] == pytest.approx(found.length) == pytest.approx(4.0)
    meta = {"spec_verify_ct": 20, "completion_tokens": 60, "spec_draft_token_num": 60}
    found = read_records("sglang", json.dumps({"meta_info": meta}), "x")
    assert (found.rounds, found.accepted, found.depth) == (20, 40, 3)
    assert found.lengths()[3] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("engine", "answer"),
    [
        ("vllm", {"metrics": {"speculative_decoding": {"num_spec_steps": 3}}}),
        ("vllm", {"metrics": 7}),
        ("sglang", {"meta_info": [1]}),
        ("sglang", {"meta_info": {"spec_verify_ct": "many", "completion_tokens": 3}}),
        ("llama.cpp", {"timings": {"draft_n": 3, "draft_n_accepted": 1}}),
    ],
)
def test_broken_records_are_described(engine: Engine, answer: Any) -> None:
    with pytest.raises(InvalidConfigError, match="answers with"):
        read_records(engine, json.dumps(answer), "x")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp"])
@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '{"choices": []}', "a b c"])
def test_files_of_something_else_are_refused(engine: Engine, text: str) -> None:
    with pytest.raises(InvalidConfigError, match="nothing of that is in it"):
        read_records(engine, text, "x")
