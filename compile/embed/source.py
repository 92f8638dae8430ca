"""The files of an app's source for one bundle, as text."""

from __future__ import annotations

from importlib.resources import files
from types import ModuleType

from dflash_compile.runtime.bundle.manifest import FORMAT, VERSION, Manifest
from dflash_compile.runtime.errors import UsageError

from ..backend_folders import backend_module, backend_names
from .emitter import LANGUAGES, indent
from .form import Form

_MODULE = "app_source"
"""of a back-end's folder, where there is code for its bundles: `LANGUAGES`, and `form_of` a manifest in one of them"""


def source_of(manifest: Manifest, language: str) -> dict[str, str]:
    """Text of every file, by relative path, in order.

    Raises `UsageError` where `language` has no code for the bundle's back-end or cache policy.
    """
    from jinja2 import Environment, StrictUndefined

    form = _form(manifest, language)
    emitter = LANGUAGES[language]
    environment = Environment(
        autoescape=False, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )

    def rendered(template: str, **more: str) -> str:
        text = files(__package__ or "").joinpath("templates", *template.split("/")).read_text(encoding="utf-8")
        return environment.from_string(text).render(facts | more)

    facts: dict[str, object] = {
        "emitter": emitter,
        "backend": manifest.requires.backend,
        "format": FORMAT,
        "version": VERSION,
        "target": manifest.target.name,
        "context": manifest.context,
        "block": manifest.pairing.block,
        **form.facts,
    }
    for name in ("loop", "cache"):
        facts[name] = indent(rendered(f"{name}.jinja"), emitter.blank_lines)
    for name, template in form.includes.items():
        facts[name] = rendered(template)
    return {path: rendered(template) for path, template in form.files.items()}


def _form(manifest: Manifest, language: str) -> Form:
    if language not in LANGUAGES:
        raise UsageError(f"no code in {language!r}", where="--lang", fix=f"choose one of {', '.join(LANGUAGES)}")
    backend, modules = manifest.requires.backend, {name: _app_source(name) for name in backend_names(_MODULE)}
    able = [name for name, module in modules.items() if language in module.LANGUAGES]
    if backend in able:
        form: Form = modules[backend].form_of(manifest, language)
        return form
    others = modules[backend].LANGUAGES if backend in modules else ()
    elsewhere = (
        f"with --lang {others[0]}" if others else "through dflash_compile.runtime, which is made to be part of an app"
    )
    raise UsageError(
        f"there is no {language.capitalize()} code for bundles of the back-end {backend}",
        where="--lang",
        why=f"it is written for {' and '.join(able)}",
        fix=f"use this bundle {elsewhere}, or build one with --backend {' or '.join(able)}",
    )


def _app_source(backend: str) -> ModuleType:
    return backend_module(backend, _MODULE, "source for apps")
