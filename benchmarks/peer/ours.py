"""Our own sides: a bundle decoded plainly, and as its session sees fit, drafting and looking up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from peer import Setup


class Ours:
    """Variants are ways to decode."""

    VARIANTS: ClassVar = ("plain", "DFlash")
    INSTALL: ClassVar = "pip install 'dflash-compile[cpu]'"

    def __init__(self, setup: Setup) -> None:
        from importlib.metadata import version

        from dflash_compile.runtime import load

        self._session = load(setup.model, threads=setup.threads)
        self._draft = setup.variant == "DFlash"
        manifest = self._session.manifest
        self.version = f"{version('dflash-compile')}, onnxruntime {version('onnxruntime')}"
        self.weights = manifest.target.precision + (f", drafter {manifest.drafter.precision}" if self._draft else "")

    def generate(self, prompt: Sequence[int], new_tokens: int, on_token: Callable[[int], None]) -> Mapping[str, float]:
        """Ends at end of sequence, unlike the others: the runner asks for no more than the bundle's own answer."""
        for token in self._session.tokens(prompt, max_new_tokens=new_tokens, draft=self._draft):
            on_token(token)
        statistics = self._session.statistics
        return {
            "cycles": statistics.cycles,
            "drafted": statistics.drafted,
            "undrafted_tokens": statistics.undrafted_tokens,
        }


PEER = Ours
