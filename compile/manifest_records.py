"""The manifest of a build: specs, signatures and files as the records that `runtime/bundle/manifest.py` defines."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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

from .options import BuildOptions
from .pair_sizes import Models

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
    options: BuildOptions,
    graphs: Mapping[Owner, list[GraphRecord]],
    requires: RequirementRecord,
    measured: list[MeasuredRecord],
    hashes: Mapping[str, str],
    sizes: Mapping[str, int],
) -> Manifest:
    """The whole manifest; apart from `measured` it depends on nothing but the inputs of the build."""
    config: dict[str, str | int | float | bool | None] = {
        "backend": options.backend,
        "precision": options.precision_for("target"),
        "drafter_precision": options.precision_for("drafter"),
        "context": models.context,
        "portable": options.portable,
        "block": models.block,
        "refine": options.refine,
        **options.deployment,
        **options.grouping,
        **options.calibrated,
    }
    # They mean nothing to back-ends whose engines run on any machine, or to a template without a switch.
    lists = {"arch": ",".join(options.arch), "widths": width_list(options.widths)}
    said = {True: "on", False: "off", None: ""}[options.drafter_thinking]
    config |= {
        name: value
        for name, value in (*lists.items(), ("flavour", options.flavour), ("drafter_thinking", said))
        if value
    }
    target, drafter, vocab = models.target.spec, models.drafter.spec, models.target.spec.vocab
    return Manifest(
        created_by=tool(),
        context=models.context,
        target=_model(
            target, vocab, target.family, options.precision_for("target"), graphs["target"], models.target.files
        ),
        drafter=_model(
            drafter, vocab, drafter.dialect, options.precision_for("drafter"), graphs["drafter"], models.drafter.files
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
    )


def _port(port: Port) -> PortRecord:
    return PortRecord(name=port.name, dtype=port.dtype, shape=list(port.shape))


def width_list(widths: Collection[int]) -> str:
    """As the configuration of a bundle records them."""
    return ",".join(map(str, sorted(set(widths))))


def tool() -> str:
    """Name and version of this program."""
    try:
        return f"dflash-compile {version('dflash-compile')}"
    except PackageNotFoundError:
        return "dflash-compile (not installed)"
