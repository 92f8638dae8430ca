"""A folder of target-generated sequences and their tap features, appended to and read by memory map.

tokens.bin     int32, all sequences end to end
features.bin   bfloat16, one row of taps * hidden values per token
index.jsonl    one line per sequence: {"start", "length", "prompt", "tag"}; written last, so that
               an interrupted run loses the sequence under way and nothing else
store.json     {"version", "width", "taps", "target"}
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dflash_compile.export.checkpoints.checkpoint import TargetCheckpoint
from dflash_compile.runtime.errors import DFlashError, ExitCode, UsageError

VERSION = 1


class StoreMismatch(DFlashError):
    """The folder holds features of another target, other taps or another version."""

    exit_code = ExitCode.INCOMPATIBLE


@dataclass(frozen=True)
class Entry:
    """One sequence: its first row, its number of tokens and how many of them are prompt."""

    start: int
    length: int
    prompt: int
    tag: str = ""


def _read(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, why: str) -> UsageError:
    return UsageError(
        "a feature folder is damaged",
        where=str(path),
        why=why,
        fix="delete the folder: its sequences are generated again",
    )


def owner_of(checkpoint: TargetCheckpoint) -> str:
    """Name and hash of a target: features of two models of the same name must never mix."""
    digest = hashlib.sha256("".join(f"{name} {sha}\n" for name, sha in sorted(checkpoint.files.items())).encode())
    return f"{checkpoint.spec.name} {digest.hexdigest()[:16]}"


class FeatureStore:
    """Append sequences with `append`; read one with `tokens(entry)` and `features(entry)`."""

    def __init__(self, folder: Path, width: int, taps: Sequence[int], target: str) -> None:
        """Open or create `folder`.

        Raises `StoreMismatch` when it belongs to something else, `UsageError` when it is damaged.
        """
        self.folder, self.width = folder, width
        folder.mkdir(parents=True, exist_ok=True)
        header = {"version": VERSION, "width": width, "taps": list(taps), "target": target}
        head = folder / "store.json"
        if head.exists():
            found = _read(head, head.read_text())
            if found != header:
                raise StoreMismatch(
                    "this folder holds the features of something else",
                    where=str(folder),
                    why=f"it has {found}, this run needs {header}",
                    fix="use another folder, or delete this one",
                )
        else:
            head.write_text(json.dumps(header))
        self.entries = self._read_index()
        self.rows = self.entries[-1].start + self.entries[-1].length if self.entries else 0
        self._cut("tokens.bin", self.rows * 4)
        self._cut("features.bin", self.rows * width * 2)

    def _read_index(self) -> list[Entry]:
        path = self.folder / "index.jsonl"
        if not path.exists():
            return []
        text = path.read_text()
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # a torn last line is not a sequence
            os.truncate(path, len(whole.encode()))
        try:
            return [Entry(**_read(path, line)) for line in whole.splitlines()]
        except TypeError as error:
            raise _damaged(path, str(error)) from error

    def _cut(self, name: str, size: int) -> None:
        path = self.folder / name
        path.touch()
        if (found := path.stat().st_size) < size:  # truncating would fill it up with zeros
            raise _damaged(path, f"it has {found} bytes, the index promises {size}")
        with path.open("r+b") as file:
            file.truncate(size)

    def append(self, tokens: Sequence[int], features: torch.Tensor, prompt: int, tag: str = "") -> Entry:
        """Add one sequence; `features` is [len(tokens), width]."""
        entry = Entry(self.rows, len(tokens), prompt, tag)
        with (self.folder / "tokens.bin").open("ab") as file:
            file.write(torch.tensor(tokens, dtype=torch.int32).numpy().tobytes())
        with (self.folder / "features.bin").open("ab") as file:
            file.write(features.to(torch.bfloat16).contiguous().view(torch.int16).cpu().numpy().tobytes())
        with (self.folder / "index.jsonl").open("a") as file:
            file.write(json.dumps(asdict(entry)) + "\n")
        self.entries.append(entry)
        self.rows += entry.length
        return entry

    def _map(self, name: str, dtype: torch.dtype, count: int) -> torch.Tensor:
        return torch.from_file(str(self.folder / name), shared=False, size=count, dtype=dtype)

    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(tokens [rows] int32, features [rows, width] bfloat16), both memory-mapped."""
        tokens = self._map("tokens.bin", torch.int32, self.rows)
        return tokens, self._map("features.bin", torch.bfloat16, self.rows * self.width).view(self.rows, self.width)
