"""The runner's end of an engine's pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from peer import Setup


@dataclass(frozen=True)
class Answer:
    """One answer and its times, in seconds."""

    tokens: tuple[int, ...]
    first_seconds: float
    """from the request to the first token"""
    decode_seconds: float
    """from the first token to the last"""
    cpu_seconds: float
    """of the engine's whole process, meanwhile"""
    own: Mapping[str, float]
    """figures that only this engine has"""


class LeftOutError(Exception):
    """An engine cannot take part. `missing` where a library of it is not installed, which is no fault."""

    def __init__(self, name: str, why: str, *, missing: bool) -> None:
        super().__init__(f"{name}: {why}")
        self.name, self.why, self.missing = name, why, missing


class Engine:
    """An engine in its own process, opened. A context manager. Raises `LeftOutError` at any time."""

    def __init__(self, name: str, file: Path, setup: Setup, python: str = sys.executable) -> None:
        self.name = name
        words = [file, setup.variant, setup.model, setup.work, setup.threads, setup.context]
        threads = {"OMP_NUM_THREADS": str(setup.threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [python, "-m", "peer.worker", *(str(word) for word in words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=os.environ | threads | {"PYTHONPATH": path},
        )
        try:
            opened = self._read()
        except BaseException:
            self.close()
            raise
        self.version, self.weights = str(opened["version"]), str(opened["weights"])

    def answer(self, prompt: Sequence[int], new_tokens: int) -> Answer:
        """`new_tokens` tokens after `prompt`, decoded greedily."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # what it said last, or how it ended, tells more
            self._process.stdin.write(json.dumps({"prompt": list(prompt), "new_tokens": new_tokens}) + "\n")
            self._process.stdin.flush()
        reply = self._read()
        return Answer(
            tuple(reply["tokens"]), reply["first_seconds"], reply["decode_seconds"], reply["cpu_seconds"], reply["own"]
        )

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None and self._process.stdout is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                with suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise LeftOutError(self.name, f"its process ended with {self._process.wait()}", missing=False)
        reply: dict[str, Any] = json.loads(line)
        for key in ("missing", "failed"):
            if key in reply:
                raise LeftOutError(self.name, reply[key], missing=key == "missing")
        return reply
