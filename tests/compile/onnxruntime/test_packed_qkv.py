"""Q, K and V as one product: taken where it may be, bit for bit what three give, and never where something lies
between.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import models
import numpy as np
import onnx
import pytest
import torch
from forms import Cached, bound, ort_call

from dflash_compile.compile.graphs.onnx_graph import to_onnx
from dflash_compile.compile.onnxruntime import lower as ort_form
from dflash_compile.export import open_target
from dflash_compile.export.tracing.trace import trace_target

CONTEXT, LAYERS = 32, 2
PRECISIONS = ("fp32", "int8", "int4")


def target(folder: Path, **overrides):
    return open_target(models.write_target(folder / "target", "llama", num_hidden_layers=LAYERS, **overrides))


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path, load_external_data=False).graph.node)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory):
    """A target, and its engines by precision and whether the pass took place."""
    folder = tmp_path_factory.mktemp("llama")
    checkpoint = target(folder)
    graph = trace_target(checkpoint, (0, 1), CONTEXT)
    semantic, engines = to_onnx(graph), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            ort_form, "to_onnx", lambda graph: semantic.copy()
        )  # exporting takes longer than all that comes after
        for packed in (True, False):
            for precision in PRECISIONS:
                (place := folder / f"{packed}").mkdir(exist_ok=True)
                engines[precision, packed] = bound(graph, precision, {"target": checkpoint.tensors}, place)
            patch.setattr(ort_form, "packed_projections", lambda semantic: False)
    return checkpoint, graph, engines


@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_product_a_layer_where_there_were_three(llama, precision):
    _, _, engines = llama
    product = "FusedMatMul" if precision == "fp32" else "MatMulNBits"
    found, before = operators(engines[precision, True]), operators(engines[precision, False])
    assert (found[product], before[product]) == (5 * LAYERS + 1, 7 * LAYERS + 1)
    assert found - Counter({product: found[product]}) == before - Counter({product: before[product]})


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_the_same_bits_as_three_products(llama, precision, width):
    checkpoint, graph, engines = llama
    tokens = torch.randint(4, checkpoint.spec.vocab, (CONTEXT,), generator=torch.Generator().manual_seed(5)).tolist()
    packed, apart = (Cached(graph.signature, ort_call(engines[precision, form])) for form in (True, False))
    for start in range(0, len(tokens), width):
        for have, want in zip(
            packed.verify(tokens[start : start + width], start),
            apart.verify(tokens[start : start + width], start),
            strict=True,
        ):
            np.testing.assert_array_equal(have, want)
    assert packed.caches.keys() == apart.caches.keys()
    for name, cache in packed.caches.items():
        np.testing.assert_array_equal(cache, apart.caches[name])


def test_a_bias_keeps_them_apart(tmp_path):
    checkpoint = target(tmp_path, attention_bias=True)
    path = bound(trace_target(checkpoint, (0, 1), CONTEXT), "int8", {"target": checkpoint.tensors}, tmp_path)
    assert operators(path)["MatMulNBits"] == 7 * LAYERS + 1
