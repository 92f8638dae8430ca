"""OpenVINO GenAI, which reads GGUF files itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from peer import Setup
from peer.conversion import gguf_form


class OpenVinoGenai:
    """Variants are GGUF types, which it turns into weights of 4 or 8 bits of its own."""

    VARIANTS: ClassVar = ("Q4_1", "Q8_0")
    INSTALL: ClassVar = "pip install openvino-genai, and llama-cpp-python for another form than the file's own"

    def __init__(self, setup: Setup) -> None:
        import openvino
        import openvino_genai

        self._tensor, self._library = openvino.Tensor, openvino_genai
        self.version = openvino_genai.__version__
        self.weights = setup.variant
        file = gguf_form(setup.model, setup.work, setup.variant)
        self._pipeline = openvino_genai.LLMPipeline(str(file), "CPU", INFERENCE_NUM_THREADS=setup.threads)

    def generate(self, prompt: Sequence[int], new_tokens: int, on_token: Callable[[int], None]) -> Mapping[str, float]:
        ids = np.array([prompt], np.int64)
        inputs = self._library.TokenizedInputs(self._tensor(ids), self._tensor(np.ones_like(ids)))
        config = self._library.GenerationConfig(max_new_tokens=new_tokens, ignore_eos=True, do_sample=False)
        self._pipeline.generate(inputs, config, _streamer(self._library, on_token))
        return {}


def _streamer(library: Any, on_token: Callable[[int], None]) -> Any:
    """Hands out ids, which its own streamers turn into text first."""

    class Streamer(library.StreamerBase):  # type: ignore[misc]
        def write(self, tokens: int | list[int]) -> Any:
            for token in [tokens] if isinstance(tokens, int) else tokens:
                on_token(token)
            return library.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    return Streamer()


PEER = OpenVinoGenai
