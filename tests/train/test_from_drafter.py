"""What training can start from: an int8 drafter, with a reduced vocabulary too, gives the weights its checkpoint stands
for.
"""

from __future__ import annotations

from pathlib import Path

import models
import pytest
import torch

from dflash_compile.compile.quantize_drafter import quantize_drafter
from dflash_compile.export import open_drafter, open_target
from dflash_compile.export.dflash.v1 import DflashV1
from dflash_compile.runtime.errors import PairingError
from dflash_compile.train.from_drafter import check_start, options_of, take_weights
from dflash_compile.train.options import TrainOptions
from dflash_compile.train.shape import drafter_spec


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write_target(tmp_path_factory.mktemp("target"))


@pytest.mark.parametrize("reduced", [False, True])
def test_an_int8_drafter(target: Path, tmp_path: Path, reduced: bool) -> None:
    if reduced:
        plain = models.write_speculators(
            tmp_path / "plain", target, range(4, 200), own_head=False, taps=(0, 2), block=4
        )
    else:
        plain = models.write_drafter(tmp_path / "plain", target, taps=(0, 2), block=4)
    start, before, checkpoint = (
        open_drafter(quantize_drafter(plain, tmp_path / "int8")),
        open_drafter(plain),
        open_target(target),
    )
    options = TrainOptions(**options_of(start.spec))
    spec = drafter_spec(checkpoint.spec, options, start.spec.mask_id, draft_vocab=start.spec.draft_vocab)
    check_start(checkpoint, spec, start)
    model = DflashV1(spec, len(spec.taps) * checkpoint.spec.hidden)
    take_weights(model, start)
    for name, parameter in model.named_parameters():
        wanted = before.read(name).float()
        step = (
            wanted.abs().amax(-1, keepdim=True) / 127
            if name.startswith("layers.") and name.endswith("_proj.weight")
            else torch.zeros(1)
        )
        assert ((parameter.detach() - wanted).abs() <= 0.51 * step).all(), name


def test_a_drafter_with_a_head_of_its_own_is_refused(target: Path, tmp_path: Path) -> None:
    start = open_drafter(
        models.write_speculators(tmp_path / "own", target, range(4, 200), own_head=True, taps=(0, 2), block=4)
    )
    checkpoint = open_target(target)
    spec = drafter_spec(checkpoint.spec, TrainOptions(**options_of(start.spec)), start.spec.mask_id)
    with pytest.raises(PairingError, match="head of its own"):
        check_start(checkpoint, spec, start)


def test_a_deeper_drafter_gives_its_first_layers(target: Path, tmp_path: Path) -> None:
    windows = {"layer_types": ["full_attention", "sliding_attention"], "use_sliding_window": True, "sliding_window": 8}
    start = open_drafter(models.write_drafter(tmp_path / "deep", target, layers=2, taps=(0, 2), block=4, **windows))
    checkpoint = open_target(target)
    spec = drafter_spec(checkpoint.spec, TrainOptions(**options_of(start.spec) | {"layers": 1}), start.spec.mask_id)
    check_start(checkpoint, spec, start)  # the second layer's window is no difference: that layer is not asked for
    model = DflashV1(spec, len(spec.taps) * checkpoint.spec.hidden)
    take_weights(model, start)
    taken = dict(model.named_parameters())
    assert not any(name.startswith("layers.1.") for name in taken)
    assert all(torch.equal(parameter.detach(), start.read(name).float()) for name, parameter in taken.items())


def test_a_shallower_one_cannot_give_what_it_lacks(target: Path, tmp_path: Path) -> None:
    start = open_drafter(models.write_drafter(tmp_path / "flat", target, layers=1, taps=(0, 2), block=4))
    checkpoint = open_target(target)
    spec = drafter_spec(checkpoint.spec, TrainOptions(**options_of(start.spec) | {"layers": 2}), start.spec.mask_id)
    with pytest.raises(PairingError) as caught:
        check_start(checkpoint, spec, start)
    assert caught.value.why == "it has 1 layers, not 2"
