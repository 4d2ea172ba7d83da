"""Placeholders for operators that no file can hold, and operators without a class in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ...errors import missing

with missing("openvino"):
    import openvino as ov
    import openvino.opset13 as ops
    from openvino.frontend.pytorch import inlined_extension

_TYPES = {ov.Type.f32: "FP32", ov.Type.i32: "I32"}


def placeholder(
    name: str, axis: int, shape: Sequence[int], made: Callable[..., Tensor], given: Sequence[Tensor]
) -> Tensor:
    """Put a placeholder into a model that is traced.

    Args:
        name: of the node of the graph whose inputs these are.
        axis: along which they can stand in one tensor.
        shape: of what is made of one token.
        made: makes of them what has the shape of the result, [1, T, *shape].
        given: the inputs.
    """

    class Placeholder(ov.Op):
        """Reads all inputs, and has the shape of what is made of them."""

        def __new__(cls, *inputs: Any) -> Any:
            joined = ops.concat(list(inputs), axis)
            joined.set_friendly_name(name)
            return ops.reshape(joined, ops.constant(np.array([1, -1, *shape])), False)

    found: Tensor = inlined_extension(Placeholder)(made)(*given)
    return found


def extension(kind: str, given: Sequence[ov.Output], rank: int) -> ov.Node:
    """Make an operator that the CPU plugin knows by name, by reading a graph of nothing else.

    Args:
        kind: its name.
        given: its inputs, float32 or int32.
        rank: of its output, float32.
    """
    last = len(given)
    sources = [(each.get_element_type(), len(each.get_partial_shape())) for each in given]
    ports = [_port(place, _TYPES[of], dims) for place, (of, dims) in enumerate(sources)]
    layers = [
        _layer(
            place,
            "Parameter",
            f'shape="{",".join("?" * dims)}" element_type="{of.get_type_name()}"',
            f"<output>{_port(0, _TYPES[of], dims)}</output>",
        )
        for place, (of, dims) in enumerate(sources)
    ]
    inside = f"<input>{''.join(ports)}</input><output>{_port(last, 'FP32', rank)}</output>"
    layers.append(_layer(last, kind, "", inside, "extension"))
    layers.append(_layer(last + 1, "Result", "", f"<input>{_port(0, 'FP32', rank)}</input>"))
    edges = [(place, 0, last, place) for place in range(last)] + [(last, last, last + 1, 0)]
    names = ("from-layer", "from-port", "to-layer", "to-port")
    lines = [" ".join(f'{n}="{i}"' for n, i in zip(names, edge, strict=True)) for edge in edges]
    core = ov.Core()
    core.get_property("CPU", "FULL_DEVICE_NAME")  # loads the plugin, and what it knows
    model = core.read_model(
        f'<net name="one" version="11"><layers>{"".join(layers)}</layers>'
        f"<edges>{''.join(f'<edge {line}/>' for line in lines)}</edges></net>",
        ov.Tensor(ov.Type.u8, ov.Shape([0])),
    )
    made = next(node for node in model.get_ops() if node.get_type_name() == kind)
    for place, each in enumerate(given):
        made.input(place).replace_source_output(each)
    return made


def _layer(number: int, kind: str, data: str, inside: str, version: str = "opset1") -> str:
    named = f'id="{number}" name="{number}" type="{kind}" version="{version}"'
    return f"<layer {named}><data {data}/>{inside}</layer>"


def _port(number: int, kind: str, rank: int) -> str:
    return f'<port id="{number}" precision="{kind}">{"<dim>-1</dim>" * rank}</port>'
