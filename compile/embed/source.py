"""The files of an app's source for one bundle, as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from dflash_compile.runtime.bundle.manifest import FORMAT, VERSION, Manifest
from dflash_compile.runtime.errors import UsageError

from ..coreml.names import ANE_IO, GPU_STATE
from .emitter import LANGUAGES, laid_out

_SYSTEMS = {
    "macos15": {"tools": "6.0", "platforms": ".macOS(.v15), .iOS(.v18)", "systems": "macOS 15 or iOS 18"},
    "macos26": {"tools": "6.2", "platforms": ".macOS(.v26), .iOS(.v26)", "systems": "macOS 26 or iOS 26"},
}


@dataclass(frozen=True)
class _Form:
    """What one language makes of the bundles of one back-end and cache policy."""

    files: Mapping[str, str]
    """template by the path of what it makes"""
    facts: Mapping[str, str]
    includes: Mapping[str, str]
    """templates that others take in, by the name they have there"""


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
_PYTHON_FILES = {"dflash_generate.py": "python/generate.py.jinja", "README.md": "python/README.md.jinja"}
_PYTHON_COREML = {
    "library": "coremltools",
    "imports": "import json\nimport os\nimport sys\nfrom collections.abc import Callable",
    "library_imports": "import coremltools\nimport numpy as np",
    "proof": (
        "It runs on a Mac. Nobody has run it there yet: it was tested with Core ML played by an evaluator of saved"
        " packages."
    ),
}
_PYTHON_COREAI = {
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
}
_PYTHON_INCLUDES = {"calls": "python/calls.jinja", "compiled": "python/compiled.jinja"}
_FORMS = {
    ("swift", "coreml", GPU_STATE): _Form(
        _SWIFT_FILES, _SWIFT_STATE, {"calls": "swift/calls.jinja", "model": "swift/state.jinja"}
    ),
    ("swift", "coreml", ANE_IO): _Form(
        _SWIFT_HOST_FILES, _SWIFT_HOST, {"calls": "swift/calls.jinja", "model": "swift/host.jinja"}
    ),
    ("python", "coreml", GPU_STATE): _Form(
        _PYTHON_FILES, _PYTHON_COREML, _PYTHON_INCLUDES | {"model": "python/state.jinja"}
    ),
    ("python", "coreml", ANE_IO): _Form(
        _PYTHON_FILES, _PYTHON_COREML, _PYTHON_INCLUDES | {"model": "python/host.jinja"}
    ),
    # Core AI's engines keep their cache in a state, and have no choice.
    ("python", "coreai", GPU_STATE): _Form(
        _PYTHON_FILES, _PYTHON_COREAI, {"calls": "python/calls.jinja", "model": "python/coreai.jinja"}
    ),
}


def source_of(manifest: Manifest, language: str) -> dict[str, str]:
    """Text of every file, by relative path, in order.

    Raises `UsageError` where `language` has no code for the bundle's back-end or cache policy.
    """
    from jinja2 import Environment, StrictUndefined

    policy = str(manifest.config.get("cache_policy", GPU_STATE))
    form = _form(manifest.requires.backend, language, policy)
    words = LANGUAGES[language]
    environment = Environment(
        autoescape=False, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )

    def rendered(template: str, **more: str) -> str:
        text = files(__package__ or "").joinpath("templates", *template.split("/")).read_text(encoding="utf-8")
        return environment.from_string(text).render(facts | more)

    facts: dict[str, object] = {
        "words": words,
        "backend": manifest.requires.backend,
        "policy": policy,
        "format": FORMAT,
        "version": VERSION,
        "target": manifest.target.name,
        "context": manifest.context,
        "block": manifest.pairing.block,
        **_SYSTEMS.get(str(manifest.config.get("deployment_target")), _SYSTEMS["macos15"]),
        **form.facts,
    }
    for name in ("loop", "cache"):
        facts[name] = laid_out(rendered(f"{name}.jinja"), words.blank_lines)
    for name, template in form.includes.items():
        facts[name] = rendered(template)
    return {path: rendered(template) for path, template in form.files.items()}


def _form(backend: str, language: str, policy: str) -> _Form:
    if language not in LANGUAGES:
        raise UsageError(f"no code in {language!r}", where="--lang", fix=f"choose one of {', '.join(LANGUAGES)}")
    backends = list(dict.fromkeys(other for spoken, other, _ in _FORMS if spoken == language))
    if backend not in backends:
        python = any((spoken, other) == ("python", backend) for spoken, other, _ in _FORMS)
        elsewhere = (
            "with --lang python" if python else "through dflash_compile.runtime, which is made to be part of an app"
        )
        raise UsageError(
            f"there is no {language.capitalize()} code for bundles of the back-end {backend}",
            where="--lang",
            why=f"it is written for {' and '.join(backends)}",
            fix=f"use this bundle {elsewhere}, or build one with --backend {backends[0]}",
        )
    policies = [known for *form, known in _FORMS if form == [language, backend]]
    if policy not in policies:
        raise UsageError(
            f"there is no {language.capitalize()} code for bundles of the cache policy {policy}",
            where="--lang",
            why=f"it is written for {' and '.join(policies)}",
            fix=f"build the bundle with --cache-policy {policies[0]}",
        )
    return _FORMS[language, backend, policy]
