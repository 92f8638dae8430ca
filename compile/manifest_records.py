"""The manifest of a build: specs, signatures and files as the records that `runtime/bundle/manifest.py` defines."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from dflash_compile.export.checkpoints.text import template_hash
from dflash_compile.export.pairing import Pairing
from dflash_compile.export.spec import DrafterSpec, TargetSpec
from dflash_compile.export.tracing.graph import Owner
from dflash_compile.export.tracing.signature import Port, Signature
from dflash_compile.runtime.bundle.manifest import (
    DraftVocabularyRecord,
    GraphRecord,
    Manifest,
    MeasuredRecord,
    ModelRecord,
    PairingRecord,
    PortRecord,
    RequirementRecord,
    TextRecord,
    ThinkingRecord,
)

from .backend_options import BackendOptions
from .options import BuildOptions
from .pair_sizes import Models

TOOL_TEMPLATE = "tokenizer/tool_template.jinja"
TOKENIZER, TEMPLATE, VOCABULARY = "tokenizer/tokenizer.json", "tokenizer/chat_template.jinja", "drafter/token_ids.bin"


def graph_record(
    signature: Signature, file: str, rows: int | None = None, function: str | None = None, **compiled: Any
) -> GraphRecord:
    """How to call the engine in `file`, by its entry point `function` where it has several; `compiled` is what only
    compiled engines have.
    """
    return GraphRecord(
        role=signature.role,
        file=file,
        rows=rows,
        inputs=[_port(port) for port in signature.inputs],
        outputs=[_port(port) for port in signature.outputs],
        caches=list(signature.caches),
        function=function,
        **compiled,
    )


def ringed(record: GraphRecord, context: int, widest: int) -> GraphRecord:
    """`record` with the caches that are shorter than `context` named as rings, for calls of at most `widest` rows."""
    taken = {name for name, _ in record.caches}
    rings = [
        port.name
        for port in record.inputs
        if port.name in taken and isinstance(port.shape[2], int) and port.shape[2] < context
    ]
    return msgspec.structs.replace(record, rings=rings, widest=widest) if rings else record


def manifest_of(
    models: Models,
    asked: BuildOptions,
    options: BackendOptions,
    graphs: Mapping[Owner, list[GraphRecord]],
    requires: RequirementRecord,
    measured: list[MeasuredRecord],
    hashes: Mapping[str, str],
    sizes: Mapping[str, int],
) -> Manifest:
    """The whole manifest; apart from `measured` it depends on nothing but the inputs of the build."""
    config: dict[str, str | int | float | bool | None] = {
        "backend": asked.backend,
        "precision": options.precision,
        "drafter_precision": options.drafter_precision,
        "context": models.context,
        # These two are said of every bundle, whether its back-end has such an option or not.
        "portable": False,
        "block": models.block,
        "refine": 0,
        **options.config(),
    }
    if asked.drafter_thinking is not None:
        config["drafter_thinking"] = "on" if asked.drafter_thinking else "off"
    target, drafter, vocab = models.target.spec, models.drafter.spec, models.target.spec.vocab
    return Manifest(
        created_by=tool(),
        context=models.context,
        target=_model(target, vocab, target.family, options.precision, graphs["target"], models.target.files),
        drafter=_model(
            drafter, vocab, drafter.dialect, options.drafter_precision, graphs["drafter"], models.drafter.files
        ),
        pairing=PairingRecord(
            taps=list(models.drafter.spec.taps),
            block=models.block,
            mask_id=models.drafter.spec.mask_id,
            template_sha256=models.pairing.template_sha256,
            draft_vocabulary=_draft_vocabulary(models),
            thinking=_thinking(models.pairing),
        ),
        text=_text(models),
        requires=requires,
        config=config,
        measured=measured,
        files=dict(sorted(hashes.items())),
        sizes=dict(sorted(sizes.items())),
    )


def _model(
    spec: TargetSpec | DrafterSpec,
    vocab: int,
    family: str,
    precision: str,
    graphs: list[GraphRecord],
    files: Mapping[str, str],
) -> ModelRecord:
    return ModelRecord(
        name=spec.name,
        family=family,
        layers=spec.layers,
        hidden=spec.hidden,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        vocab=vocab,
        precision=precision,
        graphs=graphs,
        sources=dict(sorted(files.items())),
    )


def _draft_vocabulary(models: Models) -> DraftVocabularyRecord | None:
    vocabulary = models.drafter.vocabulary
    return None if vocabulary is None else DraftVocabularyRecord(size=len(vocabulary.ids), file=VOCABULARY)


def _thinking(pairing: Pairing) -> ThinkingRecord | None:
    switch = pairing.switch
    return (
        None
        if switch is None
        else ThinkingRecord(variable=switch.variable, default=switch.default, drafter=pairing.thinking)
    )


def _text(models: Models) -> TextRecord:
    text = models.target.text
    return TextRecord(
        tokenizer=TOKENIZER,
        chat_template=None if text.chat_template is None else TEMPLATE,
        template_sha256=template_hash(text.chat_template),
        bos_token=text.bos_token,
        eos_token=text.eos_token,
        eos_ids=list(models.target.spec.eos_ids),
        tokens=dict(text.tokens),
        tool_template=None if text.tool_template is None else TOOL_TEMPLATE,
    )


def _port(port: Port) -> PortRecord:
    return PortRecord(name=port.name, dtype=port.dtype, shape=list(port.shape))


def tool() -> str:
    """Name and version of this program."""
    try:
        return f"dflash-compile {version('dflash-compile')}"
    except PackageNotFoundError:
        return "dflash-compile (not installed)"
