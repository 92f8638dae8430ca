"""A whole bundle of a few kilobytes: byte tokenizer, one-layer target and drafter as real ONNX graphs, and the same two
models in numpy.

Their logits are shifted towards six letters, so that an untrained drafter is right now and then.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dflash_compile.runtime.bundle.manifest import (
    DraftVocabularyRecord,
    GraphRecord,
    Manifest,
    ModelRecord,
    PairingRecord,
    PortRecord,
    RequirementRecord,
    TextRecord,
)

HIDDEN, HEADS, KV, DIM = 16, 2, 1, 8
CONTEXT, BLOCK, EXACT = 96, 6, 2
EOS, MASK = 256, 257
VOCAB = 258
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant:{%"
    " endif %}"
)
CACHES = [("k_cache_0", "k_cache_0_out"), ("v_cache_0", "v_cache_0_out")]
CACHE_SHAPE = [1, KV, CONTEXT, DIM]


class Model:
    """Weights of one layer: embedding, attention, tied head."""

    def __init__(self, seed: int, embedding: np.ndarray) -> None:
        noise = np.random.default_rng(seed)
        self.embedding = embedding
        self.q = noise.standard_normal((HIDDEN, HEADS * DIM), np.float32) * 0.4
        self.k = noise.standard_normal((HIDDEN, KV * DIM), np.float32) * 0.4
        self.v = noise.standard_normal((HIDDEN, KV * DIM), np.float32) * 0.4
        self.head = np.ascontiguousarray(embedding.T)
        self.shift = np.full(VOCAB, -20, np.float32)
        self.shift[list(b"abcdef")] = 0


def _embedding() -> np.ndarray:
    return np.random.default_rng(7).standard_normal((VOCAB, HIDDEN), np.float32)


TARGET, DRAFTER = Model(1, _embedding()), Model(2, _embedding())


def reference(model: Model, hidden: np.ndarray, context: np.ndarray) -> np.ndarray:
    """Hidden states [S, H] after the layer, in numpy: rows attend to `context` [P, H] and causally to themselves."""
    everything = np.concatenate([context, hidden])
    q = (hidden @ model.q).reshape(len(hidden), HEADS, DIM)
    k, v = everything @ model.k, everything @ model.v
    out = np.zeros((len(hidden), HEADS, DIM), np.float32)
    for row in range(len(hidden)):
        seen = len(context) + row + 1
        scores = q[row] @ k[:seen].T / np.sqrt(DIM)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out[row] = weights / weights.sum(-1, keepdims=True) @ v[:seen]
    return hidden + out.reshape(len(hidden), -1)


def reference_logits(model: Model, hidden: np.ndarray) -> np.ndarray:
    return hidden @ model.head + model.shift


def write_bundle(root: Path, **changes) -> Path:
    """The bundle in the new directory `root`; `changes` replace manifest fields."""
    for folder in ("target", "drafter", "tokenizer"):
        (root / folder).mkdir(parents=True)
    graphs = {
        "target/target.onnx": _target_graph(),
        "drafter/inject.onnx": _inject_graph(),
        "drafter/draft.onnx": _draft_graph(),
    }
    for name, (model, _) in graphs.items():
        (root / name).write_bytes(model.SerializeToString())
    make_tokenizer().save(str(root / "tokenizer/tokenizer.json"))
    (root / "tokenizer/chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    records = {name: record for name, (_, record) in graphs.items()}
    fields = {
        "created_by": "tests",
        "context": CONTEXT,
        "target": _model("target", [records["target/target.onnx"]]),
        "drafter": _model("drafter", [records["drafter/inject.onnx"], records["drafter/draft.onnx"]]),
        "pairing": PairingRecord(taps=[0], block=BLOCK, mask_id=MASK, template_sha256=None),
        "text": TextRecord(
            tokenizer="tokenizer/tokenizer.json",
            chat_template="tokenizer/chat_template.jinja",
            template_sha256=hashlib.sha256(TEMPLATE.encode()).hexdigest(),
            bos_token=None,
            eos_token="<eos>",
            eos_ids=[EOS],
        ),
        "requires": RequirementRecord(
            backend="onnxruntime", package="onnxruntime", minimum="1.20", built_with="1.32.0", exact_width=EXACT
        ),
        "config": {"precision": "fp32"},
        "measured": [],
    }
    write_manifest(root, Manifest(**{**fields, "files": {}, **changes}))
    return root


def write_manifest(root: Path, manifest: Manifest) -> None:
    """`manifest` with the hashes and sizes of the files as they lie there now."""
    names = sorted(
        path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file() and path.name != "manifest.json"
    )
    files = {name: hashlib.sha256((root / name).read_bytes()).hexdigest() for name in names}
    sizes = {name: (root / name).stat().st_size for name in names}
    (root / "manifest.json").write_bytes(
        msgspec.json.encode(msgspec.structs.replace(manifest, files=files, sizes=sizes))
    )


def edit_manifest(root: Path, change) -> None:
    """Apply `change` to the manifest's plain document, whatever comes of it."""
    file = root / "manifest.json"
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def _model(name: str, graphs: list[GraphRecord]) -> ModelRecord:
    return ModelRecord(
        name=name,
        family="tiny",
        layers=1,
        hidden=HIDDEN,
        kv_heads=KV,
        head_dim=DIM,
        vocab=VOCAB,
        precision="fp32",
        graphs=graphs,
        sources={},
    )


def make_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    # Id = byte value, so that tests can read ids as text.
    shown = {letter: _byte_of(letter) for letter in alphabet}
    tokenizer = Tokenizer(models.BPE(shown, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>", "<mask>"])
    return tokenizer


def _byte_of(letter: str) -> int:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if ord(letter) in printable:
        return ord(letter)
    return [byte for byte in range(256) if byte not in printable][ord(letter) - 256]


def _graph(role: str, file: str, nodes, inputs, outputs, weights) -> tuple[onnx.ModelProto, GraphRecord]:
    types = {"float32": TensorProto.FLOAT, "int32": TensorProto.INT32}
    caches = [(name, "float32", CACHE_SHAPE) for name, _ in CACHES]
    inputs, outputs = [*inputs, *caches], [*outputs, *((out, "float32", CACHE_SHAPE) for _, out in CACHES)]
    infos = [
        [helper.make_tensor_value_info(name, types[dtype], shape) for name, dtype, shape in ports]
        for ports in (inputs, outputs)
    ]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, role, infos[0], infos[1], initializers)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10
    )
    ports = [
        [PortRecord(name=name, dtype=dtype, shape=shape) for name, dtype, shape in side] for side in (inputs, outputs)
    ]
    return model, GraphRecord(role=role, file=file, rows=None, inputs=ports[0], outputs=ports[1], caches=CACHES)


def _attention(x: str) -> list[onnx.NodeProto]:
    """One layer over `x` [1, S, H], giving `y`; S is taken from `x`."""
    node = helper.make_node
    return [
        node("Shape", [x], ["rows64"], start=1, end=2),
        node("Cast", ["rows64"], ["rows32"], to=TensorProto.INT32),
        node("Add", ["position", "rows32"], ["end"]),
        node("Sub", ["end", "one"], ["last"]),
        node("Squeeze", ["end"], ["total"]),
        *(node("MatMul", [x, f"w{name}"], [name]) for name in "qkv"),
        node(
            "GroupQueryAttention",
            ["q", "k", "v", "k_cache_0", "v_cache_0", "last", "total"],
            ["attended", "k_cache_0_out", "v_cache_0_out"],
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=KV,
        ),
        node("Add", [x, "attended"], ["y"]),
    ]


def _layer_weights(model: Model) -> dict[str, np.ndarray]:
    return {"wq": model.q, "wk": model.k, "wv": model.v, "one": np.array([1], np.int32)}


def _target_graph():
    nodes = [
        helper.make_node("Gather", ["embedding", "tokens"], ["taps"]),
        *_attention("taps"),
        helper.make_node("Gather", ["y", "pick"], ["picked"], axis=1),
        helper.make_node("MatMul", ["picked", "head"], ["unshifted"]),
        helper.make_node("Add", ["unshifted", "shift"], ["logits"]),
    ]
    inputs = [("tokens", "int32", [1, "rows"]), ("position", "int32", [1]), ("pick", "int32", ["picked"])]
    outputs = [("logits", "float32", [1, "picked", VOCAB]), ("taps", "float32", [1, "rows", HIDDEN])]
    weights = {"embedding": TARGET.embedding, "head": TARGET.head, "shift": TARGET.shift, **_layer_weights(TARGET)}
    return _graph("target", "target/target.onnx", nodes, inputs, outputs, weights)


def _inject_graph():
    inputs = [("taps", "float32", [1, "rows", HIDDEN]), ("position", "int32", [1])]
    return _graph("inject", "drafter/inject.onnx", _attention("taps"), inputs, [], _layer_weights(DRAFTER))


def reduce_draft(root: Path, ids: list[int]) -> None:
    """Give the bundle in `root` a draft engine that proposes the tokens `ids` alone."""
    manifest = msgspec.json.decode((root / "manifest.json").read_bytes(), type=Manifest)
    model, record = _draft_graph(ids)
    (root / record.file).write_bytes(model.SerializeToString())
    (root / "drafter/token_ids.bin").write_bytes(np.array(ids, "<i4").tobytes())
    drafter = msgspec.structs.replace(
        manifest.drafter, graphs=[record if graph.role == "draft" else graph for graph in manifest.drafter.graphs]
    )
    vocabulary = DraftVocabularyRecord(size=len(ids), file="drafter/token_ids.bin")
    pairing = msgspec.structs.replace(manifest.pairing, draft_vocabulary=vocabulary)
    write_manifest(root, msgspec.structs.replace(manifest, drafter=drafter, pairing=pairing))


def _draft_graph(ids: list[int] | None = None):
    nodes = [
        helper.make_node("Gather", ["embedding", "block"], ["x"]),
        *_attention("x"),
        helper.make_node("Slice", ["y", "start", "stop", "axis"], ["proposing"]),
        helper.make_node("MatMul", ["proposing", "head"], ["unshifted"]),
        helper.make_node("Add", ["unshifted", "shift"], ["logits"]),
    ]
    inputs, outputs = (
        [("block", "int32", [1, "rows"]), ("position", "int32", [1])],
        [("logits", "float32", [1, "proposals", VOCAB if ids is None else len(ids)])],
    )
    ends = {"start": np.array([1], np.int64), "stop": np.array([1 << 30], np.int64), "axis": np.array([1], np.int64)}
    kept = slice(None) if ids is None else ids
    weights = {
        "embedding": DRAFTER.embedding,
        "head": DRAFTER.head[:, kept],
        "shift": DRAFTER.shift[kept],
        **ends,
        **_layer_weights(DRAFTER),
    }
    return _graph("draft", "drafter/draft.onnx", nodes, inputs, outputs, weights)
