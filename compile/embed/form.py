"""What an app's source is made of for one bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    """What one language makes of a bundle."""

    files: Mapping[str, str]
    """template by the path of what it makes"""
    facts: Mapping[str, str]
    includes: Mapping[str, str]
    """templates that others take in, by the name they have there"""


PYTHON_FILES = {"dflash_generate.py": "python/generate.py.jinja", "README.md": "python/README.md.jinja"}
