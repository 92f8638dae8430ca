"""What can be chosen of Core ML's engines, and what is another back-end's."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_compile.compile.build import BuildOptions
from dflash_compile.runtime.errors import UsageError


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"precision": "fp32"}, "unknown precision"),
        ({"drafter_precision": "fp32"}, "unknown precision"),
        ({"portable": True}, "portable form"),
        ({"deployment_target": "macos12"}, "deployment target"),
        ({"cache_policy": "ane"}, "cache policy"),
        ({"refine": 1}, "--refine"),
        ({"arch": ("sm86",)}, "--arch"),
    ],
)
def test_options_of_other_backends_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        BuildOptions(backend="coreml", **options)


@pytest.mark.parametrize("choice", [{"deployment_target": "macos15"}, {"cache_policy": "gpu-state"}])
def test_what_only_core_ml_can_choose_is_refused_elsewhere(choice: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="have none"):
        BuildOptions(**choice)
