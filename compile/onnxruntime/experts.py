"""ChosenExperts as ONNX Runtime's QMoE, whose router is given: each row has one expert, of weight one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ..graphs.edit import Editor, nodes, replace_node
from ..graphs.lowered import WeightBindings, static_shape
from .expert_weights import blocks_of
from .precision import Precision

_FAR = -1e4
"""score of experts that were not chosen; that of the chosen one is 0"""
_ACCURACY_INT8 = 4


def quantised_experts(model: ir.Model, bindings: WeightBindings, precision: Precision) -> None:
    """Replace every ChosenExperts. There are none at precisions without blocks: see `expert_weights.py`."""
    for node in nodes(model, "ChosenExperts"):
        x, chosen, gate_up, down, *biases = node.inputs
        assert gate_up is not None
        assert down is not None
        assert precision.linear_bits is not None
        transposed, concatenated = (bool(node.attributes[name].as_int()) for name in ("transposed", "concatenated"))
        experts, first, second = static_shape(gate_up)
        wide, hidden = (second, first) if transposed else (first, second)
        blocks = blocks_of(hidden, wide // 2, precision.linear_bits)
        assert blocks is not None
        up = bindings.encode(gate_up, replace(blocks, transposed=transposed, halves=concatenated))
        back = bindings.encode(down, replace(blocks, transposed=transposed))
        first_bias, second_bias = biases or (None, None)
        edit = Editor(model, node)
        depth, values = edit.constant(np.array([experts], np.int64)), edit.constant(np.array([_FAR, 0], np.float32))
        router = edit.one("OneHot", [chosen, depth, values], {"axis": -1})
        inputs = [x, router, *up, first_bias, *back, second_bias]
        out = edit.one(
            "QMoE", inputs, _attributes(node, blocks.bits, blocks.block), domain="com.microsoft", like=node.outputs[0]
        )
        replace_node(node, [out])


def _attributes(node: ir.Node, bits: int, block: int) -> dict[str, int | float | str]:
    limit = node.attributes["limit"].as_float()
    return {
        "k": 1,
        "normalize_routing_weights": 1,
        "activation_type": "swiglu",
        "swiglu_fusion": 1,
        "activation_alpha": node.attributes["alpha"].as_float(),
        "activation_beta": node.attributes["beta"].as_float(),
        "expert_weight_bits": bits,
        "block_size": block,
        "accuracy_level": _ACCURACY_INT8,
        **({"swiglu_limit": limit} if limit else {}),
    }
