"""A pair's TensorRT graphs run by ONNX Runtime: the files that are compiled, driven as a device would drive them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from forms import quiet

from dflash_compile.compile.graphs.bind import bind
from dflash_compile.compile.pair_sizes import Models
from dflash_compile.compile.tensorrt.engine import Engine
from dflash_compile.compile.tensorrt.lint import lint
from dflash_compile.compile.tensorrt.options import Options
from dflash_compile.compile.tensorrt.roles import Traced, lower_all
from dflash_compile.runtime.bundle.manifest import PREFILL_ROWS

Array = np.ndarray[Any, Any]


def lowered(traced: Sequence[Traced], precision: str, arch: str) -> tuple[Engine, ...]:
    """Every graph of a pair as it is compiled for one architecture."""
    return lower_all(traced, Options(precision, precision, arch=(arch,)))


class Emitted:
    """The graphs as one device: caches that start full of rubbish, and the state that a commit leaves."""

    def __init__(self, models: Models, engines: Sequence[Engine], folder: Path) -> None:
        self.sessions: dict[tuple[str, int], onnxruntime.InferenceSession] = {}
        self.caches: dict[str, dict[str, Array]] = {}
        self.signatures = {(engine.signature.role, engine.rows): engine.signature for engine in engines}
        for engine in engines:
            assert lint(engine.lowered.model, free=len(engine.widths) > 1) == []
            path = bind(engine.lowered, models.sources, folder, f"{engine.title}.onnx")
            self.sessions[engine.signature.role, engine.rows] = onnxruntime.InferenceSession(
                path, quiet(), providers=["CPUExecutionProvider"]
            )
            ports = {port.name: port for port in engine.signature.inputs}
            self.caches.setdefault(
                engine.owner,
                {name: np.full(ports[name].shape, 7, ports[name].dtype) for name, _ in engine.signature.caches},
            )
        self.block = models.block
        self.position = 0

    def run(self, owner: str, role: str, rows: int, **feeds: Array) -> dict[str, Array]:
        """One graph; its caches move on."""
        session, signature, caches = self.sessions[role, rows], self.signatures[role, rows], self.caches[owner]
        found = dict(
            zip([port.name for port in signature.outputs], session.run(None, {**feeds, **caches}), strict=True)
        )
        self.caches[owner] = {name: found[updated] for name, updated in signature.caches}
        return found

    def prefill(self, prompt: Sequence[int], inject: bool = True) -> int:
        """The prompt, a padded chunk at a time; the first token of the answer."""
        choice = 0
        for start in range(0, len(prompt), PREFILL_ROWS):
            rows = list(prompt[start : start + PREFILL_ROWS])
            tokens = np.array([rows + [0] * (PREFILL_ROWS - len(rows))], np.int32)
            at = ints(start)
            out = self.run("target", "prefill", PREFILL_ROWS, tokens=tokens, position=at, valid=ints(len(rows)))
            if inject:
                self.run("drafter", "inject", PREFILL_ROWS, taps=out["taps"], position=at)
            choice = int(out["next_token"][0])
        self.position = len(prompt)
        return choice

    def verify(self, block: Sequence[int]) -> dict[str, Array]:
        """One block at the current position, which moves on by what it accepts."""
        role = "decode" if len(block) == 1 else "verify"
        out = self.run("target", role, len(block), block=np.array([block], np.int32), position=ints(self.position))
        self.position = int(out["next_position"][0])
        return out

    def generate(self, prompt: Sequence[int], count: int) -> list[int]:
        """`count` tokens, by the cycle of the device: draft, verify, inject, commit."""
        tokens = [self.prefill(prompt)]
        while len(tokens) < count:
            at = ints(self.position)
            block = self.run("drafter", "draft", self.block, anchor=ints(tokens[-1]), position=at)["block"]
            out = self.verify(block[0].tolist())
            self.run("drafter", "inject", self.block, taps=out["taps"], position=at)
            accepted = int(out["accepted"][0])
            tokens += [*block[0, 1 : accepted + 1].tolist(), int(out["bonus"][0])]
        return tokens[:count]


def ints(value: int) -> Array:
    return np.array([value], np.int32)
