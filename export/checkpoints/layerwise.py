"""The target as a transformers model that holds the weights of one decoder layer at a time: a model of any size runs in
the memory of its largest layer and of what its texts have become.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..families import family_of
from ..parameter_names import EMBEDDING, HEAD
from .checkpoint import TargetCheckpoint
from .skeleton import built_without_memory
from .torch_model import restore_buffers

_CHUNK = 64 << 20
"""bytes, in float32, of the embedding table that are read at once"""


@dataclass(frozen=True)
class _Call:
    """With what a layer is called, beside the state."""

    args: tuple[Any, ...]
    named: dict[str, Any]


class LayerwiseModel:
    """Decoder layers of transformers in the order they run, and what each text is when it reaches the next of them.

    Masks and rotary tables are those that the model itself makes, once for each text.
    """

    def __init__(self, checkpoint: TargetCheckpoint, texts: Sequence[Sequence[int]]) -> None:
        """`texts` are token ids. Reads the embedding table, and keeps the rows of theirs in float32."""
        # As in `load_model`: a model changes the configuration that it is made of.
        self._checkpoint, config = checkpoint, copy.deepcopy(checkpoint.config)
        family = family_of(checkpoint.spec.family)
        self._model = built_without_memory(family, config, str(checkpoint.path)).eval().requires_grad_(False)
        self._constants = family.constants(config)
        self._layers: list[nn.Module] = list(self._model.model.layers)
        self._calls: list[list[_Call]] = []
        """of each text, those of the layers"""
        self.states = self._embedded(texts)
        """[1, S, H] each, float32: what the next layer is given"""
        self.done = 0
        """layers that all texts have gone through"""

    @property
    def names(self) -> list[str]:
        """The layers' modules, in order."""
        return [f"model.layers.{number}" for number in range(len(self._layers))]

    @contextmanager
    def next(self) -> Iterator[tuple[nn.Module, Iterator[None]]]:
        """The next layer, whose weights are there in float32 until the block ends, and an iterator that takes one text
        through it at every step, which the block exhausts.
        """
        layer = self._layers[self.done]
        self._load(layer, f"{self.names[self.done]}.")
        try:
            yield layer, self._through(layer)
        finally:
            layer.to("meta")
        self.done += 1

    @torch.inference_mode()
    def _through(self, layer: nn.Module) -> Iterator[None]:
        for number, calls in enumerate(self._calls):
            call = calls[self.done]
            self.states[number] = layer(self.states[number], *call.args, **call.named)
            yield

    def _load(self, module: nn.Module, prefix: str) -> None:
        """Give `module` the tensors of the checkpoint that begin with `prefix`, in float32."""
        stored = self._checkpoint.tensors.shapes()
        wanted = {name: f"{prefix}{name}" for name in module.state_dict()}
        weights = {
            name: self._checkpoint.read(tensor).float()
            for name, tensor in wanted.items()
            if tensor in stored and tensor not in (EMBEDDING, HEAD)
        }
        module.load_state_dict(weights, assign=True, strict=False)
        restore_buffers(module, self._constants, "cpu")

    @torch.inference_mode()
    def _embedded(self, texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """What the first layer is given; notes with what else all layers are called."""
        decoder, states = self._model.model, []
        recorders = [_Recorder() for _ in self._layers]
        decoder.layers = nn.ModuleList(recorders)
        self._load(self._model, "")
        ids = torch.tensor(sorted({token for text in texts for token in text}))
        self._embed_only(ids)
        for text in texts:
            decoder(input_ids=torch.searchsorted(ids, torch.tensor(text)[None]), use_cache=False)
            self._calls.append([recorder.call for recorder in recorders])
            states.append(recorders[0].state)
        self._model = None
        return states

    def _embed_only(self, ids: torch.Tensor) -> None:
        """Make the embedding table one of the sorted `ids` alone: token n is `ids[n]`."""
        embedding = self._model.get_input_embeddings()
        embedding.weight = nn.Parameter(self._rows(ids), requires_grad=False)
        embedding.padding_idx = None  # means something to training only, and may not be among the rows

    def _rows(self, ids: torch.Tensor) -> torch.Tensor:
        """These rows of the embedding table [·, H], in float32. `ids` are sorted."""
        count, width = self._checkpoint.tensors.shapes()[EMBEDDING]
        step, found = max(1, _CHUNK // (4 * width)), []
        for start in range(0, count, step):
            here = ids[(ids >= start) & (ids < start + step)] - start
            if len(here):
                found.append(self._checkpoint.tensors.rows(EMBEDDING, start, min(start + step, count))[here].float())
        return torch.cat(found)


class _Recorder(nn.Module):
    """Stands for a layer: notes what it is called with and hands the state on."""

    call: _Call
    state: torch.Tensor

    def forward(self, state: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
        self.state, self.call = state, _Call(args, named)
        return state
