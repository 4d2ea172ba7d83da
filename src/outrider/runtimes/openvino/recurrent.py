"""Recurrent layers of hybrid models in a graph: placeholders, and the operators in their place.

OpenVINO's CPU plugin computes a gated delta rule, Mamba 2's scan and causal convolutions from the
rows of a table of states, and writes the state after every so many tokens to other rows; see
`StateRows`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn.functional import softplus
from transformers.activations import ACT2FN

from ...errors import missing
from ..transformers.mixers import by_functions, called, mixers, normed
from .operators import extension, placeholder

with missing("openvino"):
    import openvino as ov
    import openvino.opset13 as ops

ROWS = ("state_rows", "state_rows_begins", "state_past", "state_interval")
"""What the operators have to know of a flat batch beside where its sequences begin."""


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A recurrence or a convolution of one layer.

    Attributes:
        name: of its placeholder.
        kind: of its operator.
        shapes: of what the operator is given in turn; -1 for the tokens.
        table: the shape of a state.
        place: which input the table of states is, after so many of these.
        made: heads and width of what it makes of a token; or the width alone.
    """

    name: str
    kind: str
    shapes: tuple[tuple[int, ...], ...]
    table: tuple[int, ...]
    place: int
    made: tuple[int, ...]


class Recurrences:
    """Recurrent layers as a model is traced: notes what each asks for.

    Attributes:
        sites: of the layers so far.
    """

    def __init__(self) -> None:
        self.sites: list[Recurrence] = []

    def enter(self, twin: Any) -> None:
        """Let a twin's recurrent layers become placeholders.

        Raises:
            ValueError: one calls a function that no operator computes.
        """
        known: dict[str, Callable[..., Any]] = {
            "causal_conv1d_fn": self._convolution,
            "torch_chunk_gated_delta_rule": self._delta,
            "mamba2_chunk_scan": self._scan,
        }
        for layer in mixers(twin):
            if other := sorted(called(layer) - known.keys()):
                raise ValueError(f"OpenVINO has no operator that computes {other[0]} exactly")
            own = {name: known[name] for name in called(layer)}
            vars(layer)["forward"] = partial(by_functions, layer, own)

    def _convolution(
        self,
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **_: Any,
    ) -> Tensor:
        """Convolve inputs [1, C, T]."""
        width, kernel = map(int, weight.shape)
        bias = weight.new_zeros(width) if bias is None else bias
        given = hidden_states.transpose(1, 2), weight[:, None], bias
        made = self._placeholder("PagedCausalConv1D", given, (width, kernel), 1, (width,))
        made = made.transpose(1, 2)
        return made if activation is None else ACT2FN[activation](made)

    def _delta(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        g: Tensor,
        beta: Tensor,
        use_qk_l2norm_in_kernel: bool = False,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """Compute the gated delta rule of queries and keys [1, T, H, K], values [1, T, H', V]."""
        if use_qk_l2norm_in_kernel:
            query, key = normed(query), normed(key)
        values = value.shape[2:]
        state, given = (*values, key.shape[3]), (query, key, value, g, beta)
        return self._placeholder("PagedGatedDeltaNet", given, state, 3, values), None

    def _scan(
        self,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        return_final_states: bool = False,
        **_: Any,
    ) -> Any:
        """Compute Mamba 2's scan of inputs [1, T, H, P], keys and queries [1, T, G, N]."""
        size = dt if dt_bias is None else dt + dt_bias
        size = (softplus(size) if dt_softplus else size).clamp(*dt_limit)
        values = hidden_states.shape[2:]
        state, given = (*values, B.shape[3]), (A, size, B, hidden_states, C)
        made = self._placeholder("PagedSelectiveSSM", given, state, 5, values)
        made = made if D is None else made + D[:, None] * hidden_states
        return (made, None) if return_final_states else made

    def _placeholder(
        self,
        kind: str,
        given: Sequence[Tensor],
        table: Sequence[int],
        place: int,
        made: Sequence[int],
    ) -> Tensor:
        """Return a placeholder [1, T, *made] for an operator of tokens [1, T, ...] and weights."""
        known = [tuple(map(int, each.shape)) for each in given]
        shapes = tuple((-1, *each[2:]) if each[0] == 1 < len(each) else each for each in known)
        shape = tuple(map(int, made))
        name, state = f"recurrence.{len(self.sites)}", tuple(map(int, table))
        self.sites.append(Recurrence(name, kind, shapes, state, place, shape))
        tokens = next(number for number, each in enumerate(shapes) if each[0] < 0)

        def zeros(*flat: Tensor) -> Tensor:
            count = flat[tokens].shape[0] // int(np.prod(shapes[tokens][1:]))
            return flat[tokens].new_zeros(1, count, *shape)

        return placeholder(name, 0, shape, zeros, [each.flatten() for each in given])


def operator(
    site: Recurrence, hole: ov.Node, table: ov.Node, tables: Sequence[ov.Output]
) -> ov.Node:
    """Make the operator of a placeholder.

    Args:
        site: what it stands for.
        hole: the placeholder.
        table: of the states.
        tables: where sequences begin, and `ROWS`.
    """
    given = [
        ops.reshape(hole.input_value(place), ops.constant(np.array(shape)), False).output(0)
        for place, shape in enumerate(site.shapes)
    ]
    given.insert(site.place, table.output(0))
    return extension(site.kind, [*given, *tables], 1 + len(site.made))
