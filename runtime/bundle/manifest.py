"""The manifest: what a bundle holds and what it needs, as frozen records.

`artifacts/bundle.schema.json` is generated from these classes; a test keeps the two equal.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

FORMAT: Final = "dflash-bundle"
VERSION: Final = 1


# Subclasses repeat `frozen` and `kw_only`: msgspec inherits them, type checkers do not.
class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class PortRecord(_Record, frozen=True, kw_only=True):
    """One input or output of a graph. Dimensions are sizes or symbol names."""

    name: str
    dtype: str
    shape: list[int | str]


class PlanRecord(_Record, frozen=True, kw_only=True):
    """What a compiled engine says of itself. None where its format does not tell."""

    bytes: int
    """of the engine file"""
    kernels: int | None = None
    """launches of one run"""
    fused_attention: int | None = None
    """layers whose attention is one kernel"""
    split_attention: int = 0
    """layers whose attention is several kernels, because it has sinks"""
    cache_copies: int | None = None
    """kernels that copy a whole K or V cache"""
    scratch_bytes: int | None = None
    capturable: bool | None = None
    """into a CUDA graph"""


class PartRecord(_Record, frozen=True, kw_only=True):
    """Which of several engines this is, where a model is cut by layers.

    They run one after the other: outputs of one are inputs of later ones, by name.
    """

    number: int
    """the first is 0"""
    count: int
    """of them all"""
    layers: list[int]
    """0-based, whose K and V its cache holds, in order"""
    taps: list[int]
    """tapped layers whose output it gives, each at a port of its own"""


PREFILL_ROWS = 64
"""rows of a call that takes in a prompt: at 128, a token costs no less, and taps take more memory"""


class GraphRecord(_Record, frozen=True, kw_only=True):
    """One engine file and how to call it."""

    role: str
    """target, inject or draft; static back-ends use prefill, verify, decode"""
    file: str
    """the engine, a file or a folder, relative to the bundle"""
    rows: int | None
    """the static width, or None where the row count is free"""
    inputs: list[PortRecord]
    outputs: list[PortRecord]
    caches: list[tuple[str, str]]
    """(input, output) pairs that share one buffer; where both are one name, the engine keeps it as a state"""
    function: str | None = None
    """its entry point, where the engine has several"""
    rings: list[str] = []
    """cache inputs that hold the last rows only: the row of position p is row p modulo their length"""
    widest: int | None = None
    """most rows of one call, which the length of its rings follows from; None where no ring limits them"""
    arch: str | None = None
    """the GPU architecture it was compiled for; None where the engine runs on any"""
    profile: int | None = None
    """which of the engine's widths this is, where it was compiled for several; None where it has one"""
    weights: dict[str, str] = {}
    """inputs that hold weights, and the files whose bytes these are; engines that name one file share it"""
    plan: PlanRecord | None = None
    part: PartRecord | None = None
    """None where one engine holds all layers"""


class ModelRecord(_Record, frozen=True, kw_only=True):
    """Target or drafter: what it is, where it came from, its engines."""

    name: str
    family: str
    """transformers model type of a target, dialect of a drafter"""
    layers: int
    hidden: int
    kv_heads: int
    head_dim: int
    vocab: int
    precision: str
    graphs: list[GraphRecord]
    sources: dict[str, str]
    """sha256 of every source file"""


class DraftVocabularyRecord(_Record, frozen=True, kw_only=True):
    """The tokens that a drafter with a reduced head can propose."""

    size: int
    """rows of the draft head"""
    file: str
    """their target token ids, little-endian int32 in the order of the rows, relative to the bundle"""


class ThinkingRecord(_Record, frozen=True, kw_only=True):
    """Whether the model thinks aloud before it answers: how the chat template is told, and which the drafter learned
    from.
    """

    variable: str
    """what the template reads: true for thinking, false for none"""
    default: bool | None
    """what the template does where the variable is not set; None where that is a third thing"""
    drafter: bool | None
    """what the prompts that the drafter was trained on asked for; None where that is not known"""


class PairingRecord(_Record, frozen=True, kw_only=True):
    """The contract between the two models."""

    taps: list[int]
    """0-based target layers whose outputs are concatenated, in order"""
    block: int
    mask_id: int
    template_sha256: str | None
    """of the chat template the drafter was trained with, where it is known"""
    draft_vocabulary: DraftVocabularyRecord | None = None
    """None where the drafter proposes any token of the target"""
    thinking: ThinkingRecord | None = None
    """None where the chat template has no switch for it"""


class TextRecord(_Record, frozen=True, kw_only=True):
    """Tokenizer and chat template, by file."""

    tokenizer: str
    chat_template: str | None
    template_sha256: str | None
    bos_token: str | None
    eos_token: str | None
    eos_ids: list[int]
    tokens: dict[str, str] = {}
    """special tokens that the chat template may read beside those two, by the names it knows them by"""
    tool_template: str | None = None
    """the chat template for chats with tools, where it is one of its own"""


class RequirementRecord(_Record, frozen=True, kw_only=True):
    """What a machine must have to load the engines."""

    backend: str
    """file name in `runtime/backends/`"""
    package: str
    minimum: str
    """lowest version of `package` that runs the engines"""
    built_with: str
    """version the engines were made and checked with"""
    exact_width: int
    """the narrowest target width whose rows equal those of every wider one bit for bit; plain decoding uses it"""
    maximum: str | None = None
    """highest version of `package` that runs the engines, where not every later one does"""


class MeasuredRecord(_Record, frozen=True, kw_only=True):
    """A figure measured when the bundle was built, with what it was measured on."""

    name: str
    value: float
    unit: str
    how: str


class Manifest(_Record, frozen=True, kw_only=True):
    """The whole of `manifest.json`."""

    format: Literal["dflash-bundle"] = FORMAT
    version: int = VERSION
    created_by: str
    """name and version of the tool"""
    context: int
    """rows of the target's cache: prompt and answer together"""
    target: ModelRecord
    drafter: ModelRecord
    pairing: PairingRecord
    text: TextRecord
    requires: RequirementRecord
    config: dict[str, str | int | float | bool | None]
    """the effective build options"""
    measured: list[MeasuredRecord]
    files: dict[str, str]
    """sha256 of every other file of the bundle, by relative path"""
    sizes: dict[str, int] = {}
    """bytes of the same files: what `verify="size"` compares; a file left out is only looked for"""
