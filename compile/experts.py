"""Which form mixtures of experts take in ONNX Runtime's engines."""

from __future__ import annotations

from dflash_compile.export.spec import TargetSpec


def form_of(spec: TargetSpec) -> str | None:
    """The form in words, or None for a target without experts."""
    if not spec.experts:
        return None
    return f"dense: all {spec.experts} experts of a layer run on every token, not the {spec.experts_used} that are chosen; their weights stay in float32"
