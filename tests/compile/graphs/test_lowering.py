"""The shape of lowered graphs: which operators are left, that ports are the signature's, and that caches may be updated
in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import models
import numpy as np
import onnx
import onnxruntime
import pytest
from forms import FORMS, bound, ort_call, quiet

from dflash_compile.export import open_drafter, open_target
from dflash_compile.export.checkpoints.checkpoint import TensorSource
from dflash_compile.export.tracing.graph import Graph
from dflash_compile.export.tracing.signature import Port
from dflash_compile.export.tracing.trace import trace_draft, trace_inject, trace_target

CONTEXT, LAYERS, DRAFT_LAYERS = 32, 4, 2
SIZES = {"rows": 3, "picked": 3, "proposals": 2}


class Pair:
    """A qwen3 target and a drafter, one of whose layers has a window that looks both ways."""

    def __init__(self, folder: Path) -> None:
        path = models.write_target(folder / "target", "qwen3", num_hidden_layers=LAYERS)
        layers = {
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 5,
            "use_sliding_window": True,
            "is_causal": False,
        }
        target, drafter = (
            open_target(path),
            open_drafter(models.write_drafter(folder / "drafter", path, layers=DRAFT_LAYERS, **layers)),
        )
        self.sources: Mapping[str, TensorSource] = {"target": target.tensors, "drafter": drafter.tensors}
        self.graphs: dict[str, Graph] = {
            "target": trace_target(target, (0, 1), CONTEXT),
            "inject": trace_inject(drafter, target.spec, CONTEXT),
            "draft": trace_draft(drafter, target.spec, CONTEXT),
        }
        self.folder = folder
        self._paths: dict[tuple[str, str], Path] = {}

    def path(self, role: str, form: str) -> Path:
        if (role, form) not in self._paths:
            self._paths[role, form] = bound(self.graphs[role], form, self.sources, self.folder)
        return self._paths[role, form]

    def operators(self, role: str, form: str) -> Counter[str]:
        return Counter(node.op_type for node in onnx.load(self.path(role, form), load_external_data=False).graph.node)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("pair"))


@pytest.mark.parametrize("role", ["target", "inject", "draft"])
def test_the_portable_form_is_valid_standard_onnx(pair: Pair, role: str) -> None:
    path = pair.path(role, "standard")
    onnx.checker.check_model(path, full_check=True)
    model = onnx.load(path, load_external_data=False)
    assert {node.domain for node in model.graph.node} == {""}
    assert not model.functions


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("role", ["target", "inject", "draft"])
def test_ports_are_the_signatures(pair: Pair, role: str, form: str) -> None:
    session = onnxruntime.InferenceSession(pair.path(role, form), quiet())
    signature = pair.graphs[role].signature
    for found, wanted in ((session.get_inputs(), signature.inputs), (session.get_outputs(), signature.outputs)):
        assert [(port.name, tuple(port.shape), port.type) for port in found] == [
            (port.name, port.shape, kind(port)) for port in wanted
        ]


def kind(port: Port) -> str:
    return {"float32": "tensor(float)", "int32": "tensor(int32)"}[port.dtype]


def test_nothing_is_left_between_the_target_s_kernels(pair: Pair) -> None:
    """Transposes, lone rotary nodes and additions before norms are all taken up by the fused kernels."""
    found = pair.operators("target", "int8")
    assert found["GroupQueryAttention"] == LAYERS
    assert found["SkipSimplifiedLayerNormalization"] == 2 * LAYERS
    assert found["SimplifiedLayerNormalization"] == 1 + 2 * LAYERS, "the first, and one each for q and k"
    assert found["MatMulNBits"] == 7 * LAYERS + 1
    assert not found.keys() & {"Transpose", "RotaryEmbedding", "MatMul", "FusedMatMul", "TensorScatter", "KVAttention"}


def test_a_window_that_looks_both_ways_takes_the_standard_form(pair: Pair) -> None:
    found = pair.operators("draft", "int8")
    assert (found["GroupQueryAttention"], found["Attention"]) == (DRAFT_LAYERS - 1, 1)


def test_inject_computes_keys_and_values_only(pair: Pair) -> None:
    found = pair.operators("inject", "int8")
    assert (found["MatMulNBits"], found["FusedMatMul"]) == (2 * DRAFT_LAYERS, 1), "fc stays in float32"
    assert found["TensorScatter"] == 2 * DRAFT_LAYERS


@pytest.mark.parametrize("form", ["standard", "fp32", "int8"])
@pytest.mark.parametrize("role", ["target", "inject", "draft"])
def test_caches_may_be_updated_in_place(pair: Pair, role: str, form: str) -> None:
    path, signature = pair.path(role, form), pair.graphs[role].signature
    generator = np.random.default_rng(1)
    feeds = {port.name: sample(port, generator) for port in signature.inputs}
    expected = ort_call(path)(feeds)
    session = onnxruntime.InferenceSession(path, quiet())
    binding, shared = (
        session.io_binding(),
        {name: onnxruntime.OrtValue.ortvalue_from_numpy(feeds[name].copy()) for name, _ in signature.caches},
    )
    for name, value in feeds.items():
        if name not in shared:
            binding.bind_cpu_input(name, value)
    for name, updated in signature.caches:
        binding.bind_ortvalue_input(name, shared[name])
        binding.bind_ortvalue_output(updated, shared[name])
    others = [port.name for port in signature.outputs if port.name not in dict(signature.caches).values()]
    for name in others:
        binding.bind_output(name)
    session.run_with_iobinding(binding)
    produced = dict(zip([*dict(signature.caches).values(), *others], binding.get_outputs(), strict=True))
    for name in others:
        np.testing.assert_array_equal(produced[name].numpy(), expected[name])
    for name, updated in signature.caches:
        now = shared[name].numpy()
        # Past the last row, a kernel that copies may leave whatever it likes: nothing reads there.
        np.testing.assert_array_equal(now[:, :, :10], expected[updated][:, :, :10])
        assert (now != feeds[name]).any(axis=(0, 1, 3)).nonzero()[0].tolist() == [7, 8, 9], (
            "the rows at the position, and no other"
        )


def sample(port: Port, generator: np.random.Generator) -> np.ndarray:
    shape = [size if isinstance(size, int) else SIZES[size] for size in port.shape]
    if port.name == "position":
        return np.array([7], np.int32)
    if port.dtype == "int32":
        return np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    return generator.standard_normal(shape, dtype=np.float32)
