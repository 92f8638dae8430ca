"""One fault at a time in a checkpoint of every drafter layout: each is refused, or fewer of the drafter's proposals are
those they should be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from forms import Cached, torch_drafter
from gguf_files import write_gguf_drafter
from models import IM_END, MASK, VOCAB
from plain_drafter import PlainDrafter, Sees
from safetensors.torch import load_file, save_file

from dflash_compile.export import open_drafter, open_target, pair
from dflash_compile.export.checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint
from dflash_compile.export.checkpoints.torch_model import load_model
from dflash_compile.export.parameter_names import EMBEDDING, HEAD
from dflash_compile.export.tracing.signature import draft_signature, inject_signature
from dflash_compile.runtime.errors import CheckpointError, PairingError

CONTEXT, BLOCK, WINDOW = 64, 6, 4
COMMITTED = (11, 3, 1, 6, 2, 5, 4, 6)
"""rows of context per cycle: the prompt, then one more than the accepted proposals"""
IDS = (IM_END, *range(30, 380, 5))
"""the reduced vocabulary, where a layout has one"""
KINDS = ["sliding_attention", "full_attention"]
SLIDING = {"layer_types": KINDS, "use_sliding_window": True}


@dataclass(frozen=True)
class Said:
    """What a checkpoint says of its weights. As it stands here, the truth."""

    taps: tuple[int, ...] = (2, 0)
    mask_id: int = MASK
    window: int = WINDOW
    """of the first layer; the second looks everywhere"""
    causal: bool = False
    swapped: bool = False
    """the columns of `fc` are those of the taps in another order"""
    absolute: bool = False
    """`d2t` holds token ids, not their distance to the row"""


TRUTH = Said()
FAULTS = {
    "shifted tap": replace(TRUTH, taps=(3, 1)),
    "wrong mask token": replace(TRUTH, mask_id=200),
    "mask token that ends an answer": replace(TRUTH, mask_id=IM_END),
    "rows that do not look ahead": replace(TRUTH, causal=True),
    "swapped fc columns": replace(TRUTH, swapped=True),
    "d2t read as absolute": replace(TRUTH, absolute=True),
    "window a row too wide": replace(TRUTH, window=WINDOW + 1),
    "window a row too narrow": replace(TRUTH, window=WINDOW - 1),
}


def edit(folder: Path, said: Said, fc: str = "fc.weight", **keys: Any) -> Path:
    """The checkpoint in `folder` with `keys` in its config, and its tensors as `said`."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | keys))
    tensors = load_file(folder / "model.safetensors")
    if said.swapped:
        tensors[fc] = tensors[fc].roll(tensors[fc].shape[1] // len(said.taps), dims=1)
    if said.absolute:
        tensors["d2t"] = tensors["d2t"] + torch.arange(len(IDS))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def zlab_v1(folder: Path, target: Path, said: Said) -> Path:
    layers = {**SLIDING, "sliding_window": said.window, "is_causal": said.causal}
    return edit(models.write_drafter(folder, target, block=BLOCK, taps=said.taps, mask_id=said.mask_id, **layers), said)


def zlab_v2(folder: Path, target: Path, said: Said) -> Path:
    layers = {**SLIDING, "sliding_window": said.window, "is_causal": said.causal}
    path = models.write_drafter2(folder, target, block=BLOCK, taps=said.taps, **layers)
    settings = json.loads((path / "config.json").read_text())["dflash_config"]
    return edit(path, said, dflash_config=settings | {"mask_token_id": said.mask_id})


def speculators(folder: Path, target: Path, said: Said) -> Path:
    path = models.write_speculators(
        folder, target, IDS, block=BLOCK, taps=said.taps, **SLIDING, sliding_window=said.window
    )
    return edit(path, said, mask_token_id=said.mask_id, sliding_window_non_causal=not said.causal)


def modelopt(folder: Path, target: Path, said: Said) -> Path:
    settings = {
        "use_swa": True,
        "swa_window_size": said.window,
        "causal": said.causal,
        "mask_token_id": said.mask_id,
        "target_layer_ids": list(said.taps),
    }
    return edit(
        models.write_drafter(folder, target, block=BLOCK, taps=said.taps, dflash_config=settings, layer_types=KINDS),
        said,
    )


def muse_assistant(folder: Path, target: Path, said: Said) -> Path:
    # As everywhere, a window of 4 is 3 rows back and the row itself; here that is called 3.
    layers = {
        "layer_types": KINDS,
        "sliding_window": said.window - 1,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    }
    path = models.write_assistant(folder, target, block=BLOCK, taps=said.taps, **layers)
    return edit(path, said, fc="encoder.fc.weight", mask_token_id=said.mask_id)


def deepspec(folder: Path, target: Path, said: Said) -> Path:
    path = models.write_deepspec(
        folder, target, mask_token_id=said.mask_id, **SLIDING, sliding_window=said.window, is_causal=said.causal
    )
    return edit(path, said, target_layer_ids=list(said.taps))


def gguf(folder: Path, target: Path, said: Said) -> Path:
    plain = edit(models.write_drafter(folder, target, block=BLOCK, taps=said.taps, mask_id=said.mask_id), said)
    window = {
        "attention.sliding_window": said.window,
        "attention.sliding_window_pattern": [True, False],
        "attention.causal": said.causal,
    }
    return write_gguf_drafter(folder / "drafter.gguf", plain, extra=window)


def everything(row: int, column: int, anchor: int) -> bool:
    return True


def own_window(row: int, column: int, anchor: int) -> bool:
    """So many rows to either side, the row itself counted."""
    return abs(row - column) < WINDOW


def anchored_window(row: int, column: int, anchor: int) -> bool:
    """The whole block, and so many rows before it."""
    return column >= anchor - WINDOW


@dataclass(frozen=True)
class Layout:
    """How one dialect is written, and what sets it apart."""

    write: Callable[[Path, Path, Said], Path]
    sees: Sees = own_window
    settings: Mapping[str, Any] | None = None
    """of the plain drafter"""
    family: str = "llama"
    source: str = "model.safetensors"
    names: Mapping[str, str] | None = None
    """tensors that are stored under other names"""


LAYOUTS = {
    "zlab_v1": Layout(zlab_v1),
    "zlab_v2": Layout(zlab_v2, settings={"scale": 1.5, "multiplier": 0.5, "cap": 6.0, "candidates": 5}),
    "speculators": Layout(speculators, sees=anchored_window, settings={"ids": IDS}),
    "modelopt": Layout(modelopt),
    "muse_assistant": Layout(
        muse_assistant,
        family="muse_glimmer",
        names={"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"},
    ),
    "deepspec": Layout(deepspec, settings={"from_anchor": True, "proposals": 7}),
    "gguf": Layout(gguf),
}
WHOLE = "it proposes any token and has no d2t"
LEFT_OUT = {("d2t read as absolute", name): WHOLE for name in LAYOUTS if name != "speculators"}
LEFT_OUT |= {
    ("rows that do not look ahead", "muse_assistant"): "the layout has no key for it: every layer looks both ways"
}
REFUSED = {("mask token that ends an answer", name): "end token" for name in LAYOUTS} | {
    ("d2t read as absolute", "speculators"): "d2t"
}
"""cells that opening or pairing refuses, and what it says; in all others the drafter opens, and only acceptance
tells"""
CELLS = [(fault, name) for fault in FAULTS for name in LAYOUTS if (fault, name) not in LEFT_OUT]


@dataclass(frozen=True)
class Target:
    """A target and what its layers gave for one text."""

    checkpoint: TargetCheckpoint
    states: tuple[torch.Tensor, ...]
    """[rows, H] of the embedding, then of every layer"""

    def taps(self, layers: tuple[int, ...]) -> torch.Tensor:
        """[rows, n * H], concatenated as listed."""
        return torch.cat([self.states[layer + 1] for layer in layers], -1)


@pytest.fixture(scope="module")
def target_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Target]:
    """The target of a family: five layers, so that a tap shifted by one is still a tap."""

    @cache
    def made(family: str) -> Target:
        checkpoint = open_target(models.write_target(tmp_path_factory.mktemp(family), family, num_hidden_layers=5))
        tokens = torch.randint(4, VOCAB, (1, sum(COMMITTED)), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            states = load_model(checkpoint)(input_ids=tokens, output_hidden_states=True).hidden_states
        return Target(checkpoint, tuple(state[0] for state in states))

    return made


def cycles() -> list[tuple[int, int, int]]:
    """(first new row of context, rows of context, anchor) of every cycle."""
    ends = torch.tensor(COMMITTED).cumsum(0).tolist()
    anchors = torch.randint(4, VOCAB, (len(ends),), generator=torch.Generator().manual_seed(2)).tolist()
    return list(zip([0, *ends[:-1]], ends, anchors, strict=True))


def expected(layout: Layout, folder: Path, target: Target) -> list[list[int]]:
    """Proposals of every cycle by the plain drafter, from the truth and the tensors in `folder`."""
    stored = {
        (layout.names or {}).get(name, name): tensor.float()
        for name, tensor in load_file(folder / layout.source).items()
    }
    embedding = stored.get("embed_tokens.weight", target.checkpoint.read(EMBEDDING).float())
    head = stored.get(HEAD, target.checkpoint.read(HEAD).float())
    settings = {"proposals": BLOCK - 1, **(layout.settings or {})}
    plain = PlainDrafter(stored, embedding, head, TRUTH.mask_id, (layout.sees, everything), **settings)
    taps = target.taps(TRUTH.taps)
    return [plain.propose(taps[:end], anchor) for _, end, anchor in cycles()]


def found(drafter: DrafterCheckpoint, target: Target) -> list[list[int]]:
    """Proposals of every cycle by the drafter as it was opened, over its cache."""
    pair(target.checkpoint, drafter)
    spec, taps = drafter.spec, target.taps(drafter.spec.taps)
    lengths, vocab = (CONTEXT,) * spec.layers, spec.draft_vocab or VOCAB
    signatures = {
        "inject": inject_signature(spec.layers, spec.kv_heads, spec.head_dim, lengths, taps.shape[1]),
        "draft": draft_signature(spec.layers, spec.kv_heads, spec.head_dim, lengths, vocab),
    }
    ids = range(VOCAB) if drafter.vocabulary is None else drafter.vocabulary.ids
    proposals = []
    with torch_drafter(drafter, target.checkpoint, signatures, CONTEXT) as calls:
        engine = Cached(signatures["inject"], calls["inject"], calls["draft"])
        for start, end, anchor in cycles():
            engine.inject(taps[start:end].numpy(), start)
            logits = engine.draft([anchor] + [spec.mask_id] * (spec.block - 1), end)
            proposals.append([ids[row] for row in logits.argmax(-1)])
    return proposals


def accepted(proposals: list[list[int]], wanted: list[list[int]]) -> int:
    """How many a target that says `wanted` would take: of every cycle, those before the first wrong one."""
    taken = 0
    for have, want in zip(proposals, wanted, strict=True):
        right = [one == other for one, other in zip(have, want, strict=True)]
        taken += [*right, False].index(False)
    return taken


@pytest.mark.parametrize("name", LAYOUTS)
def test_without_a_fault_every_proposal_is_right(name: str, target_of: Callable[[str], Target], tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    target = target_of(layout.family)
    path = layout.write(tmp_path / "drafter", target.checkpoint.path, TRUTH)
    wanted = expected(layout, tmp_path / "drafter", target)
    drafter = open_drafter(path)
    assert drafter.spec.dialect == name
    assert accepted(found(drafter, target), wanted) == len(wanted) * len(wanted[0])
    assert len({token for block in wanted for token in block}) >= 5, (
        "a drafter that always says the same proves nothing"
    )


@pytest.mark.parametrize(("fault", "name"), CELLS)
def test_a_fault_is_refused_or_costs_acceptance(
    fault: str, name: str, target_of: Callable[[str], Target], tmp_path: Path
) -> None:
    layout = LAYOUTS[name]
    target = target_of(layout.family)
    layout.write(tmp_path / "right", target.checkpoint.path, TRUTH)
    wanted = expected(layout, tmp_path / "right", target)
    wrong = layout.write(tmp_path / "wrong", target.checkpoint.path, FAULTS[fault])
    if why := REFUSED.get((fault, name)):
        with pytest.raises((CheckpointError, PairingError), match=why):
            found(open_drafter(wrong), target)
    else:
        assert accepted(found(open_drafter(wrong), target), wanted) < len(wanted) * len(wanted[0])


@pytest.mark.parametrize("name", [name for (_, name), why in LEFT_OUT.items() if why == WHOLE and name != "gguf"])
def test_maps_of_a_vocabulary_are_refused_where_they_have_no_place(
    name: str, target_of: Callable[[str], Target], tmp_path: Path
) -> None:
    """Why those cells are left out: no such file opens."""
    layout = LAYOUTS[name]
    path = layout.write(tmp_path / "drafter", target_of(layout.family).checkpoint.path, TRUTH)
    weights = load_file(path / "model.safetensors")
    save_file(weights | {"d2t": torch.tensor(IDS)}, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="d2t"):
        open_drafter(path)
