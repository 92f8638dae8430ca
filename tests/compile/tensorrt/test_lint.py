"""One bad graph per rule of the lint, and the good graph that keeps it from crying wolf."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir
import pytest

from dflash_compile.compile.tensorrt.lint import RULES, check_lint, lint
from dflash_compile.runtime.errors import BuildError

PORTS = (
    "float16[1,4,8,16] q, float16[1,2,8,16] k, float16[1,2,8,16] v, float16[1,2,64,16] kc, float16[1,2,64,16] vc,"
    " int32[1] position, int32[1] total"
)
MASK = "bool[1,1,8,64] mask"
UPDATE_V = "vo = trt.TRT_KVCacheUpdate (vc, v, position)"
UPDATES = f"ko = trt.TRT_KVCacheUpdate (kc, k, position) {UPDATE_V}"
GOOD = (
    f'{UPDATES} out = trt.TRT_Attention <causal_kind: string = "lower_right", TRT_decomposable: int = 0> (q, ko, vo, ,'
    " , total)"
)
OUT = "float16[1,4,8,16] out, float16[1,2,64,16] ko, float16[1,2,64,16] vo"


def graph(body: str, ports: str = f"{PORTS}, {MASK}", outputs: str = OUT, opset: int = 24) -> ir.Model:
    text = (
        f'<ir_version: 11, opset_import: ["" : {opset}, "trt" : 1, "com.microsoft" : 1]> g ({ports}) => ({outputs}) {{'
        f" {body} }}"
    )
    model = ir.from_proto(onnx.parser.parse_model(text))
    for number, node in enumerate(model.graph):
        node.name = f"n{number}"
    return model


BAD = {
    "dropped-lengths": (
        f"{UPDATES} t = Cast <to: int = 7> (total) out = Attention <scale: float = 1.0> (q, ko, vo, mask, , , t)"
    ),
    "dropped-attribute": f"{UPDATES} out = Attention <scale: float = 1.0, left_window_size: int = 8> (q, ko, vo, mask)",
    "upper-left": f"{UPDATES} out = Attention <scale: float = 1.0, is_causal: int = 1> (q, ko, vo)",
    "mask-and-causal": (
        f'{UPDATES} out = trt.TRT_Attention <causal_kind: string = "lower_right"> (q, ko, vo, mask, , total)'
    ),
    "past-present": f"{UPDATES} out = Attention <scale: float = 1.0> (q, k, v, , kc, vc)",
    "softcap": f"{UPDATES} out = Attention <scale: float = 1.0, softcap: float = 30.0> (q, ko, vo, mask)",
    "scale": f"{UPDATES} out = Attention (q, ko, vo, mask)",
    "no-lengths": f'{UPDATES} out = trt.TRT_Attention <causal_kind: string = "lower_right"> (q, ko, vo)',
    "wide-attention": (
        f"{UPDATES} w = Cast <to: int = 1> (q) x = trt.TRT_Attention (w, ko, vo, , , total) out = Cast <to: int ="
        " 10> (x)"
    ),
    "expanded-heads": (
        f"{UPDATES} s = Shape (ko) e = Expand (ko, s) out = Attention <scale: float = 1.0> (q, e, vo, mask)"
    ),
    "chained-update": f"a = Identity (kc) ko = trt.TRT_KVCacheUpdate (a, k, total) {UPDATE_V} out = Identity (q)",
    "unreturned-update": f"a = trt.TRT_KVCacheUpdate (kc, k, position) ko = Identity (a) {UPDATE_V} out = Identity (q)",
    "copied-cache": f"{UPDATES} c = Concat <axis: int = 2> (kc, k) out = Identity (q)",
    "missing-operator": f"{UPDATES} a, s, z = DynamicQuantizeLinear (q) out = Identity (q)",
    "foreign-operator": (
        f"{UPDATES} out = com.microsoft.GroupQueryAttention <num_heads: int = 4, kv_num_heads: int = 2> (q, k, v)"
    ),
    "half-square": f"{UPDATES} out = Pow (q, q)",
}
"""a rule → a body that breaks it; wide-attention needs a value whose type is known, which the lowering gives"""


def typed(model: ir.Model) -> ir.Model:
    for node in model.graph:
        if node.op_type == "Cast":
            node.outputs[0].type = ir.TensorType(ir.DataType(node.attributes["to"].as_int()))
    return model


def test_the_good_graph_has_no_findings() -> None:
    assert lint(graph(GOOD)) == []


def test_every_rule_has_a_bad_graph() -> None:
    assert {rule.name for rule in RULES} == BAD.keys()


@pytest.mark.parametrize("rule", BAD)
def test_a_bad_graph_is_named_with_its_node(rule: str) -> None:
    model = typed(graph(BAD[rule]))
    found = [finding for finding in lint(model) if finding.rule == rule]
    assert found, lint(model)
    with pytest.raises(BuildError) as failure:
        check_lint(model, "verify")
    assert f"{found[0].node} ({rule})" in failure.value.where
    assert failure.value.fix


def test_a_free_size_is_named() -> None:
    assert [
        finding.node
        for finding in lint(graph(GOOD, PORTS.replace("q,", "q, ").replace("[1,4,8,16] q", "[1,4,s,16] q")))
    ] == ["q"]


@pytest.mark.parametrize("opset", [20, 29])
def test_an_opset_the_parser_does_not_read(opset: int) -> None:
    model = graph(GOOD)
    model.graph.opset_imports[""] = opset
    assert [finding.rule for finding in lint(model)] == ["opset"]


def test_one_cache_written_twice() -> None:
    model = graph(
        f"{UPDATES} x = trt.TRT_KVCacheUpdate (kc, v, total) out = Identity (q)", outputs=f"{OUT}, float16[1,2,64,16] x"
    )
    assert {finding.rule for finding in lint(model)} == {"chained-update"}
