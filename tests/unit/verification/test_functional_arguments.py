"""Bad input to the pure functions is refused by name; nothing else escapes."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import (
    accept,
    adjusted_distribution,
    compute_acceptance_probs,
    compute_expected_tokens,
    resample_from_adjusted_target,
    sample_from_logprobs,
    sample_index,
    verify_speculative_tokens,
)
from outrider.errors import (
    DegenerateDistributionError,
    DistributionWidthError,
    DraftShapeError,
    InvalidConfigError,
    OutriderError,
    TargetShapeError,
    TokenOutOfRangeError,
)
from tests.support.arrays import LIBRARIES, bounded, logs, round_of

D, T, X = round_of(10, 2, 3, 4)
LOG = logs(np.array([0.25, 0.75]))


def changed(array: Any, index: Any, value: float) -> Any:
    copy = np.array(array)
    copy[index] = value
    return copy


def verification(draft: Any = D, target: Any = T, tokens: Any = X, **options: Any) -> object:
    return verify_speculative_tokens(draft, target, tokens, **{"seed": 1, **options})


NOT_DRAWN = changed(changed(D, (1, 2), 0.0), (1, 2, 0), 1.0)

BAD: list[tuple[type[OutriderError], str, Callable[[], object]]] = [
    (DraftShapeError, r"draft_probs has shape \(3, 4\)", lambda: verification(D[0])),
    (
        TargetShapeError,
        r"expected \[2, 4, V\], a distribution",
        lambda: verification(target=T[:, :3]),
    ),
    (TargetShapeError, "target_probs has shape", lambda: verification(target=T[:1])),
    (TargetShapeError, "target_probs has shape", lambda: verification(target=T[0])),
    (DraftShapeError, "draft_tokens has shape", lambda: verification(tokens=X[:, :2])),
    (DraftShapeError, "draft_tokens has shape", lambda: verification(tokens=X[:, :, None])),
    (DraftShapeError, "integer token ids", lambda: verification(tokens=X * 1.0)),
    (DraftShapeError, "integer token ids", lambda: verification(tokens=X > 0)),
    (DraftShapeError, "dtype int64", lambda: verification(np.ones((2, 3, 4), dtype=np.int64))),
    (TargetShapeError, "dtype complex128", lambda: verification(target=T + 0j)),
    (DistributionWidthError, "of 4", lambda: verification(target=T[:, :, :3])),
    (DistributionWidthError, "at least one", lambda: verification(D[..., :0], T[..., :0])),
    (
        DegenerateDistributionError,
        r"draft_probs\[0, 1\]",
        lambda: verification(changed(D, (0, 1, 2), np.nan)),
    ),
    (
        DegenerateDistributionError,
        r"target_probs\[1, 3\].*least entry -0.5",
        lambda: compute_acceptance_probs(D, changed(T, (1, 3), [-0.5, 1.5, 0, 0])),
    ),
    (DegenerateDistributionError, "sum to one", lambda: verification(target=T * 1.001)),
    (DegenerateDistributionError, "sum to one", lambda: verification(target=T * 0)),
    (DegenerateDistributionError, "inf", lambda: verification(changed(D, (0, 0, 0), np.inf))),
    (
        DegenerateDistributionError,
        r"draft_tokens\[1, 2\] = 3 probability 0",
        lambda: verification(NOT_DRAWN, tokens=changed(X, (1, 2), 3)),
    ),
    (
        TokenOutOfRangeError,
        r"draft_tokens\[0, 1\] is 4",
        lambda: verification(tokens=changed(X, (0, 1), 4)),
    ),
    (TokenOutOfRangeError, r"0\.\.3", lambda: verification(tokens=changed(X, (1, 2), -1))),
    (InvalidConfigError, "seed=-1", lambda: verification(seed=-1)),
    (InvalidConfigError, "seed=18446744073709551616", lambda: verification(seed=2**64)),
    (InvalidConfigError, "seed=1.5", lambda: verification(seed=1.5)),
    (InvalidConfigError, "seed=True", lambda: verification(seed=True)),
    (InvalidConfigError, "step=4294967296", lambda: verification(step=2**32)),
    (InvalidConfigError, "method='tokens'.*'token'", lambda: verification(method="tokens")),
    (
        InvalidConfigError,
        r"^draft_tokens is of type torch.Tensor and draft_probs of type numpy.ndarray; expected "
        "arrays of one library: convert one of them$",
        lambda: verification(tokens=torch.tensor(X)),
    ),
    (
        InvalidConfigError,
        "^draft_probs is of type list; expected an array of NumPy, PyTorch or another array-API "
        "library: convert it$",
        lambda: verification(np.tile(D, (1, 500, 1)).tolist()),
    ),
    (
        InvalidConfigError,
        "^target_probs is on meta and draft_probs on cpu; expected arrays on one device",
        lambda: compute_acceptance_probs(torch.tensor(D), torch.tensor(T, device="meta")),
    ),
    (DraftShapeError, "draft_probs", lambda: compute_acceptance_probs(D[0], T)),
    (TargetShapeError, "target_probs", lambda: compute_acceptance_probs(D, T[:, :2])),
    (TargetShapeError, "target_probs", lambda: compute_acceptance_probs(D, T[0])),
    (DistributionWidthError, "of 4", lambda: compute_acceptance_probs(D, T[..., :2])),
    (DegenerateDistributionError, "sum to one", lambda: compute_acceptance_probs(D, T * 2)),
    (InvalidConfigError, "torch", lambda: compute_acceptance_probs(D, torch.tensor(T))),
    (DraftShapeError, "acceptance_rates", lambda: compute_expected_tokens(np.ones(3))),
    (InvalidConfigError, "=1.5", lambda: compute_expected_tokens(np.array([[0.5, 1.5]]))),
    (InvalidConfigError, "=nan", lambda: compute_expected_tokens(np.array([[np.nan]]))),
    (InvalidConfigError, "dtype", lambda: compute_expected_tokens(np.array([[1]]))),
    (InvalidConfigError, "uniform=1.0", lambda: accept(-1.0, -1.0, 1.0)),
    (InvalidConfigError, "uniform=-0.1", lambda: accept(-1.0, -1.0, np.array([0.2, -0.1]))),
    (InvalidConfigError, "draft_logprob=None", lambda: accept(None, -1.0, 0.5)),
    (DegenerateDistributionError, "target_logprob", lambda: accept(-1.0, 0.3, 0.5)),
    (DegenerateDistributionError, "draft_logprob.*nan", lambda: accept(math.nan, -1.0, 0.5)),
    (DegenerateDistributionError, "dtype", lambda: accept(np.array([0]), -1.0, 0.5)),
    (TargetShapeError, "broadcast", lambda: accept(-np.ones(2), -np.ones(3), 0.5)),
    (InvalidConfigError, "torch", lambda: accept(-np.ones(2), -torch.ones(2), 0.5)),
    (DistributionWidthError, "of 2", lambda: adjusted_distribution(LOG, LOG[:1])),
    (DistributionWidthError, "at least one", lambda: adjusted_distribution(LOG[:0], LOG[:0])),
    (DraftShapeError, "draft_logprobs", lambda: adjusted_distribution(LOG, LOG[None])),
    (DegenerateDistributionError, "logarithms", lambda: adjusted_distribution(LOG, np.exp(LOG))),
    (DegenerateDistributionError, "nan", lambda: adjusted_distribution(LOG * np.nan, LOG)),
    (DegenerateDistributionError, "target_log", lambda: adjusted_distribution(LOG + 1000, LOG)),
    (DegenerateDistributionError, "mass 0.0", lambda: adjusted_distribution(LOG - np.inf, LOG)),
    (InvalidConfigError, "uniform", lambda: resample_from_adjusted_target(LOG, LOG, 1.0)),
    (InvalidConfigError, "shape", lambda: resample_from_adjusted_target(LOG[None], LOG[None], 0.5)),
    (DegenerateDistributionError, "logprobs", lambda: sample_from_logprobs(np.exp(LOG), 0.5)),
    (
        DegenerateDistributionError,
        r"^logprobs has total mass 30\.19\d* and greatest entry 3.0; expected logarithms of .*: "
        "take the log-softmax of logits first",
        lambda: sample_from_logprobs(np.array([3.0, 2.0, 1.0]), 0.5),
    ),
    (
        DegenerateDistributionError,
        r"^logprobs has total mass 1\.40\d*e\+217 and greatest entry 1000.0; expected",
        lambda: sample_from_logprobs(np.array([1000.0]), 0.5),
    ),
    (DistributionWidthError, "logprobs", lambda: sample_from_logprobs(np.array(0.0), 0.5)),
    (InvalidConfigError, "logprobs", lambda: sample_from_logprobs([0.0], 0.5)),
    (DegenerateDistributionError, "probs has total", lambda: sample_index(np.array([0.5]), 0.5)),
    (DegenerateDistributionError, "-1.0", lambda: sample_index(np.array([-1.0, 2.0]), 0.5)),
    (DegenerateDistributionError, "dtype", lambda: sample_index(np.array([0, 1]), 0.5)),
    (DistributionWidthError, "probs", lambda: sample_index(np.zeros((2, 0)), np.zeros(2))),
    (InvalidConfigError, "uniform='half'", lambda: sample_index(np.array([1.0]), "half")),
    (InvalidConfigError, "uniform=nan", lambda: sample_index(np.array([1.0]), math.nan)),
    (InvalidConfigError, "dtype", lambda: sample_index(np.array([[1.0]]), np.array([0]))),
    (
        InvalidConfigError,
        r"shape \(2,\)",
        lambda: sample_index(np.array([[1.0]]), np.zeros(2)),
    ),
    (
        InvalidConfigError,
        "torch",
        lambda: sample_index(np.array([[1.0]]), torch.zeros(1)),
    ),
]


@pytest.mark.parametrize(("error", "message", "call"), BAD)
def test_bad_input_is_refused_by_name(
    error: type[OutriderError], message: str, call: Callable[[], object]
) -> None:
    with pytest.raises(error, match=message) as caught:
        call()
    assert type(caught.value) is error
    assert "expected" in str(caught.value)


@bounded
@given(
    st.data(),
    st.sampled_from(["draft", "target"]),
    st.sampled_from([np.nan, -1e-3, 1e-3, np.inf, -np.inf]),
    st.sampled_from([np.float32, np.float64]),
)
def test_one_bad_entry_anywhere_is_found(
    data: st.DataObject, side: str, error: float, dtype: Any
) -> None:
    draft, target, tokens = round_of(data.draw(st.integers(0, 99)), 2, 2, 5, dtype)
    rows = {"draft": draft, "target": target}
    index = tuple(data.draw(st.integers(0, size - 1)) for size in rows[side].shape)
    rows[side][index] += error
    place = rf"{side}_probs\[{index[0]}, {index[1]}\]"
    for make in LIBRARIES.values():
        arrays = (make(rows["draft"]), make(rows["target"]))
        if side == "draft" or index[1] == 0:  # the target's other rows may be out of reach
            with pytest.raises(DegenerateDistributionError, match=place):
                verify_speculative_tokens(*arrays, make(tokens), seed=0)
        with pytest.raises(DegenerateDistributionError, match=place):
            compute_acceptance_probs(make(rows["draft"]), make(rows["target"]))


@bounded
@given(
    st.lists(st.integers(0, 3), max_size=4),
    st.lists(st.integers(0, 3), max_size=4),
    st.lists(st.integers(0, 3), max_size=3),
)
def test_any_shapes_give_an_answer_or_an_error_of_ours(
    draft: list[int], target: list[int], tokens: list[int]
) -> None:
    def rows(shape: list[int]) -> Any:
        return np.full(shape, 1 / shape[-1] if shape and shape[-1] else 1.0)

    fits = len(draft) == 3 and target == [draft[0], draft[1] + 1, draft[2]]
    fits = fits and tokens == draft[:2] and draft[2] > 0
    arguments = rows(draft), rows(target), np.zeros(tokens, dtype=np.int64)
    if fits:
        assert verify_speculative_tokens(*arguments, seed=0).num_accepted.shape == (draft[0],)
    else:
        with pytest.raises(OutriderError):
            verify_speculative_tokens(*arguments, seed=0)


FUNCTIONS: dict[str, tuple[Callable[..., object], int]] = {
    "verify": (lambda *arrays: verify_speculative_tokens(*arrays, seed=0), 3),
    "acceptance": (compute_acceptance_probs, 2),
    "expected": (compute_expected_tokens, 1),
    "accept": (accept, 3),
    "adjusted": (adjusted_distribution, 2),
    "resample": (resample_from_adjusted_target, 3),
    "logprobs": (sample_from_logprobs, 2),
    "index": (sample_index, 2),
}
SHAPES = [(), (0,), (2,), (3,), (1, 2), (2, 2), (0, 2), (2, 0), (2, 1, 2), (2, 2, 2), (2, 0, 2)]


def rows_of(kind: str, shape: tuple[int, ...]) -> Any:
    """An array of one shape: distributions, their logarithms, or something that is neither."""
    even = np.full(shape, 1 / shape[-1] if shape and shape[-1] else 1.0)
    made = {
        "distributions": even,
        "logs": np.log(even),
        "single": even.astype(np.float32),
        "zeros": even * 0,
        "nan": even * np.nan,
        "negative": -even,
        "large": even * 1e300,
        "minus infinity": np.full(shape, -np.inf),
        "infinity": np.full(shape, np.inf),
        "integers": np.ones(shape, dtype=np.int64),
        "booleans": np.ones(shape, dtype=bool),
        "complex": even + 0j,
    }
    return made[kind]


KINDS = ["distributions", "logs", "single", "zeros", "nan", "negative", "large", "minus infinity"]
KINDS += ["infinity", "integers", "booleans", "complex"]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.data(),
    st.sampled_from(sorted(FUNCTIONS)),
    st.sampled_from(sorted(LIBRARIES)),
)
def test_every_function_answers_or_raises_an_error_of_ours(
    data: st.DataObject, name: str, library: str
) -> None:
    """Warnings are errors here, so that none escapes either."""
    function, count = FUNCTIONS[name]
    arguments = []
    for _ in range(count):
        kind = data.draw(st.sampled_from([*KINDS, "number", "list", "none"]))
        if kind in KINDS:
            arguments.append(LIBRARIES[library](rows_of(kind, data.draw(st.sampled_from(SHAPES)))))
        else:
            arguments.append({"number": 0.5, "list": [0.5, 0.5], "none": None}[kind])
    with suppress(OutriderError):
        function(*arguments)
