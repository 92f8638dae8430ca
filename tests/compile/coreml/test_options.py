"""What a Core ML package can be asked to be."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_compile.compile.coreml.options import Options
from dflash_compile.compile.options import BuildOptions
from dflash_compile.runtime.errors import UsageError


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"precision": "fp32"}, "unknown precision"),
        ({"drafter_precision": "fp32"}, "unknown precision"),
        ({"engine": {"deployment_target": "macos12"}}, "deployment target"),
        ({"engine": {"cache_policy": "ane"}}, "cache policy"),
    ],
)
def test_what_a_package_cannot_be_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Options.parse(BuildOptions(backend="coreml", **options))
