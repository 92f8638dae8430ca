"""Every form a graph takes, behind one call: the torch module, the portable graph in two runtimes, the ONNX Runtime
graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx.reference import ReferenceEvaluator

from dflash_compile.compile.graphs import portable
from dflash_compile.compile.graphs.bind import bind
from dflash_compile.compile.onnxruntime import lower as ort_form
from dflash_compile.compile.onnxruntime.precision import precision_of
from dflash_compile.export.checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint, TensorSource
from dflash_compile.export.dflash.v1 import DflashV1
from dflash_compile.export.dflash.v2 import draft_module as module_of
from dflash_compile.export.families import family_of
from dflash_compile.export.parameter_names import EMBEDDING, HEAD
from dflash_compile.export.tracing.draft_graphs import DraftGraph, InjectGraph, semantic_norms
from dflash_compile.export.tracing.graph import Graph
from dflash_compile.export.tracing.hooks import hooked
from dflash_compile.export.tracing.rope import RotaryTables, drafter_tables, rotary_tables
from dflash_compile.export.tracing.signature import Signature
from dflash_compile.export.tracing.target import VerificationTarget
from dflash_compile.export.tracing.trace import target_weight

Array = np.ndarray[Any, Any]
Call = Callable[[Mapping[str, Array]], dict[str, Array]]

FORMS = ("standard", "fp32")
"""lowered forms that compute in float32: standard operators, and ONNX Runtime's own"""


def bound(graph: Graph, form: str, sources: Mapping[Any, TensorSource], folder: Path) -> Path:
    """`graph` lowered to "standard" or to ONNX Runtime's form at a precision, and bound below `folder`."""
    lowered = portable.lower(graph) if form == "standard" else ort_form.lower(graph, precision_of(form))
    return bind(lowered, sources, folder, f"{graph.signature.role}-{form}.onnx")


def ort_call(path: Path) -> Call:
    session = onnxruntime.InferenceSession(path, quiet(), providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(outputs, session.run(None, dict(feeds)), strict=True))


def reference_call(path: Path) -> Call:
    """onnx's own evaluator, which knows standard operators only."""
    evaluator = ReferenceEvaluator(onnx.load(path))
    return lambda feeds: dict(zip(evaluator.output_names, evaluator.run(None, dict(feeds)), strict=True))


def runtimes(form: str) -> tuple[Callable[[Path], Call], ...]:
    """Everything that can run a form."""
    return (reference_call, ort_call) if form == "standard" else (ort_call,)


def quiet() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return options


def module_call(module: torch.nn.Module, signature: Signature) -> Call:
    """A torch module behind the same call."""

    def call(feeds: Mapping[str, Array]) -> dict[str, Array]:
        with torch.no_grad():
            outputs = module(*(torch.from_numpy(feeds[port.name]) for port in signature.inputs))
        return {port.name: value.numpy() for port, value in zip(signature.outputs, outputs, strict=True)}

    return call


def load_target(checkpoint: TargetCheckpoint, replace: Mapping[str, torch.Tensor] | None = None) -> Any:
    """The transformers model with the checkpoint's weights, some of them replaced."""
    model = family_of(checkpoint.spec.family).build(checkpoint.config, torch.float32).eval()
    weights = {name: checkpoint.read(name).float() for name in checkpoint.tensors.shapes()}
    missing, unexpected = model.load_state_dict(weights | dict(replace or {}), strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    return model


def _rings(signature: Signature, context: int) -> list[int]:
    rows = [port.shape[2] for port in signature.inputs if port.name.startswith("k_cache")]
    return [layer for layer, length in enumerate(rows) if length != context]


@contextmanager
def torch_target(
    checkpoint: TargetCheckpoint, signature: Signature, taps: tuple[int, ...], context: int, sparse: bool = False
) -> Iterator[Call]:
    """The module that is traced, run eagerly with real weights."""
    model = load_target(checkpoint)
    tables = rotary_tables(type(model.get_decoder().rotary_emb), checkpoint.config, context)
    with hooked(model, family_of(checkpoint.spec.family), taps, sparse) as hooks:
        yield module_call(VerificationTarget(model, hooks, taps, tables, _rings(signature, context)), signature)


def draft_module(checkpoint: DrafterCheckpoint, width: int) -> DflashV1:
    """The drafter with its weights; `width` is that of the concatenated taps."""
    model = module_of(checkpoint.spec, width, checkpoint.spec.vocab or 0).eval()
    model.load_state_dict(
        {name: checkpoint.read(name).float() for name in checkpoint.tensors.shapes() if name not in (HEAD, EMBEDDING)}
    )
    return model


def draft_head(drafter: DrafterCheckpoint, target: TargetCheckpoint) -> torch.Tensor:
    """The head that drafts: the drafter's own, or the target's whole, or its rows for the tokens that can be
    proposed.
    """
    if HEAD in drafter.tensors.shapes():
        return drafter.read(HEAD).float()
    whole = target.read(target_weight(target.spec, HEAD).tensor).float()
    return whole if drafter.vocabulary is None else whole[list(drafter.vocabulary.ids)]


@contextmanager
def torch_drafter(
    drafter: DrafterCheckpoint, target: TargetCheckpoint, signatures: Mapping[str, Signature], context: int
) -> Iterator[dict[str, Call]]:
    """inject and draft, run eagerly."""
    model = draft_module(drafter, len(drafter.spec.taps) * target.spec.hidden)
    tables = RotaryTables(*drafter_tables(drafter.spec, context))
    rings = _rings(signatures["inject"], context)
    draft = DraftGraph(model, tables, target.spec.vocab, rings)
    draft.embedding.data = (drafter if drafter.spec.own_embedding else target).read(EMBEDDING).float()
    draft.head.data = draft_head(drafter, target)
    with ExitStack() as stack:
        stack.enter_context(semantic_norms())
        modules: dict[str, torch.nn.Module] = {"inject": InjectGraph(model, tables, rings), "draft": draft}
        yield {role: module_call(module, signatures[role]) for role, module in modules.items()}


class Cached:
    """A call and its caches, which start full of rubbish: whatever is read before it was written shows."""

    def __init__(self, signature: Signature, *calls: Call) -> None:
        self.signature, self.calls = signature, calls
        shapes = {port.name: port.shape for port in signature.inputs}
        self.caches = {name: np.full(shapes[name], 7, np.float32) for name, _ in signature.caches}

    def run(self, call: Call, feeds: Mapping[str, Array], position: int) -> dict[str, Array]:
        """One call at `position`; the caches move on."""
        outputs = call({**feeds, "position": np.array([position], np.int32), **self.caches})
        self.caches = {name: outputs[updated] for name, updated in self.signature.caches}
        return outputs

    def verify(self, tokens: list[int], position: int) -> tuple[Array, Array]:
        """Logits [S, V] and taps [S, W] of `tokens` by a target."""
        feeds = {"tokens": np.array([tokens], np.int32), "pick": np.arange(len(tokens), dtype=np.int32)}
        outputs = self.run(self.calls[0], feeds, position)
        return outputs["logits"][0], outputs["taps"][0]

    def inject(self, taps: Array, position: int) -> None:
        """Context of `taps` [S, W] by a drafter."""
        self.run(self.calls[0], {"taps": taps[None]}, position)

    def draft(self, block: list[int], position: int) -> Array:
        """Logits [B - 1, V] by a drafter."""
        return self.run(self.calls[1], {"block": np.array([block], np.int32)}, position)["logits"][0]
