"""The bound that a round's verdict measures, against every drafted chain."""

from __future__ import annotations

from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch

from outrider.certify.ceilings import exact_block_value
from outrider.verification.bounds import block_values
from tests.support.optima import paths, table


@pytest.mark.parametrize("library", ["numpy", "torch", "strict"])
def test_the_block_ceiling_is_unbiased(library: str) -> None:
    make: Any = {"numpy": np, "torch": torch, "strict": array_api_strict}[library].asarray
    target, draft = table(5, 3), table(6, 3)
    ratios, masses = [], []
    for mass, path, targets, drafts in paths(target, draft, 2):
        taken = [(targets[i, token] / drafts[i, token]) for i, token in enumerate(path)]
        ratios.append([*taken, np.nan])
        masses.append(mass)
    found = block_values(make(np.nan_to_num(np.array(ratios))))
    mean = float(np.asarray(found.tolist()) @ masses) if library == "torch" else None
    mean = float(np.asarray(found) @ masses) if mean is None else mean
    assert mean == pytest.approx(exact_block_value(target, draft, 2), abs=1e-13)
