"""The source of apps that run Core ML bundles: which templates, and what they are told."""

from __future__ import annotations

from dataclasses import replace

from dflash_compile.runtime.bundle.manifest import Manifest
from dflash_compile.runtime.errors import UsageError

from ..embed.form import PYTHON_FILES, Form
from .names import ANE_IO, GPU_STATE

LANGUAGES = ("swift", "python")

_SYSTEMS = {
    "macos15": {"tools": "6.0", "platforms": ".macOS(.v15), .iOS(.v18)", "systems": "macOS 15 or iOS 18"},
    "macos26": {"tools": "6.2", "platforms": ".macOS(.v26), .iOS(.v26)", "systems": "macOS 26 or iOS 26"},
}
_SWIFT_FILES = {
    "Package.swift": "swift/Package.swift.jinja",
    "README.md": "swift/README.md.jinja",
    "Sources/DFlash/Generator.swift": "swift/Generator.swift.jinja",
    "Sources/DFlash/Manifest.swift": "swift/Manifest.swift.jinja",
    "Sources/DFlash/Model.swift": "swift/Model.swift.jinja",
    "Sources/DFlashGenerate/Command.swift": "swift/Command.swift.jinja",
}
_SWIFT_STATE = {"parts": "| `Sources/DFlash/Model.swift` | Core ML: functions, the state, arrays |"}
_SWIFT_HOST = {
    "parts": (
        "| `Sources/DFlash/Model.swift` | Core ML: functions, what each of them is given, arrays |\n|"
        " `Sources/DFlash/HostCache.swift` | the cache: K and V of the rows that were committed, in the memory that"
        " Core ML reads |"
    )
}
_SWIFT_HOST_FILES = _SWIFT_FILES | {"Sources/DFlash/HostCache.swift": "swift/HostCache.swift.jinja"}
_PYTHON = {
    "library": "coremltools",
    "imports": "import json\nimport os\nimport sys\nfrom collections.abc import Callable",
    "library_imports": "import coremltools\nimport numpy as np",
    "proof": (
        "It runs on a Mac. Nobody has run it there yet: it was tested with Core ML played by an evaluator of saved"
        " packages."
    ),
}
_PYTHON_INCLUDES = {"calls": "python/calls.jinja", "compiled": "python/compiled.jinja"}
_FORMS = {
    ("swift", GPU_STATE): Form(
        _SWIFT_FILES, _SWIFT_STATE, {"calls": "swift/calls.jinja", "model": "swift/state.jinja"}
    ),
    ("swift", ANE_IO): Form(
        _SWIFT_HOST_FILES, _SWIFT_HOST, {"calls": "swift/calls.jinja", "model": "swift/host.jinja"}
    ),
    ("python", GPU_STATE): Form(PYTHON_FILES, _PYTHON, _PYTHON_INCLUDES | {"model": "python/state.jinja"}),
    ("python", ANE_IO): Form(PYTHON_FILES, _PYTHON, _PYTHON_INCLUDES | {"model": "python/host.jinja"}),
}


def form_of(manifest: Manifest, language: str) -> Form:
    """For a bundle's cache policy and system. Raises `UsageError` for a policy that has no code."""
    policy = str(manifest.config.get("cache_policy", GPU_STATE))
    policies = [known for spoken, known in _FORMS if spoken == language]
    if policy not in policies:
        raise UsageError(
            f"there is no {language.capitalize()} code for bundles of the cache policy {policy}",
            where="--lang",
            why=f"it is written for {' and '.join(policies)}",
            fix=f"build the bundle with --cache-policy {policies[0]}",
        )
    form = _FORMS[language, policy]
    system = _SYSTEMS.get(str(manifest.config.get("deployment_target")), _SYSTEMS["macos15"])
    return replace(form, facts={**form.facts, **system, "policy": policy})
