"""The source of apps that run Core AI bundles: which templates, and what they are told."""

from __future__ import annotations

from dflash_compile.runtime.bundle.manifest import Manifest

from ..embed.form import PYTHON_FILES, Form

LANGUAGES = ("python",)

_FACTS = {
    "library": "coreai-core",
    "imports": (
        "import asyncio\nimport atexit\nimport json\nimport sys\nimport time\n"
        "from collections.abc import Callable\nfrom contextlib import AsyncExitStack"
    ),
    "library_imports": (
        "import numpy as np\nfrom coreai.authoring import AIModelAsset\nfrom coreai.runtime import NDArray"
    ),
    "proof": (
        "It runs on a Mac and on Linux, where its answers were compared with those of dflash-compile's own runtime."
    ),
    "policy": "gpu-state",  # its engines keep their cache in a state, and have no choice
}


def form_of(_manifest: Manifest, _language: str) -> Form:
    """The one there is."""
    return Form(PYTHON_FILES, _FACTS, {"calls": "python/calls.jinja", "model": "python/coreai.jinja"})
