"""Whether what a model keeps of a sequence can be cut back: drafts that are refused need it to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ...errors import ModelError
from ...types.records import Distributions, DraftProposal, Prefix
from ..base import rounding_of, tolerated

if TYPE_CHECKING:
    from .model import TransformersModel

_PROBE = -1
"""The sequence id of the check."""


@torch.inference_mode()
def check_rollback(model: TransformersModel) -> None:
    """Decode past and beside two different pairs of rejected drafts, and compare the logits.

    They are compared with the model's full forward, within the rounding of what computes. That may
    be wider than what a token left in the cache brings about. So they are compared with one another
    too: the same forward on the same cache rounds alike, and the rejected tokens must not show.

    Args:
        model: with no sequence live.

    Raises:
        ModelError: they differ, or logits are not finite.
    """
    name = type(model.hf_model).__name__
    ids = [i * 7 % model.vocab_size for i in range(1, 7)]
    drafts = ids[1::-1], [(token + 1) % model.vocab_size for token in ids[1::-1]]
    full = model.uncached([ids])[0]
    # Some models take a softmax in float32, whatever their own dtype.
    least = rounding_of(torch.finfo(torch.float32).eps)
    rounding = max(model.rounding, least, rounding_of(torch.finfo(full.dtype).eps))
    if not torch.isfinite(full[-2:]).all():
        raise ModelError(
            f"{name} gives NaN or infinite logits for a few tokens; "
            "check its weights, or load it in a wider dtype"
        )
    found = torch.stack([_after(model, ids, each) for each in drafts])
    uncut = model.uncached([[*ids[:3], *each, *ids[3:5]] for each in drafts])
    scale = full[-2:].abs().max().double().clamp(min=1e-9)

    def apart(one: Tensor, other: Tensor) -> float:
        return float((one.double() - other.double()).abs().max() / scale)

    varies = apart(uncut[:, :3], full[:3])
    if not varies <= min(0.25, 4 * tolerated(rounding)):
        raise ModelError(
            f"{name} gives other logits for the same beginning where other tokens follow (relative "
            f"error {varies:.2g}): it looks ahead, as encoders do; expected a decoder, which sees "
            "earlier tokens alone"
        )
    # What the model's own forward varies by, with the shape of its batch, is not held against
    # the cache.
    allowed = max(tolerated(rounding), 8 * varies)
    error = apart(found, full[-2:])
    if not error <= allowed:
        raise ModelError(
            f"{name} gives other logits after a rejected draft than in a full forward (relative "
            f"error {error:.2g}, allowed {allowed:.2g}): it cannot be cut back to an earlier "
            "token, or takes other positions or masks with its cache than without; so it cannot be "
            "decoded speculatively"
        )
    allowed = max(least, min(rounding, apart(uncut[0, -1], uncut[1, -1]) / 4))
    trace = apart(found[0], found[1])
    if not trace <= allowed:
        raise ModelError(
            f"{name} gives other logits after one rejected draft than after another (relative "
            f"error {trace:.2g}, allowed {allowed:.2g}); its state cannot be cut back to an "
            "earlier token, so it cannot be decoded speculatively"
        )


def _after(model: TransformersModel, ids: list[int], refused: list[int]) -> Tensor:
    """Logits [2, V] after five and six tokens, two others having been drafted after the third."""
    model.verify([Prefix(_PROBE, ids[:3])], _point_masses(refused, [0, 1], model.device))
    beside = _point_masses([ids[0], ids[5]], [0, 0], model.device)
    logits = model.verify([Prefix(_PROBE, ids[:5])], beside).logits[0, [0, 2]]
    model.release([_PROBE], discard=True)
    return logits


def _point_masses(tokens: list[int], parents: list[int], device: torch.device) -> DraftProposal:
    """A proposal of one row's tokens, each a point mass."""
    drafted = torch.tensor([tokens], device=device)
    lengths = np.array([len(tokens)])
    return DraftProposal(drafted, lengths, Distributions(point_masses=drafted), np.array([parents]))
