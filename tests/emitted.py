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
from dflash_compile.compile.tensorrt.tables import write_tables
from dflash_compile.compile.tensorrt.traced import Traced, lower_all
from dflash_compile.runtime.bundle.manifest import PREFILL_ROWS

Array = np.ndarray[Any, Any]


def lowered(traced: Sequence[Traced], precision: str, arch: str) -> tuple[Engine, ...]:
    """Every graph of a pair as it is compiled for one architecture."""
    return lower_all(traced, Options(precision, precision, arch=(arch,)))


class Emitted:
    """The graphs as one device: caches that start full of rubbish, and the state that a commit leaves."""

    def __init__(self, models: Models, engines: Sequence[Engine], folder: Path) -> None:
        self.sessions: dict[str, onnxruntime.InferenceSession] = {}
        self.caches: dict[str, dict[str, Array]] = {}
        self.signatures = {engine.signature.role: engine.signature for engine in engines}
        for engine in engines:
            role = engine.signature.role
            assert lint(engine.lowered.model, free=len(engine.widths) > 1) == []
            path = bind(engine.lowered, models.sources, folder, f"{role}.onnx")
            self.sessions[role] = onnxruntime.InferenceSession(path, quiet(), providers=["CPUExecutionProvider"])
            ports = {port.name: port for port in engine.signature.inputs}
            caches = {name: np.full(ports[name].shape, 7, ports[name].dtype) for name, _ in engine.signature.caches}
            if caches:
                self.caches.setdefault(engine.owner, caches)
        tables = [table for engine in engines for table in engine.tables]
        work = folder / "work"
        work.mkdir(exist_ok=True)
        write_tables(tables, models.sources, work, folder)
        self.tables = {
            table.name: np.fromfile(folder / table.file, table.port.dtype).reshape(table.port.shape)  # type: ignore[arg-type]
            for table in tables
        }
        self.block, self.mask_id = models.block, models.drafter.spec.mask_id
        self.position = 0

    def run(self, role: str, **feeds: Array) -> dict[str, Array]:
        """One engine; its caches move on."""
        session, signature = self.sessions[role], self.signatures[role]
        owner = "target" if role == "body" else "drafter"
        taken = [port.name for port in signature.inputs]
        caches = self.caches[owner] if signature.caches else {}
        fed = {name: value for name, value in (feeds | self.tables).items() if name in taken}
        found = dict(zip([port.name for port in signature.outputs], session.run(None, {**fed, **caches}), strict=True))
        if caches:
            self.caches[owner] = {name: found[updated] for name, updated in signature.caches}
        return found

    def body(self, tokens: Sequence[int], valid: int) -> dict[str, Array]:
        """The target's layers over `tokens`, at the current position."""
        embedded = self.run("embed", tokens=np.array([tokens], np.int32))["embedded"]
        return self.run("body", embedded=embedded, position=ints(self.position), valid=ints(valid))

    def prefill(self, prompt: Sequence[int], inject: bool = True) -> int:
        """The prompt, a padded chunk at a time; the first token of the answer."""
        choice = 0
        for start in range(0, len(prompt), PREFILL_ROWS):
            rows = list(prompt[start : start + PREFILL_ROWS])
            self.position = start
            out = self.body(rows + [0] * (PREFILL_ROWS - len(rows)), len(rows))
            if inject:
                self.run("inject", taps=out["taps"], position=ints(start))
            hidden = np.concatenate([out["last"], np.zeros_like(out["last"])], axis=1)
            choice = int(self.head(hidden, [0, 0])["tokens"][0, 0])
        self.position = len(prompt)
        return choice

    def head(self, hidden: Array, block: Sequence[int], anchor: int = 0) -> dict[str, Array]:
        """The target's head over rows of the target or of a drafter."""
        feeds = {"block": np.array([block], np.int32), "anchor": ints(anchor), "position": ints(self.position)}
        return self.run("head", hidden=hidden, **feeds)

    def verify(self, block: Sequence[int]) -> dict[str, Array]:
        """One block at the current position, which moves on by what it accepts."""
        body = self.body(block, 1)
        out = body | self.head(body["hidden"], block)
        self.position = int(out["next_position"][0])
        return out

    def draft(self, anchor: int, position: int) -> Array:
        """int32 [B]: the anchor and what is proposed after it."""
        block = [anchor, *[self.mask_id] * (self.block - 1)]
        taken = {port.name: port.shape for port in self.signatures["draft"].inputs}
        feeds = {"anchor": ints(anchor), "position": ints(position)}
        if "embedded" in taken:
            embedded = self.run("embed", tokens=np.array([block], np.int32))["embedded"]
            feeds["embedded"] = embedded[:, : int(taken["embedded"][1])]
        out = self.run("draft", **feeds)
        if "block" in out:
            found: Array = out["block"][0]
            return found
        proposed: Array = self.head(out["hidden"], [0] * self.block, anchor)["proposals"][0]
        return proposed

    def generate(self, prompt: Sequence[int], count: int) -> list[int]:
        """`count` tokens, by the cycle of the device: draft, verify, inject, commit."""
        tokens = [self.prefill(prompt)]
        while len(tokens) < count:
            at = self.position
            block = self.draft(tokens[-1], at).tolist()
            out = self.verify(block)
            self.run("inject", taps=out["taps"], position=ints(at))
            accepted = int(out["accepted"][0])
            tokens += [*block[1 : accepted + 1], int(out["bonus"][0])]
        return tokens[:count]


def ints(value: int) -> Array:
    return np.array([value], np.int32)
