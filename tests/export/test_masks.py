"""Which cache columns each row of a block may attend to, drawn by hand for every kind of window there is."""

from __future__ import annotations

import pytest
import torch

from dflash_compile.export.ops.semantic import NO_WINDOW, _visible

# A block of 3 rows at positions 4, 5, 6, in a cache of 9: columns 0 to 3 are context, 7 and 8 are stale.
MASKS = {
    "full": ((NO_WINDOW, False, False), ["111111100", "111111100", "111111100"]),
    "causal": ((NO_WINDOW, True, False), ["111110000", "111111000", "111111100"]),
    "each row's own 3": ((3, True, False), ["001110000", "000111000", "000011100"]),
    "each row's own 2, both ways": ((2, False, False), ["000111000", "000011100", "000001100"]),
    "Muse: |q - k| <= 2, which is a window of 3": ((3, False, False), ["001111100", "000111100", "000011100"]),
    "speculators: 2 before the anchor": ((2, False, True), ["001111100", "001111100", "001111100"]),
    "speculators, causal: 2 before the anchor": ((2, True, True), ["001110000", "001111000", "001111100"]),
    "speculators: more than there is": ((7, False, True), ["111111100", "111111100", "111111100"]),
}


@pytest.mark.parametrize("kind", MASKS)
def test_the_mask_is_the_one_drawn_by_hand(kind: str) -> None:
    (window, causal, anchored), drawn = MASKS[kind]
    found = _visible(torch.tensor([4], dtype=torch.int32), 3, 9, window, causal, anchored)
    assert ["".join("1" if cell else "0" for cell in row) for row in found.tolist()] == drawn
