"""What must hold between the fields of a manifest, beyond their types."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import BundleError
from .manifest import GraphRecord, Manifest
from .parts import part_faults

MOST_ROWS = 1 << 31
"""of anything that has a size: positions and ids are int32"""


def check_contract(manifest: Manifest) -> None:
    """Raises `BundleError` naming every field that contradicts another, or a file that no hash covers."""
    if faults := list(_faults(manifest)):
        raise BundleError(
            "the manifest contradicts itself",
            where="; ".join(faults),
            why="no build writes such a manifest: it was edited or damaged",
            fix="build the bundle again",
        )


def _faults(manifest: Manifest) -> Iterator[str]:
    block, narrowest, context = manifest.pairing.block, manifest.requires.exact_width, manifest.context
    yield from _size_faults(manifest)
    if not 2 <= block <= context:
        yield f"pairing.block {block} is not between 2 and context {context}"
    if not 1 <= narrowest <= block:
        yield f"requires.exact_width {narrowest} is not between 1 and pairing.block {block}"
    if not 0 <= manifest.pairing.mask_id < manifest.target.vocab:
        yield f"pairing.mask_id {manifest.pairing.mask_id} is outside the vocabulary of {manifest.target.vocab}"
    for token in manifest.text.eos_ids:
        if not 0 <= token < manifest.target.vocab:
            yield f"text.eos_ids holds {token}, outside the vocabulary of {manifest.target.vocab}"
    for name, model in (("target", manifest.target), ("drafter", manifest.drafter)):
        yield from (f"{name}.graphs: {fault}" for fault in part_faults(model, manifest.pairing.taps))
        for graph in model.graphs:
            head = _head_rows(manifest, graph)
            yield from (f"{name}.graphs: {graph.role} {fault}" for fault in _graph_faults(graph, head, block))
            yield from (f"{name}.graphs: {graph.role} {fault}" for fault in _embeds_faults(graph, model.hidden))
    reduced = manifest.pairing.draft_vocabulary
    if reduced is not None and not 1 <= reduced.size < manifest.target.vocab:
        yield (
            f"pairing.draft_vocabulary.size {reduced.size} is not between 1 and the vocabulary of"
            f" {manifest.target.vocab}, less one"
        )
    for name in referenced(manifest):
        # Some engines are folders.
        if name not in manifest.files and not any(file.startswith(f"{name}/") for file in manifest.files):
            yield f"{name} is used but not listed in files"


def _head_rows(manifest: Manifest, graph: GraphRecord) -> int:
    reduced = manifest.pairing.draft_vocabulary
    return manifest.target.vocab if reduced is None or graph.role != "draft" else reduced.size


def _size_faults(manifest: Manifest) -> Iterator[str]:
    if not 1 <= manifest.context <= MOST_ROWS:
        yield f"context {manifest.context} is not between 1 and {MOST_ROWS}"
    for name, model in (("target", manifest.target), ("drafter", manifest.drafter)):
        for field in ("layers", "hidden", "kv_heads", "head_dim", "vocab"):
            if not 1 <= getattr(model, field) <= MOST_ROWS:
                yield f"{name}.{field} {getattr(model, field)} is not between 1 and {MOST_ROWS}"
    yield from (f"sizes: {name} has {size} bytes" for name, size in manifest.sizes.items() if size < 0)


def _graph_faults(graph: GraphRecord, vocab: int, block: int) -> Iterator[str]:
    for port in (*graph.inputs, *graph.outputs):
        if not all(isinstance(size, str) or 1 <= size <= MOST_ROWS for size in port.shape):
            yield f"has a port {port.name} of the shape {port.shape}"
    if graph.rows is not None and not 1 <= graph.rows <= MOST_ROWS:
        yield f"is for {graph.rows} rows"
    inputs, outputs = ({port.name: port.shape for port in ports} for ports in (graph.inputs, graph.outputs))
    for taken, given in graph.caches:
        if taken not in inputs or given not in outputs:
            yield f"has a cache ({taken}, {given}) that is no input and output of it"
    yield from (f"names weights {name} that are no input of it" for name in graph.weights if name not in inputs)
    cached = {name for name, _ in graph.caches}
    yield from (f"names a ring {ring} that is no cache of it" for ring in graph.rings if ring not in cached)
    if (graph.widest is not None) != bool(graph.rings):
        yield "has rings, and does not say for how many rows" if graph.rings else "is for some rows and has no rings"
    elif graph.widest is not None and graph.widest < block:
        yield f"takes {graph.widest} rows, fewer than a block of {block}"
    logits = outputs.get("logits")
    if logits is not None and logits[-1:] != [vocab]:
        yield f"gives logits {logits} for a vocabulary of {vocab}"


def _embeds_faults(graph: GraphRecord, hidden: int) -> Iterator[str]:
    shapes = {port.name: port.shape for port in graph.inputs if port.name in ("embeds", "given")}
    if len(shapes) == 1:
        yield f"takes {next(iter(shapes))} alone: embeds and given go together"
    if "embeds" in shapes and shapes["embeds"][-1:] != [hidden]:
        yield f"takes embeds {shapes['embeds']} for a hidden size of {hidden}"


def referenced(manifest: Manifest) -> tuple[str, ...]:
    """Relative paths of every file or folder the manifest points to by use: engines, tokenizer, chat template, draft
    vocabulary.
    """
    engines = (
        file
        for model in (manifest.target, manifest.drafter)
        for graph in model.graphs
        for file in (graph.file, *graph.weights.values())
    )
    templates = (file for file in (manifest.text.chat_template, manifest.text.tool_template) if file is not None)
    reduced = manifest.pairing.draft_vocabulary
    vocabulary = () if reduced is None else (reduced.file,)
    return (*engines, manifest.text.tokenizer, *templates, *vocabulary)
