"""Whether what a model keeps of a sequence can be cut back: drafts that are refused need it to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ...errors import ModelError
from ...types.records import Distributions, DraftProposal, Prefix

if TYPE_CHECKING:
    from .model import TransformersModel

_PROBE = -1
"""The sequence id of the check."""


@torch.inference_mode()
def check_rollback(model: TransformersModel) -> None:
    """Compare tokens decoded past and beside rejected drafts with the model's full forward.

    Args:
        model: with no sequence live.

    Raises:
        ModelError: they differ, or logits mean nothing.
    """
    ids = [i * 7 % model.vocab_size for i in range(1, 7)]
    full = model.run(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
    expected = full.logits[0, -2:].double()
    if not torch.isfinite(expected).all():
        raise ModelError(
            f"{type(model.hf_model).__name__} gives NaN or infinite logits for a few tokens; "
            "check its weights, or load it in a wider dtype"
        )
    below = _outright(ids[1::-1], [0, 1], model.device)
    model.verify([Prefix(_PROBE, ids[:3])], below)
    beside = _outright([ids[0], ids[5]], [0, 0], model.device)
    found = model.verify([Prefix(_PROBE, ids[:5])], beside).logits[0, [0, 2]].double()
    model.release([_PROBE], discard=True)
    shorter = model.run(input_ids=torch.tensor([ids[:5]] * 2, device=model.device), use_cache=False)
    scale = expected.abs().max().clamp(min=1e-9)
    error = float((found - expected).abs().max() / scale)
    # What the model's own forward varies by, with the shape of its batch, is not held against
    # the cache.
    noise = float((shorter.logits[0, -1].double() - expected[0]).abs().max() / scale)
    # Some models take a softmax in float32, whatever their own dtype.
    eps = max(torch.finfo(dtype).eps for dtype in (full.logits.dtype, torch.float32))
    tolerance = max(8 * eps, eps**0.75, 8 * noise)
    if not error <= tolerance:
        raise ModelError(
            f"{type(model.hf_model).__name__} gives other logits after a rejected draft than in "
            f"a full forward (relative error {error:.2g}, allowed {tolerance:.2g}); its state "
            "cannot be cut back to an earlier token, so it cannot be decoded speculatively"
        )


def _outright(tokens: list[int], parents: list[int], device: torch.device) -> DraftProposal:
    """A proposal of one row's tokens, each proposed outright."""
    drafted = torch.tensor([tokens], device=device)
    lengths = np.array([len(tokens)])
    return DraftProposal(drafted, lengths, Distributions(point_masses=drafted), np.array([parents]))
