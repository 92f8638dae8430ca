"""The files of an app's source for one bundle, as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from dflash_compile.runtime.bundle.manifest import FORMAT, VERSION, Manifest
from dflash_compile.runtime.errors import UsageError

from .words import LANGUAGES, laid_out

_SYSTEMS = {
    "macos15": {"tools": "6.0", "platforms": ".macOS(.v15), .iOS(.v18)", "systems": "macOS 15 or iOS 18"},
    "macos26": {"tools": "6.2", "platforms": ".macOS(.v26), .iOS(.v26)", "systems": "macOS 26 or iOS 26"},
}


@dataclass(frozen=True)
class _Form:
    """What one language makes of one back-end's bundles."""

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
_PYTHON_FILES = {"dflash_generate.py": "python/generate.py.jinja", "README.md": "python/README.md.jinja"}
_FORMS = {
    ("swift", "coreml"): _Form(_SWIFT_FILES, {}, {}),
    ("python", "coreml"): _Form(
        _PYTHON_FILES,
        {
            "library": "coremltools",
            "imports": "import json\nimport os\nimport sys\nfrom collections.abc import Callable",
            "library_imports": "import coremltools\nimport numpy as np",
            "proof": "It runs on a Mac. Nobody has run it there yet: it was tested with Core ML played by an evaluator of saved packages.",
        },
        {"calls": "python/calls.jinja", "model": "python/coreml.jinja"},
    ),
    ("python", "coreai"): _Form(
        _PYTHON_FILES,
        {
            "library": "coreai-core",
            "imports": "import asyncio\nimport atexit\nimport json\nimport sys\nimport time\n"
            "from collections.abc import Callable\nfrom contextlib import AsyncExitStack",
            "library_imports": "import numpy as np\nfrom coreai.authoring import AIModelAsset\nfrom coreai.runtime import NDArray",
            "proof": "It runs on a Mac and on Linux, where its answers were compared with those of dflash-compile's own runtime.",
        },
        {"calls": "python/calls.jinja", "model": "python/coreai.jinja"},
    ),
}


def source_of(manifest: Manifest, language: str) -> dict[str, str]:
    """Text of every file, by relative path, in order. Raises `UsageError` where `language` has no code for the bundle's back-end."""
    from jinja2 import Environment, StrictUndefined

    form = _form(manifest.requires.backend, language)
    _check_policy(manifest)
    words = LANGUAGES[language]
    environment = Environment(autoescape=False, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)

    def rendered(template: str, **more: str) -> str:
        text = files(__package__ or "").joinpath("templates", *template.split("/")).read_text(encoding="utf-8")
        return environment.from_string(text).render(facts | more)

    facts: dict[str, object] = {
        "words": words,
        "backend": manifest.requires.backend,
        "format": FORMAT,
        "version": VERSION,
        "target": manifest.target.name,
        "context": manifest.context,
        "block": manifest.pairing.block,
        **_SYSTEMS.get(str(manifest.config.get("deployment_target")), _SYSTEMS["macos15"]),
        **form.facts,
    }
    for name, template in form.includes.items():
        facts[name] = rendered(template)
    facts["loop"] = laid_out(rendered("loop.jinja"), words.blank_lines)
    return {path: rendered(template) for path, template in form.files.items()}


def _form(backend: str, language: str) -> _Form:
    if language not in LANGUAGES:
        raise UsageError(f"no code in {language!r}", where="--lang", fix=f"choose one of {', '.join(LANGUAGES)}")
    backends = [other for spoken, other in _FORMS if spoken == language]
    if backend not in backends:
        elsewhere = "with --lang python" if ("python", backend) in _FORMS else "through dflash_compile.runtime, which is made to be part of an app"
        raise UsageError(
            f"there is no {language.capitalize()} code for bundles of the back-end {backend}",
            where="--lang",
            why=f"it is written for {' and '.join(backends)}",
            fix=f"use this bundle {elsewhere}, or build one with --backend {backends[0]}",
        )
    return _FORMS[language, backend]


def _check_policy(manifest: Manifest) -> None:
    policy = manifest.config.get("cache_policy", "gpu-state")
    if policy != "gpu-state":
        raise UsageError(
            f"there is no such code for bundles of the cache policy {policy}",
            where=manifest.target.name,
            why="it keeps the caches in the engines' states",
            fix="build the bundle with --cache-policy gpu-state",
        )
