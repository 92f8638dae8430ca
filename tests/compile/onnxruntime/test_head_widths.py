"""Heads that the fused attention kernels do not take: refused before anything is traced, with a way that works."""

from __future__ import annotations

from pathlib import Path

import models
import pytest

from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.runtime import load
from dflash_compile.runtime.errors import UsageError


@pytest.mark.parametrize(
    ("head_dim", "draft_head_dim", "named"), [(24, 16, "target"), (20, 20, "target"), (16, 24, "drafter")]
)
def test_uneven_heads_are_refused_at_once(tmp_path: Path, head_dim: int, draft_head_dim: int, named: str) -> None:
    target = models.write_target(tmp_path / "t", head_dim=head_dim)
    drafter = models.write_drafter(tmp_path / "d", target, head_dim=draft_head_dim)
    steps = []
    with pytest.raises(UsageError, match=f"the {named}'s heads are") as caught:
        build(target, drafter, tmp_path / "bundle", BuildOptions(), lambda *step: steps.append(step[0]))
    assert "--portable --precision fp32" in str(caught.value)
    assert steps == ["opening the models"]


def test_what_the_refusal_advises_works(tmp_path: Path) -> None:
    target = models.write_target(tmp_path / "t", head_dim=20)
    drafter = models.write_drafter(tmp_path / "d", target, head_dim=20)
    options = BuildOptions(precision="fp32", context=48, engine={"portable": True})
    with load(build(target, drafter, tmp_path / "bundle", options)) as session:
        plain = list(session.tokens([5, 77, 120], max_new_tokens=9, draft=False))
        assert list(session.tokens([5, 77, 120], max_new_tokens=9)) == plain
