"""One open GGUF file: its metadata as plain values, its tensors as memory maps. Knows nothing about models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, LlamaFileType, ReaderTensor

from dflash_compile.runtime.errors import CheckpointError

from .header import check_header


class GgufFile:
    """A GGUF file, opened and found whole."""

    def __init__(self, path: Path) -> None:
        """Read metadata and the tensor table.

        Raises `CheckpointError` when the file is damaged, cut short or one part of several.
        """
        self.path = path
        try:
            check_header(path)
            reader = GGUFReader(path)
            self.metadata: Mapping[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        except (
            ValueError,
            IndexError,
            KeyError,
            OverflowError,
            OSError,
            MemoryError,
            TypeError,
            RecursionError,
        ) as error:
            raise CheckpointError(
                f"{path.name} is damaged or cut short",
                where=str(path),
                why=(
                    f"reading its headers failed: {error or type(error).__name__} (the file has {path.stat().st_size}"
                    " bytes)"
                ),
                fix="copy or download the file again",
            ) from None
        self.tensors: Mapping[str, ReaderTensor] = {tensor.name: tensor for tensor in reader.tensors}
        self._check_whole()

    @property
    def weight_type(self) -> str:
        """The file's main storage type, in lower case: f32, f16, q4_1 and so on."""
        kind = self.metadata.get("general.file_type")
        known = {entry.value: entry.name for entry in LlamaFileType}
        return (
            known[kind].removeprefix("MOSTLY_").removeprefix("ALL_").lower()
            if isinstance(kind, int) and kind in known
            else "mixed"
        )

    def require(self, key: str) -> Any:
        """The value of `key`. Raises `CheckpointError` when the file does not say."""
        if key not in self.metadata:
            raise self.fault(
                key,
                f"{self.path.name} lacks {key}",
                "a default would be some other model's value",
                "convert the model again with a current converter",
            )
        return self.metadata[key]

    def size(self, key: str, default: int | None = None) -> int:
        """The whole number from 1 up under `key`, or `default` where the file does not say.

        Raises `CheckpointError` for anything else.
        """
        value = self.metadata.get(key, default)
        value = self.require(key) if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 1 << 31:
            raise self.fault(
                key,
                f"{key} cannot be {value!r}",
                "a whole number from 1 to 2147483647 is needed",
                "convert the model again",
            )
        return value

    def decimal(self, key: str) -> float:
        """The number under `key`. Raises `CheckpointError` where there is none."""
        value = self.require(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise self.fault(key, f"{key} cannot be {value!r}", "a number is needed", "convert the model again")
        # GGUF keeps float32; the shortest decimal that rounds to it is the number the author wrote, 1e-05 and not
        # 9.99999974e-06.
        return float(str(np.float32(value)))

    def fault(
        self, key: str, what: str, why: str, fix: str = "open the model's transformers directory instead"
    ) -> CheckpointError:
        """An error located at `key` of this file."""
        return CheckpointError(what, where=f"{self.path}: {key}", why=why, fix=fix)

    def _check_whole(self) -> None:
        size = self.path.stat().st_size
        short = [tensor.name for tensor in self.tensors.values() if tensor.data_offset + int(tensor.n_bytes) > size]
        if short:
            raise self.fault(
                short[0],
                f"{self.path.name} is cut short",
                f"{len(short)} tensors end past the file's {size} bytes",
                "copy or download the file again",
            )
        if self.metadata.get("split.count", 1) not in (0, 1):
            raise self.fault(
                "split.count",
                f"{self.path.name} is one part of {self.metadata['split.count']}",
                "a model is read from one file",
                "join the parts with llama.cpp's gguf-split --merge",
            )
