"""Errors that TensorRT's parser would not report: constructs that it drops, misreads, or dies of, each named with its
node.

The parser builds such graphs and their engines give wrong numbers, or it ends the process. `RULES` is the whole list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from dflash_compile.runtime.errors import BuildError

from .functions import ATTENTION, DOMAIN, UPDATE

_STANDARD = ("", "ai.onnx")
_SCATTERS = (UPDATE, "TensorScatter")


@dataclass(frozen=True)
class Finding:
    """A rule that a node breaks."""

    rule: str
    node: str
    what: str
    fix: str


Check = Callable[[ir.Node], str | None]
"""what is wrong with a node, or None"""


@dataclass(frozen=True)
class Rule:
    """One construct."""

    name: str
    check: Check
    fix: str


def lint(model: ir.Model, free: bool = False) -> list[Finding]:
    """Everything wrong with `model`, in the order of its nodes; `free` where its row count is left to profiles."""
    found = [
        Finding(rule.name, node.name or node.op_type, what, rule.fix)
        for node in model.graph
        for rule in RULES
        if (what := rule.check(node))
    ]
    return [*_of_graph(model, {"rows"} if free else set()), *found]


def check_lint(model: ir.Model, role: str, free: bool = False) -> None:
    """Raise `BuildError` naming every node of `model` that TensorRT would misread."""
    found = lint(model, free)
    if found:
        raise BuildError(
            f"TensorRT would build another graph than this {role} graph",
            where="; ".join(f"{finding.node} ({finding.rule})" for finding in found[:4])
            + (f" and {len(found) - 4} more" if len(found) > 4 else ""),
            why=found[0].what,
            fix=found[0].fix,
        )


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _is(node: ir.Node, *ops: str, domain: tuple[str, ...] = _STANDARD) -> bool:
    return node.op_type in ops and node.domain in domain


def _attention(node: ir.Node) -> bool:
    return _is(node, "Attention") or _is(node, ATTENTION, domain=(DOMAIN,))


def _int(node: ir.Node, name: str, default: int = 0) -> int:
    return node.attributes[name].as_int() if name in node.attributes else default


def _nonpad_lengths(node: ir.Node) -> str | None:
    return (
        "the parser drops nonpad_kv_seqlen and attends to rows never written"
        if _is(node, "Attention") and _input(node, 6) is not None
        else None
    )


_KNOWN = {
    "Attention": {
        "scale",
        "is_causal",
        "q_num_heads",
        "kv_num_heads",
        "softcap",
        "qk_matmul_output_mode",
        "softmax_precision",
    },
    ATTENTION: {"causal_kind", "query_form", "kv_form", "TRT_decomposable", "TRT_normalization_op", "nb_rank"},
    UPDATE: {"update_form", "mode", "axis"},
    "TensorScatter": {"axis", "mode"},
}


def _dropped_attribute(node: ir.Node) -> str | None:
    if node.op_type not in _KNOWN or node.domain not in (*_STANDARD, DOMAIN):
        return None
    unknown = sorted(node.attributes.keys() - _KNOWN[node.op_type])
    return f"the parser drops the attribute {', '.join(unknown)}" if unknown else None


def _upper_left(node: ir.Node) -> str | None:
    if _is(node, "Attention") and _int(node, "is_causal"):
        return (
            "the parser reads is_causal from the upper left corner: rows see the start of the cache instead of what is"
            " before them"
        )
    kind = (
        node.attributes["causal_kind"].as_string()
        if _is(node, ATTENTION, domain=(DOMAIN,)) and "causal_kind" in node.attributes
        else ""
    )
    return "rows would see the start of the cache instead of what is before them" if kind == "upper_left" else None


def _mask_and_causal(node: ir.Node) -> str | None:
    masked = _attention(node) and _input(node, 3) is not None
    causal = _int(node, "is_causal") or (
        "causal_kind" in node.attributes and node.attributes["causal_kind"].as_string() != "none"
    )
    return "a mask and a causal kind exclude each other" if masked and causal else None


def _past(node: ir.Node) -> str | None:
    if not _is(node, "Attention"):
        return None
    taken = [name for index, name in ((4, "past_key"), (5, "past_value")) if _input(node, index) is not None]
    given = [
        name
        for index, name in ((1, "present_key"), (2, "present_value"))
        if index < len(node.outputs) and node.outputs[index].uses()
    ]
    return f"the parser rejects {', '.join(taken + given)}" if taken or given else None


def _softcap(node: ir.Node) -> str | None:
    capped = _is(node, "Attention") and "softcap" in node.attributes and node.attributes["softcap"].as_float() != 0
    return "the parser rejects softcap" if capped else None


def _scale(node: ir.Node) -> str | None:
    if not _is(node, "Attention"):
        return None
    scale = node.attributes["scale"].as_float() if "scale" in node.attributes else None
    return None if scale == 1.0 else "its scale is multiplied into the whole K cache at every step"


def _lengths(node: ir.Node) -> str | None:
    missing = _is(node, ATTENTION, domain=(DOMAIN,)) and _input(node, 5) is None and _input(node, 3) is None
    return "without kv_lengths it attends to rows never written" if missing else None


def _wide_attention(node: ir.Node) -> str | None:
    wide = (
        _is(node, ATTENTION, domain=(DOMAIN,))
        and node.inputs[0] is not None
        and node.inputs[0].dtype == ir.DataType.FLOAT
    )
    return "no fused kernel computes float32 attention" if wide and not _int(node, "TRT_decomposable") else None


def _expanded(node: ir.Node) -> str | None:
    if not _attention(node):
        return None
    for value in node.inputs[1:3]:
        producer = value.producer() if value is not None else None
        seen = 0
        while (
            producer is not None
            and producer.op_type in ("Reshape", "Unsqueeze", "Transpose", "Expand", "Tile", "Concat")
            and seen < 6
        ):
            if producer.op_type in ("Expand", "Tile"):
                return f"{producer.name or producer.op_type} expands K or V: the whole cache is copied at every step"
            producer, seen = producer.inputs[0].producer() if producer.inputs[0] is not None else None, seen + 1
    return None


def _update(node: ir.Node) -> bool:
    return _is(node, UPDATE, domain=(DOMAIN,)) or _is(node, "TensorScatter")


def _chained(node: ir.Node) -> str | None:
    if not _update(node) or node.inputs[0] is None:
        return None
    if not node.inputs[0].is_graph_input():
        return "a cache update must start from an input of the graph: updates cannot be chained"
    twice = [use.node for use in node.inputs[0].uses() if use.node is not node and _update(use.node)]
    return f"the cache {node.inputs[0].name} is updated twice" if twice else None


def _unreturned(node: ir.Node) -> str | None:
    return (
        "an updated cache must be an output of the graph, at the address of the input"
        if _update(node) and not node.outputs[0].is_graph_output()
        else None
    )


def _copied_cache(node: ir.Node) -> str | None:
    if not _is(node, "Concat", "ScatterND", "ScatterElements", "IndexPut"):
        return None
    cached = [
        value.name
        for value in node.inputs
        if value is not None and value.is_graph_input() and value.shape is not None and len(value.shape) == 4
    ]
    return f"it copies the whole cache {cached[0]}" if cached else None


_MISSING = ("CumProd", "DynamicQuantizeLinear", "MatMulInteger")
_FATAL = ("GroupQueryAttention", "MatMulNBits", "MultiHeadAttention", "SkipSimplifiedLayerNormalization", "FusedMatMul")


def _missing(node: ir.Node) -> str | None:
    return f"TensorRT has no {node.op_type}" if _is(node, *_MISSING) else None


def _foreign(node: ir.Node) -> str | None:
    if node.op_type in _FATAL:
        return f"{node.op_type} belongs to another runtime; the parser may end the process"
    return None if node.domain in (*_STANDARD, DOMAIN) else f"the parser does not know the domain {node.domain!r}"


def _half_square(node: ir.Node) -> str | None:
    half = node.inputs and node.inputs[0] is not None and node.inputs[0].dtype == ir.DataType.FLOAT16
    return "squares of hidden states overflow in float16" if half and _is(node, "Pow") else None


def _of_graph(model: ir.Model, free: set[str]) -> Iterator[Finding]:
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.shape is None or {str(size) for size in value.shape if not isinstance(size, int)} - free:
            yield Finding(
                "free-size",
                str(value.name),
                "an engine has one width: every size must be a number",
                "trace with a row count",
            )
    opset = model.graph.opset_imports.get("", 0)
    if not 21 <= opset <= 28:
        yield Finding("opset", "the graph", f"the parser reads opsets 21 to 28, not {opset}", "export at opset 24")


_USE_OURS = f"use {DOMAIN}::{ATTENTION} with causal_kind lower_right and kv_lengths"
_UPDATE_ONCE = f"write each cache once with {DOMAIN}::{UPDATE}, input to output"
RULES = (
    Rule("dropped-lengths", _nonpad_lengths, _USE_OURS),
    Rule("dropped-attribute", _dropped_attribute, "say it with a mask"),
    Rule("upper-left", _upper_left, _USE_OURS),
    Rule("mask-and-causal", _mask_and_causal, "put causality into the mask"),
    Rule("past-present", _past, _UPDATE_ONCE),
    Rule("softcap", _softcap, "decompose the attention"),
    Rule("scale", _scale, "scale Q beforehand and give scale 1"),
    Rule("no-lengths", _lengths, "give kv_lengths"),
    Rule("wide-attention", _wide_attention, "give TRT_decomposable 1, or cast to float16"),
    Rule("expanded-heads", _expanded, "give K and V with their own heads"),
    Rule("chained-update", _chained, _UPDATE_ONCE),
    Rule("unreturned-update", _unreturned, _UPDATE_ONCE),
    Rule("copied-cache", _copied_cache, _UPDATE_ONCE),
    Rule("missing-operator", _missing, "lower it to operators that TensorRT has"),
    Rule("foreign-operator", _foreign, "lower with the tensorrt form"),
    Rule("half-square", _half_square, "use RMSNormalization, or cast to float32"),
)
