"""Hessians of a target's linear layers: the second moments X^T X of their inputs X over some text.

They are taken of the target as its file has it, one decoder layer in memory after the other. GPTQ (Frantar et al.,
2023, arXiv 2210.17323) takes each layer's from the layers before it already rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from dflash_compile.export.checkpoints.checkpoint import TargetCheckpoint
from dflash_compile.export.checkpoints.layerwise import LayerwiseModel
from dflash_compile.runtime.errors import BuildError

from ..calibration_text import Calibration
from .hessian import Hessian


class Hessians:
    """Factors of the inverse Hessians, by checkpoint tensor.

    Texts go through a layer when the first of its tensors is asked for. Asked for in the order of layers, each is read
    once; for one before, the texts start anew.
    """

    report: Callable[[int, int], None] = staticmethod(lambda number, count: None)
    """called with the number of the layer that the texts are about to go through, and how many there are"""

    def __init__(self, target: TargetCheckpoint, calibration: Calibration) -> None:
        self._target, self._calibration = target, calibration
        self._model: LayerwiseModel | None = None
        self._inputs = _Inputs()
        self._factor: tuple[str, torch.Tensor] | None = None
        """the latest asked for, and the module whose input it is of"""

    def factor(self, tensor: str) -> torch.Tensor | None:
        """U [K, K], upper triangular, float32, with U^T U = (X^T X + damping)^-1 of the rows X [·, K] that `tensor` [N,
        K] is multiplied with.

        None where no linear layer is called so, or no text reaches it. Raises `BuildError` where X is not finite.
        """
        module = tensor.removesuffix(".weight")
        if module not in self._inputs.readers and not self._reach(module):
            return None
        source = self._inputs.readers.get(module)
        if source is None:
            return None
        if self._factor is None or self._factor[0] != source:
            self._factor = None  # before another takes its place
            self._factor = source, _checked(source, self._inputs.hessians[source]).factor()
        return self._factor[1]

    def release(self) -> None:
        """Give the memory back; asked again, it starts anew."""
        self._model, self._inputs, self._factor = None, _Inputs(), None

    def _reach(self, module: str) -> bool:
        """Take all texts through the layers up to that of `module`; whether it is in one."""
        if self._model is None:
            self._model = LayerwiseModel(self._target, self._calibration.sequences(self._target))
        names = self._model.names
        number = next((at for at, name in enumerate(names) if module.startswith(f"{name}.")), None)
        if number is None:
            return False
        if number < self._model.done - 1:
            self.release()
            return self._reach(module)
        while self._model.done <= number:
            self.report(self._model.done, len(names))
            self._inputs, self._factor = _Inputs(), None
            _run(self._model, self._inputs.note if self._model.done == number else None)
        return True


Listener = Callable[[str, torch.Tensor], None]
"""told of every linear layer that is about to run, and of the rows it reads"""


class _Inputs:
    """Hessians of what a layer's linear layers read."""

    def __init__(self) -> None:
        self.hessians: dict[str, Hessian] = {}
        self.readers: dict[str, str] = {}
        """whose moments are those of each: the first that reads the same rows, as Q, K and V do"""
        self._latest: tuple[torch.Tensor, str] | None = None

    def note(self, name: str, rows: torch.Tensor) -> None:
        """The linear layer `name` reads `rows` [1, S, K] now."""
        if self._latest is not None and self._latest[0] is rows:
            self.readers[name] = self._latest[1]
            return
        self._latest, self.readers[name] = (rows, name), name
        flat = rows.reshape(-1, rows.shape[-1])
        self.hessians.setdefault(name, Hessian(flat.shape[1])).add(flat)


def _run(model: LayerwiseModel, hear: Listener | None) -> None:
    """Take all texts through the next layer of `model`."""
    name = model.names[model.done]
    with model.next() as (layer, texts):
        hooks = [
            module.register_forward_pre_hook(partial(_heard, hear, f"{name}.{inner}"))
            for inner, module in layer.named_modules()
            if hear is not None and isinstance(module, nn.Linear)
        ]
        for _ in texts:
            pass
        for hook in hooks:
            hook.remove()


def _heard(hear: Listener, name: str, _module: nn.Linear, inputs: tuple[torch.Tensor, ...]) -> None:
    hear(name, inputs[0])


def _checked(module: str, hessian: Hessian) -> Hessian:
    """Raises `BuildError` where what `module` reads is not finite."""
    if not hessian.finite:
        raise BuildError(
            f"{module} is given numbers that are not finite",
            where="target checkpoint, calibration",
            why="weights before it are damaged, or make too large numbers of these texts",
            fix="copy or download the weights again, or build without --calibrate",
        )
    return hessian
