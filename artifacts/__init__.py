"""Files that ship with the tool: the demo's drafter, the prompt suites, and JSON schemas.

Bundles are built here by default.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent
"""the folder itself, in a checkout and in an installed wheel alike"""
