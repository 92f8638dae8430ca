"""Reads the forms and word lists that prompts are made of."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any


def read(name: str) -> dict[str, Any]:
    """The file `name`.toml of this folder."""
    return tomllib.loads(files(__package__ or "").joinpath(f"{name}.toml").read_text(encoding="utf-8"))
