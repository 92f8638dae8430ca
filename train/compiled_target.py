"""The compiled target over many slots: one session, every slot's cache, one row a slot and step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_compile.runtime.errors import IncompatibleError

FloatArray = NDArray[np.float32]


class CompiledTarget:
    """Runs a batched target graph (`compile/onnxruntime/batching.py`) on ONNX Runtime's CPU kernels, the ones it is
    known to agree with a bundle on.

    Prompts go in one slot at a time, then all chosen slots advance together by a token. Two is the least width, here as
    in the runtime: a single row takes a kernel that rounds otherwise.
    """

    def __init__(self, model: bytes, folder: Path, context: int, identity: str, threads: int | None = None) -> None:
        """`folder` holds the model's weights, and `context` is the most tokens it has positions for; `identity` names
        it in feature folders.

        Nothing runs before `reserve`. Raises `IncompatibleError` where ONNX Runtime is missing.
        """
        try:
            import onnxruntime as ort
        except ImportError as error:
            raise IncompatibleError(
                "ONNX Runtime cannot be imported", why=str(error), fix='pip install "dflash-compile[cpu]"'
            ) from error
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads or 0
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
        self._session: Any = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        shapes = {port.name: port.shape for port in (*self._session.get_inputs(), *self._session.get_outputs())}
        self.vocab, self.width = int(shapes["logits"][2]), int(shapes["taps"][2])
        self.context, self.identity = context, identity
        self.slots = self.length = 0
        names = [port.name for port in self._session.get_inputs() if port.name not in ("tokens", "position", "pick")]
        outputs = [port.name for port in self._session.get_outputs() if port.name not in ("logits", "taps")]
        self._ports = list(zip(names, outputs, strict=True))
        self._heads = [(int(shapes[name][1]), int(shapes[name][3])) for name in names]
        self._caches: list[FloatArray] = []

    def reserve(self, slots: int, length: int) -> None:
        """Memory for `slots` sequences of up to `length` tokens each, in place of what was reserved before."""
        self.slots, self.length = slots, length
        self._caches = [np.zeros((slots, heads, length, width), np.float32) for heads, width in self._heads]

    def prefill(self, slot: int, tokens: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
        """`tokens` from position 0 of `slot`: logits [V] after the last one, taps [S, n * H]."""
        rows = len(tokens)
        fed = tokens if rows > 1 else tokens * 2  # the next step overwrites the second row
        # Asked for the last row twice, the head runs two wide.
        logits, taps = self._run(
            [c[slot : slot + 1] for c in self._caches], np.array([fed], np.int32), np.zeros(1, np.int32), [rows - 1] * 2
        )
        return logits[0, 0], taps[0, :rows]

    def step(self, tokens: NDArray[np.int32], positions: NDArray[np.int32]) -> tuple[FloatArray, FloatArray]:
        """One token [slots] at its position [slots] for every slot: logits [slots, V], taps [slots, n * H]."""
        logits, taps = self._run(self._caches, tokens[:, None], positions, [0])
        return logits[:, 0], taps[:, 0]

    def _run(
        self, caches: list[FloatArray], tokens: NDArray[np.int32], position: NDArray[np.int32], pick: list[int]
    ) -> tuple[FloatArray, FloatArray]:
        batch, rows = tokens.shape
        logits = np.empty((batch, len(pick), self.vocab), np.float32)
        taps = np.empty((batch, rows, self.width), np.float32)
        binding = self._session.io_binding()
        given = {
            "tokens": np.ascontiguousarray(tokens),
            "position": position,
            "pick": np.array(pick, np.int32),
            "logits": logits,
            "taps": taps,
        }
        for name, array in given.items():
            bind = binding.bind_output if name in ("logits", "taps") else binding.bind_input
            bind(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for (name, out), cache in zip(self._ports, caches, strict=True):
            binding.bind_input(name, "cpu", 0, cache.dtype, cache.shape, cache.ctypes.data)
            binding.bind_output(out, "cpu", 0, cache.dtype, cache.shape, cache.ctypes.data)
        self._session.run_with_iobinding(binding)
        return logits, taps
