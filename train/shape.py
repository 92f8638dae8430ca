"""The shape of the drafter to train: the target's own widths, its taps, and a token for the mask."""

from __future__ import annotations

import json

from dflash_compile.export.spec import DrafterSpec, TargetSpec
from dflash_compile.runtime.errors import UsageError

from .options import TrainOptions, default_taps

TRAINABLE = ("llama", "qwen3")


def drafter_spec(
    target: TargetSpec, options: TrainOptions, mask_id: int, bias: bool = False, draft_vocab: int | None = None
) -> DrafterSpec:
    """The drafter to train for `target`: its own shapes, so that its last layers can start it.

    `bias`: its projections have one. `draft_vocab`: how many tokens it can propose; None for all.
    """
    return DrafterSpec(
        dialect="speculators" if draft_vocab is not None or options.sample_from_anchor else "zlab_v1",
        name=f"{target.name}-dflash",
        layers=options.layers,
        hidden=target.hidden,
        heads=target.heads,
        kv_heads=target.kv_heads,
        head_dim=target.head_dim,
        intermediate=target.intermediate,
        vocab=target.vocab,
        max_positions=target.max_positions,
        block=options.block,
        mask_id=mask_id,
        taps=options.taps if options.taps is not None else default_taps(target.layers),
        rms_eps=target.rms_eps,
        rope_theta=target.rope_theta,
        dtype="bfloat16",
        target_layers=target.layers,
        attention_bias=bias,
        sample_from_anchor=options.sample_from_anchor,
        draft_vocab=draft_vocab,
    )


def choose_mask_id(tokenizer_json: bytes, target: TargetSpec, wanted: int | None) -> int:
    """A token that text never holds: `wanted`, or the last special token that is neither pad, bos nor eos.

    Raises `UsageError` when there is none, or when `wanted` is one of those.
    """
    taken = {target.pad_id, target.bos_id, *target.eos_ids}
    if wanted is not None:
        if wanted in taken or not 0 <= wanted < target.vocab:
            raise UsageError(
                f"mask id {wanted} is pad, bos, eos or outside the vocabulary of {target.vocab}",
                where="--mask-id",
                fix="name a special token that text never holds",
            )
        return wanted
    added = [token["id"] for token in json.loads(tokenizer_json)["added_tokens"] if token["special"]]
    free = [token for token in added if token not in taken and token < target.vocab]
    if not free:
        raise UsageError(
            "the tokenizer has no spare special token for the mask",
            where="tokenizer added_tokens",
            fix="name one with --mask-id",
        )
    return int(max(free))


def check_shape(target: TargetSpec, options: TrainOptions) -> None:
    """Raise `UsageError` for a target that no drafter is trained for, and for layers and taps that `target` does not
    have.
    """
    if target.family not in TRAINABLE:
        raise UsageError(
            f"a drafter for a {target.family} target cannot be trained",
            where=target.name,
            why=(
                "its layers are none that a draft layer could start as, or its embeddings and logits are scaled in ways"
                " that training does not know"
            ),
            fix=f"train for a target of {', '.join(TRAINABLE)}; published drafters of other families can be built",
        )
    if target.layers < 2:
        raise UsageError(
            f"{target.name} has a single layer", why="a drafter reads layers before the last", fix="use a deeper target"
        )
    if options.layers > target.layers:
        raise UsageError(
            f"a drafter of {options.layers} layers for a target of {target.layers}",
            where="--layers",
            why="its layers start as the target's last ones",
            fix=f"ask for at most {target.layers}, better far fewer",
        )
    taps = options.taps if options.taps is not None else default_taps(target.layers)
    if not taps or len(set(taps)) < len(taps) or not all(0 <= tap < target.layers - 1 for tap in taps):
        raise UsageError(
            f"taps {list(taps)} cannot be trained on",
            where="--taps",
            why=(
                f"a tap is the output of one of layers 0 to {target.layers - 2}, each at most once; the last layer's is"
                " already normed"
            ),
            fix="name such layers, or leave --taps out",
        )
