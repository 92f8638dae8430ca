"""The semantic operators as ONNX operators of the domain "dflash", with their schemas and their translation from torch.

`export/ops/semantic.py` says what they mean. No runtime runs this domain: a lowering replaces every node of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import torch
from onnxscript.values import Opset

DOMAIN = "dflash"
VERSION = 1

Schema = onnx.defs.OpSchema
_Parameter = Schema.FormalParameter
_FLOAT = "T"
_POSITION = "tensor(int32)"


def _schema(
    name: str,
    inputs: dict[str, str],
    outputs: tuple[str, ...],
    attributes: dict[str, Any],
    optional: tuple[str, ...] = (),
) -> Schema:
    kinds = Schema.FormalParameterOption
    return Schema(
        name,
        DOMAIN,
        VERSION,
        inputs=[
            _Parameter(key, kind, param_option=kinds.Optional if key in optional else kinds.Single)
            for key, kind in inputs.items()
        ],
        outputs=[_Parameter(key, _FLOAT) for key in outputs],
        attributes=[Schema.Attribute(key, kind) for key, kind in attributes.items()],
        type_constraints=[(_FLOAT, ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"], "")],
    )


_INT, _REAL = Schema.AttrType.INT, Schema.AttrType.FLOAT
_CACHED = {"k_cache": _FLOAT, "v_cache": _FLOAT, "position": _POSITION}
SCHEMAS = (
    _schema("KVWrite", {"new": _FLOAT, "cache": _FLOAT, "position": _POSITION}, ("updated",), {}),
    _schema(
        "KVAttention",
        {"q": _FLOAT, "k": _FLOAT, "v": _FLOAT, **_CACHED},
        ("out", "k_updated", "v_updated"),
        {"scale": _REAL, "window": _INT, "causal": _INT},
    ),
    # Other operators, not attributes: a lowering that does not know them must not take them for the first.
    _schema(
        "KVAnchoredAttention",
        {"q": _FLOAT, "k": _FLOAT, "v": _FLOAT, **_CACHED},
        ("out", "k_updated", "v_updated"),
        {"scale": _REAL, "window": _INT, "causal": _INT},
    ),
    _schema(
        "KVSinkAttention",
        {"q": _FLOAT, "k": _FLOAT, "v": _FLOAT, **_CACHED, "sinks": _FLOAT},
        ("out", "k_updated", "v_updated"),
        {"scale": _REAL, "window": _INT, "causal": _INT},
    ),
    _schema("KVRingWrite", {"new": _FLOAT, "cache": _FLOAT, "position": _POSITION}, ("updated",), {}),
    _schema(
        "KVRingAttention",
        {"q": _FLOAT, "k": _FLOAT, "v": _FLOAT, **_CACHED, "sinks": _FLOAT},
        ("out", "k_updated", "v_updated"),
        {"scale": _REAL, "window": _INT, "causal": _INT, "anchored": _INT},
        optional=("sinks",),
    ),
    _schema(
        "ChosenExperts",
        {
            "x": _FLOAT,
            "chosen": "tensor(int64)",
            "gate_up": _FLOAT,
            "down": _FLOAT,
            "gate_up_bias": _FLOAT,
            "down_bias": _FLOAT,
        },
        ("out",),
        {"transposed": _INT, "concatenated": _INT, "alpha": _REAL, "beta": _REAL, "limit": _REAL},
        optional=("gate_up_bias", "down_bias"),
    ),
    _schema("Rotary", {"x": _FLOAT, "cos": _FLOAT, "sin": _FLOAT, "position": _POSITION}, ("rotated",), {}),
    _schema("RMSNorm", {"x": _FLOAT, "weight": _FLOAT}, ("normed",), {"eps": _REAL}),
)


def _register() -> None:
    for schema in SCHEMAS:
        if not onnx.defs.has(schema.name, DOMAIN):
            onnx.defs.register_schema(schema)


_register()
_OPSET = Opset(DOMAIN, VERSION)


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """torch operator → a function that emits its ONNX node, as `torch.onnx.export` takes them."""

    def kv_write(new: Any, cache: Any, position: Any) -> Any:
        return _OPSET.KVWrite(new, cache, position)

    def kv_attention(
        q: Any,
        k: Any,
        v: Any,
        k_cache: Any,
        v_cache: Any,
        position: Any,
        scale: float,
        window: int,
        causal: bool,
        anchored: bool = False,
        sinks: Any = None,
    ) -> Any:
        attributes = {"scale": scale, "window": window, "causal": int(causal)}
        if sinks is not None:
            if anchored:
                raise NotImplementedError("an anchored window with attention sinks")
            return _OPSET.KVSinkAttention(q, k, v, k_cache, v_cache, position, sinks, **attributes)
        emit = _OPSET.KVAnchoredAttention if anchored else _OPSET.KVAttention
        return emit(q, k, v, k_cache, v_cache, position, **attributes)

    def kv_ring_write(new: Any, cache: Any, position: Any) -> Any:
        return _OPSET.KVRingWrite(new, cache, position)

    def kv_ring_attention(
        q: Any,
        k: Any,
        v: Any,
        k_cache: Any,
        v_cache: Any,
        position: Any,
        scale: float,
        window: int,
        causal: bool,
        anchored: bool = False,
        sinks: Any = None,
    ) -> Any:
        more = () if sinks is None else (sinks,)
        return _OPSET.KVRingAttention(
            q,
            k,
            v,
            k_cache,
            v_cache,
            position,
            *more,
            scale=scale,
            window=window,
            causal=int(causal),
            anchored=int(anchored),
        )

    def chosen_experts(
        x: Any,
        chosen: Any,
        gate_up: Any,
        down: Any,
        gate_up_bias: Any,
        down_bias: Any,
        transposed: bool,
        concatenated: bool,
        alpha: float,
        beta: float,
        limit: float,
    ) -> Any:
        biases = () if gate_up_bias is None else (gate_up_bias, down_bias)
        layout = {"transposed": int(transposed), "concatenated": int(concatenated)}
        return _OPSET.ChosenExperts(x, chosen, gate_up, down, *biases, **layout, alpha=alpha, beta=beta, limit=limit)

    def rotary(x: Any, cos: Any, sin: Any, position: Any) -> Any:
        return _OPSET.Rotary(x, cos, sin, position)

    def rms_norm(x: Any, weight: Any, eps: float) -> Any:
        return _OPSET.RMSNorm(x, weight, eps=eps)

    ops = torch.ops.dflash
    return {
        ops.kv_write.default: kv_write,
        ops.kv_attention.default: kv_attention,
        ops.kv_ring_write.default: kv_ring_write,
        ops.kv_ring_attention.default: kv_ring_attention,
        ops.chosen_experts.default: chosen_experts,
        ops.rotary.default: rotary,
        ops.rms_norm.default: rms_norm,
    }
