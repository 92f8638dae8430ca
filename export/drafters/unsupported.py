"""DFlash dialects known by sight that cannot be opened: their users get the dialect's name instead of a list of wrong tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from dflash_compile.runtime.errors import CheckpointError

from ..files import names_architecture, read_json, section

SIGN = "nothing that can be opened"

Config = Mapping[str, Any]


SIGHTS: Mapping[str, Callable[[Config], bool]] = {
    "z-lab DFlash2": lambda config: names_architecture(config, "DFlash2DraftModel"),
    "speculators (of another algorithm than DFlash)": lambda config: config.get("speculators_model_type", "dflash") != "dflash",
    "ModelOpt": lambda config: "use_swa" in section(config.get("dflash_config")),
    "Muse assistant": lambda config: config.get("model_type") == "muse_glimmer_assistant",
    "DeepSpec": lambda config: names_architecture(config, "Qwen3DSparkModel"),
}


def recognise(path: Path) -> str | None:
    """The dialect's name, or None."""
    return _dialect(path)


def open_checkpoint(path: Path) -> NoReturn:
    """Always raises `CheckpointError`, naming the dialect."""
    raise CheckpointError(
        f"this is a {_dialect(path)} drafter, which cannot be opened",
        where=str(path / "config.json"),
        why="its tensors or its rules differ from DFlash v1, which this version reads in the z-lab and the speculators layout",
        fix="use a DFlash v1 drafter (architectures: DFlashDraftModel, or speculators_model_type: dflash)",
    )


def _dialect(path: Path) -> str | None:
    if not (path / "config.json").is_file():
        return None
    config = read_json(path / "config.json")
    return next((name for name, seen in SIGHTS.items() if seen(config)), None)
