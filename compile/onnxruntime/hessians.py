"""Hessians of a target's linear layers: the second moments X^T X of their inputs X over some text.

They are taken of the target as its file has it, all layers in one pass. GPTQ (Frantar et al., 2023, arXiv 2210.17323)
takes each layer's from the layers before it already rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import torch
from transformers import PreTrainedModel

from dflash_compile.export.checkpoints.checkpoint import TargetCheckpoint
from dflash_compile.export.checkpoints.torch_model import load_model
from dflash_compile.runtime.errors import BuildError

from ..calibration_text import Calibration
from ..progress import Progress, no_progress

_BUDGET = 2 << 30
"""bytes of Hessians kept at once; those of larger targets are taken some layers at a time, each time with a pass over
the text"""
_DAMPING = 0.01
"""share of their mean added to the squares: directions that the text hardly has must not be free"""


class Hessians:
    """Factors of the inverse Hessians, by checkpoint tensor. The model is read when the first is asked for."""

    def __init__(
        self,
        target: TargetCheckpoint,
        calibration: Calibration,
        budget: int = _BUDGET,
        progress: Progress = no_progress,
    ) -> None:
        self._target, self._calibration, self._budget, self._progress = target, calibration, budget, progress
        self._loaded: tuple[PreTrainedModel, list[torch.Tensor]] | None = None
        self._readers: dict[str, str] = {}
        """the first module that reads what this one reads, by module, in the order they are run"""
        self._factors: dict[str, torch.Tensor] = {}

    def factor(self, tensor: str) -> torch.Tensor | None:
        """U [K, K], upper triangular, float32, with U^T U = (X^T X + damping)^-1 of the rows X [·, K] that `tensor` [N,
        K] is multiplied with.

        None where no linear layer is called so, or the first text does not reach it. Raises `BuildError` where X is not
        finite.
        """
        model, texts = self.load()
        source = self._readers.get(tensor.removesuffix(".weight"))
        if source is None:
            return None
        if source not in self._factors:
            self._factors = {}  # before others take their place
            found = _hessians(model, self._next(model, source), _counted(texts, self._progress))
            self._factors = {name: _factor(name, found.pop(name)) for name in list(found)}
        return self._factors[source]

    def load(self) -> tuple[PreTrainedModel, list[torch.Tensor]]:
        """The model in float32, and the texts [1, S]: made now if they were not."""
        if self._loaded is None:
            texts = [torch.tensor(ids)[None] for ids in self._calibration.sequences(self._target)]
            self._loaded = load_model(self._target, torch.float32), texts
            self._readers = _readers(self._loaded[0], texts[0])
        return self._loaded

    def release(self) -> None:
        """Give the memory back; asked again, it starts anew."""
        self._loaded, self._readers, self._factors = None, {}, {}

    def _next(self, model: PreTrainedModel, source: str) -> list[str]:
        """`source` and the modules after it whose Hessians the budget holds."""
        modules, distinct = _linears(model), list(dict.fromkeys(self._readers.values()))
        chosen: list[str] = []
        bytes_ = 0
        for name in distinct[distinct.index(source) :]:
            bytes_ += 4 * modules[name].in_features ** 2
            if chosen and bytes_ > self._budget:
                break
            chosen.append(name)
        return chosen


def _linears(model: PreTrainedModel) -> dict[str, torch.nn.Linear]:
    """Linear layers by name, the output head left out: it keeps eight bits."""
    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    }


def _readers(model: PreTrainedModel, ids: torch.Tensor) -> dict[str, str]:
    """The first linear layer that reads the same rows as each, in the order they run: Q, K and V have one input."""
    found: dict[str, str] = {}
    latest: list[tuple[torch.Tensor, str]] = []

    def note(name: str, rows: torch.Tensor) -> None:
        if not latest or latest[0][0] is not rows:
            latest[:] = [(rows, name)]
        found[name] = latest[0][1]

    _run(model, list(_linears(model)), note, [ids], last=None)
    return found


def _counted(texts: Sequence[torch.Tensor], progress: Progress) -> Iterator[torch.Tensor]:
    for number, ids in enumerate(texts):
        progress("reading calibration texts", number, len(texts))
        yield ids


def _hessians(model: PreTrainedModel, names: Sequence[str], texts: Iterable[torch.Tensor]) -> dict[str, torch.Tensor]:
    """X^T X [K, K] of each module of `names`, in float32."""
    sums: dict[str, torch.Tensor] = {}

    def add(name: str, rows: torch.Tensor) -> None:
        flat = rows.reshape(-1, rows.shape[-1])
        sums.setdefault(name, torch.zeros(flat.shape[1], flat.shape[1])).addmm_(flat.T, flat)

    _run(model, names, add, texts, last=names[-1])
    return sums


Listener = Callable[[str, torch.Tensor], None]
"""told of every linear layer that is about to run, and of the rows it reads"""


class _Enough(Exception):
    """Nobody listens to what comes now."""


@torch.inference_mode()
def _run(
    model: PreTrainedModel, names: Sequence[str], hear: Listener, texts: Iterable[torch.Tensor], last: str | None
) -> None:
    """Run `model` over `texts` [1, S], as far as the layer `last` if it is given, while somebody listens to those
    called `names`.
    """
    modules = _linears(model)
    hooks = [modules[name].register_forward_pre_hook(partial(_heard, hear, name, name == last)) for name in names]
    try:
        for ids in texts:
            with suppress(_Enough):
                model.base_model(input_ids=ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()


def _heard(hear: Listener, name: str, last: bool, _module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    hear(name, inputs[0])
    if last:
        raise _Enough


def _factor(module: str, hessian: torch.Tensor) -> torch.Tensor:
    """The upper Cholesky factor of the damped inverse, computed in float64.

    Raises `BuildError` where what `module` reads is not finite.
    """
    if not bool(hessian.isfinite().all()):
        raise BuildError(
            f"{module} is given numbers that are not finite",
            where="target checkpoint, calibration",
            why="weights before it are damaged, or make too large numbers of these texts",
            fix="copy or download the weights again, or build without --calibrate",
        )
    wide = hessian.double()
    damping = float(_DAMPING * wide.diagonal().mean()) + torch.finfo(torch.float32).tiny
    lower, failed = torch.linalg.cholesky_ex(_damped(wide, damping))
    while failed:  # the sums are rounded: of inputs that all but go together, more than was added
        damping *= 10
        lower, failed = torch.linalg.cholesky_ex(_damped(wide, damping))
    factor: torch.Tensor = torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True)
    return factor.float()


def _damped(hessian: torch.Tensor, damping: float) -> torch.Tensor:
    return hessian + damping * torch.eye(len(hessian), dtype=hessian.dtype)
