"""The roles of Apple's back-ends: at which widths, and with ports of which sizes."""

from __future__ import annotations

from pathlib import Path

import models

from dflash_compile.compile.apple.roles import roles_of, widths_of
from dflash_compile.compile.build import BuildOptions
from dflash_compile.compile.pair_sizes import decide
from dflash_compile.export import open_drafter, open_target


def test_widths_are_the_block_and_its_halves() -> None:
    assert [widths_of(block) for block in (16, 8, 6, 4, 2)] == [(16, 8, 4), (8, 4), (6,), (4,), (2,)]


def test_ports_are_of_the_promised_sizes(tmp_path: Path) -> None:
    target = models.write_target(tmp_path / "target", num_hidden_layers=2)
    drafter = models.write_drafter(tmp_path / "drafter", target, layers=1, block=4, taps=(0,))
    llama = decide(open_target(target), open_drafter(drafter), BuildOptions(context=96))
    roles = roles_of(llama, "target", "float16")
    assert all(role.cache.length >= llama.context + role.rows and role.cache.length % 32 == 0 for role in roles)
