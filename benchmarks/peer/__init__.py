"""Other engines on the same model, prompts and threads as a bundle: what `benchmarks/peers.py` is made of.

An engine is one file of `engines/` with one class behind `Peer`, found by name; nothing else mentions it. It runs in a
process of its own, in the Python that has its libraries, and takes turns with the others over a pipe (`worker.py`,
`process.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol


@dataclass(frozen=True)
class Setup:
    """What an engine is opened with."""

    variant: str
    """one of the class's `VARIANTS`"""
    model: Path
    """the GGUF file; for our own sides the bundle"""
    work: Path
    """a folder for converted forms of this model; it may be there already, with those of an earlier run"""
    threads: int
    context: int
    """tokens of prompt and answer together, at most"""


class Peer(Protocol):
    """One engine with one form of the weights loaded. The class is its file's `PEER`.

    Importing the file must not import the engine's libraries. The constructor raises `ImportError` where one is not
    installed.
    """

    VARIANTS: ClassVar[tuple[str, ...]]
    """forms of the weights it is measured with"""
    INSTALL: ClassVar[str]
    """the command that installs its libraries"""
    version: str
    weights: str
    """precision and quantisation of what it computes with, in a few words"""

    def __init__(self, setup: Setup) -> None: ...

    def generate(self, prompt: Sequence[int], new_tokens: int, on_token: Callable[[int], None]) -> Mapping[str, float]:
        """Decode greedily, `new_tokens` long whatever the tokens are; `on_token` gets each as it is known.

        Returns figures of its own, if any.
        """
        ...
