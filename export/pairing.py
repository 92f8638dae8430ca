"""The contract between a target and a drafter, checked from headers and configs alone, before anything heavy.

`CHECKS` is the whole of it, `SPEC_CHECKS` what two configurations tell: each function looks at one thing and raises
`PairingError`, returns a remark, or returns None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dflash_compile.runtime.errors import PairingError

from .checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint
from .checkpoints.generation import greedy_note
from .checkpoints.text import template_hash, vocabulary_hash
from .checkpoints.thinking import ThinkingSwitch, thinking_switch
from .spec import DrafterSpec, TargetSpec

FLOATS = ("float32", "float16", "bfloat16")
BLOCKS = range(2, 65)
"""a block is the anchor and at least one mask; no published drafter goes past 16"""


@dataclass(frozen=True)
class Pairing:
    """A target and a drafter that belong together."""

    target: TargetSpec
    drafter: DrafterSpec
    context: int
    """cache rows the pair was checked for: prompt and answer together"""
    template_sha256: str | None
    """of the chat template the drafter was trained with, where it is known"""
    warnings: tuple[str, ...] = ()
    """remarks that stop nothing"""
    switch: ThinkingSwitch | None = None
    """how the target's chat template is told to think, where it can be"""
    thinking: bool | None = None
    """whether the drafter was trained on prompts that asked for thinking, where it is known"""

    @property
    def taps_width(self) -> int:
        """Columns of the concatenated taps."""
        return len(self.drafter.taps) * self.target.hidden


@dataclass(frozen=True)
class Specs:
    """What a check of configurations alone looks at."""

    t: TargetSpec
    d: DrafterSpec
    place: str
    """where the drafter is"""

    def fault(self, what: str, key: str, why: str, fix: str) -> PairingError:
        """An error at `key` of the drafter, located by the key it was read from."""
        return PairingError(what, where=f"{self.place}: {self.d.evidence.get(key, key)}", why=why, fix=fix)


@dataclass(frozen=True)
class Candidates(Specs):
    """What any check looks at."""

    target: TargetCheckpoint
    drafter: DrafterCheckpoint
    context: int
    switch: ThinkingSwitch | None


def pair(target: TargetCheckpoint, drafter: DrafterCheckpoint, context: int | None = None) -> Pairing:
    """The checked pairing of two opened checkpoints, for `context` cache rows (default: as many as both can address).

    Raises `PairingError` at the first thing that does not fit. Reads no weights.
    """
    most = min(target.spec.max_positions, drafter.spec.max_positions)
    switch, context = thinking_switch(target.text), most if context is None else context
    candidates = Candidates(target.spec, drafter.spec, str(drafter.path), target, drafter, context, switch)
    remarks = tuple(remark for remark in [check(candidates) for check in CHECKS] if remark)
    return Pairing(target.spec, drafter.spec, context, drafter.template_hash, remarks, switch, drafter.thinking)


def check_specs(target: TargetSpec, drafter: DrafterSpec, place: str) -> None:
    """Raise `PairingError` at the first thing in which two configurations do not fit; `place` names the drafter's."""
    for check in SPEC_CHECKS:
        check(Specs(target, drafter, place))


def check_taps(c: Specs) -> str | None:
    """Taps exist, once each, in the target."""
    taps, last = c.d.taps, c.t.layers - 1
    fix = "use the drafter trained for this target; taps are 0-based layer numbers, counted by their outputs"
    if not taps:
        raise c.fault("the drafter names no taps", "taps", "it drafts from the target's layers", fix)
    if len(set(taps)) != len(taps):
        raise c.fault(f"taps {list(taps)} name a layer twice", "taps", "each tap is one layer's output", fix)
    outside = [tap for tap in taps if not 0 <= tap <= last]
    if outside:
        raise c.fault(f"taps {outside} are not layers of the target", "taps", f"{c.t.name} has layers 0 to {last}", fix)
    remarks = (
        f"tap {last} is the target's last layer: its output behind the final norm is taken, as in transformers"
        if last in taps
        else None,
        f"taps {list(taps)} are not in rising order; they are concatenated as listed"
        if list(taps) != sorted(taps)
        else None,
    )
    return "; ".join(filter(None, remarks)) or None


def check_target_layers(c: Specs) -> str | None:
    """The drafter was trained for a target of this depth, where it says so."""
    if c.d.target_layers is not None and c.d.target_layers != c.t.layers:
        raise c.fault(
            f"the drafter was trained for a target of {c.d.target_layers} layers",
            "target_layers",
            f"{c.t.name} has {c.t.layers}",
            "use the drafter trained for this target",
        )
    return None


def check_hidden(c: Specs) -> str | None:
    """Both models are equally wide: the drafter reads the target's embedding and writes to its head."""
    if c.d.hidden != c.t.hidden:
        raise c.fault(
            f"the drafter is {c.d.hidden} wide",
            "hidden",
            f"{c.t.name} is {c.t.hidden} wide, and they share embedding and head",
            "use the drafter trained for this target",
        )
    return None


def check_context_projection(c: Candidates) -> str | None:
    """`fc` takes the concatenated taps."""
    width, wanted = c.drafter.tensors.shapes()["fc.weight"][1], len(c.d.taps) * c.t.hidden
    if width != wanted:
        raise PairingError(
            f"fc.weight takes {width} columns, not {wanted}",
            where=f"{c.drafter.path}: fc.weight",
            why=f"{len(c.d.taps)} taps of {c.t.hidden} columns each are concatenated",
            fix="check target_layer_ids against the published drafter, and that target and drafter belong together",
        )
    return None


def check_vocabulary(c: Specs) -> str | None:
    """Both models number the same tokens, as far as the drafter says how many there are."""
    if c.d.vocab not in (None, c.t.vocab):
        raise c.fault(
            f"the drafter's vocabulary has {c.d.vocab} entries",
            "vocab",
            f"{c.t.name} has {c.t.vocab}, and they share embedding and head",
            "use the drafter trained for this target",
        )
    return None


def check_draft_vocabulary(c: Candidates) -> str | None:
    """A reduced draft vocabulary is one of this target, and proposes what ends an answer and nothing that no answer
    holds.
    """
    if c.drafter.vocabulary is None:
        return None
    ids = set(c.drafter.vocabulary.ids)
    if c.d.mask_id in ids:
        return f"the drafter can propose its mask token {c.d.mask_id}, which no answer holds"
    if c.t.eos_ids and not ids & set(c.t.eos_ids):
        return (
            "the drafter can propose none of the target's end tokens: the last cycle of every answer is shorter than it"
            " could be"
        )
    return None


def check_mask(c: Specs) -> str | None:
    """The mask is a token of its own."""
    fix = "use the mask_token_id that the drafter's authors publish"
    if not 0 <= c.d.mask_id < c.t.vocab:
        raise c.fault(
            f"mask token {c.d.mask_id} is no token", "mask_id", f"ids of {c.t.name} end at {c.t.vocab - 1}", fix
        )
    taken = {"padding": (c.t.pad_id,), "beginning": (c.t.bos_id,), "end": c.t.eos_ids}
    for role, ids in taken.items():
        if c.d.mask_id in ids:
            raise c.fault(
                f"mask token {c.d.mask_id} is the target's {role} token",
                "mask_id",
                "a drafter learns its mask as a token with no other meaning",
                fix,
            )
    return None


def check_block(c: Specs) -> str | None:
    """A block has room for a proposal, and is a block rather than a context length."""
    if c.d.block not in BLOCKS:
        raise c.fault(
            f"a block of {c.d.block} rows makes no sense",
            "block",
            f"blocks have {BLOCKS.start} to {BLOCKS.stop - 1} rows",
            "check block_size in the drafter's config.json",
        )
    return None


def check_context(c: Candidates) -> str | None:
    """Both models can address the context, and it holds more than one block."""
    for spec in (c.t, c.d):
        if c.context > spec.max_positions:
            raise PairingError(
                f"a context of {c.context} tokens is too long",
                where=spec.name,
                why=f"it was trained for {spec.max_positions} positions",
                fix=f"ask for at most {min(c.t.max_positions, c.d.max_positions)}",
            )
    if c.context <= c.d.block:
        raise PairingError(
            f"a context of {c.context} tokens is too short",
            where=c.d.name,
            why=f"one block alone is {c.d.block} rows",
            fix=f"ask for more than {c.d.block}",
        )
    most = c.d.max_positions
    return (
        f"the drafter was made for {most} positions, {c.t.name} for {c.t.max_positions}: the bundle holds {c.context}"
        " tokens, prompt and answer together, and no --max-context makes it more"
        if c.context == most < c.t.max_positions
        else None
    )


def check_rope(c: Specs) -> str | None:
    """Rotary dimensions come in pairs; a base that differs from the target's is unusual, not wrong."""
    if c.d.head_dim % 2:
        raise c.fault(
            f"the drafter's heads are {c.d.head_dim} wide",
            "head_dim",
            "rotary embedding turns pairs of dimensions",
            "check head_dim in the drafter's config.json",
        )
    return (
        None
        if c.d.rope_theta == c.t.rope_theta
        else f"the drafter's RoPE base is {c.d.rope_theta:g}, the target's {c.t.rope_theta:g}"
    )


def check_heads(c: Specs) -> str | None:
    """Query heads share key heads in equal groups."""
    if c.d.heads % c.d.kv_heads:
        raise c.fault(
            f"{c.d.heads} query heads cannot share {c.d.kv_heads} key heads",
            "kv_heads",
            "each key head serves a whole number of query heads",
            "check the head counts in config.json",
        )
    return None


def check_dtype(c: Candidates) -> str | None:
    """The drafter's weights are floats; fp16 ones were often trained in bf16 and overflow when run in fp16."""
    if c.d.dtype not in FLOATS:
        raise c.fault(
            f"the drafter's weights are {c.d.dtype}",
            "dtype",
            f"known: {', '.join(FLOATS)}",
            "use the unquantised drafter",
        )
    if c.d.dtype == "float16":
        return (
            "the drafter's weights are float16: fc outputs of such drafters overflow it, so fc, its norm and the"
            " residual are computed in float32"
        )
    return None


def check_tokenizer(c: Candidates) -> str | None:
    """The drafter was trained with this tokenizer, where it says so."""
    if c.drafter.text_hash is not None and c.drafter.text_hash != vocabulary_hash(c.target.text.tokenizer_json):
        raise PairingError(
            "the drafter was trained with another tokenizer",
            where=str(c.drafter.path / "config.json"),
            why="its recorded vocabulary hash is not that of the target's tokenizer, so ids mean other words",
            fix="use the target it was trained for, or retrain the drafter on this one",
        )
    return None


def check_template(c: Candidates) -> str | None:
    """The drafter was trained with this chat template, where it says so; another one costs acceptance, not
    correctness.
    """
    if c.drafter.template_hash is not None and c.drafter.template_hash != template_hash(c.target.text.chat_template):
        return "the drafter was trained with another chat template: expect fewer accepted tokens on chats"
    return None


def check_thinking(c: Candidates) -> str | None:
    """Where the target can think or not, the drafter was trained for what it does by default; the other costs
    acceptance, not correctness.
    """
    if c.switch is None or c.drafter.thinking == c.switch.default is not None:
        return None
    modes = {True: "with thinking", False: "without thinking", None: "in a third way"}
    usual = (
        f"the chat template switches thinking by {c.switch.variable} and asks {modes[c.switch.default]} where that is"
        " not set"
    )
    if c.drafter.thinking is None:
        return (
            f"{usual}; which the drafter was trained on is not known: --drafter-thinking on or off records it, and"
            " chats in the other mode are then noted"
        )
    return (
        f"{usual}; the drafter was trained {modes[c.drafter.thinking]}: chats in another mode will have fewer tokens"
        " accepted"
    )


def check_generation(c: Candidates) -> str | None:
    """The target's generation defaults that an answer does without."""
    return greedy_note(c.target.text.generation)


CHECKS: tuple[Callable[[Candidates], str | None], ...] = (
    check_target_layers,
    check_taps,
    check_hidden,
    check_context_projection,
    check_vocabulary,
    check_draft_vocabulary,
    check_tokenizer,
    check_mask,
    check_block,
    check_context,
    check_rope,
    check_heads,
    check_dtype,
    check_template,
    check_thinking,
    check_generation,
)
SPEC_CHECKS: tuple[Callable[[Specs], str | None], ...] = (
    check_target_layers,
    check_taps,
    check_hidden,
    check_vocabulary,
    check_mask,
    check_block,
    check_rope,
    check_heads,
)
"""those of `CHECKS` that need no more than configurations"""
