"""transformers' own `generate`, not compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from peer import Setup
from peer.conversion import transformers_folder


class Transformers:
    """Variants are torch dtypes."""

    VARIANTS: ClassVar = ("bfloat16", "float32")
    INSTALL: ClassVar = "pip install torch transformers gguf"

    def __init__(self, setup: Setup) -> None:
        import torch
        import transformers

        self._torch: Any = torch
        self.version = f"{transformers.__version__}, torch {torch.__version__}"
        self.weights = setup.variant
        torch.set_num_threads(setup.threads)
        folder = transformers_folder(setup.model, setup.work)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, setup.variant)
        ).eval()

    def generate(self, prompt: Sequence[int], new_tokens: int, on_token: Callable[[int], None]) -> Mapping[str, float]:
        ids = self._torch.tensor([list(prompt)])
        self._model.generate(
            ids,
            attention_mask=self._torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
            streamer=_Streamer(on_token),
        )
        return {}


class _Streamer:
    """What `generate` tells of its tokens: the prompt first."""

    def __init__(self, on_token: Callable[[int], None]) -> None:
        self._on_token, self._prompt = on_token, True

    def put(self, value: Any) -> None:
        if not self._prompt:
            for token in value.flatten().tolist():
                self._on_token(token)
        self._prompt = False

    def end(self) -> None:
        pass


PEER = Transformers
