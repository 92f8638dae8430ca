"""llama.cpp through llama-cpp-python's low-level calls: one `llama_decode` a token, numpy's argmax over its logits in
place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from peer import Setup
from peer.conversion import gguf_form


class LlamaCpp:
    """Variants are GGUF types."""

    VARIANTS: ClassVar = ("Q4_0", "Q4_1", "Q8_0")
    INSTALL: ClassVar = "pip install --no-binary llama-cpp-python llama-cpp-python (compiles it for this processor)"

    def __init__(self, setup: Setup) -> None:
        import llama_cpp

        self._library: Any = llama_cpp
        self.version = llama_cpp.__version__
        self._silence = llama_cpp.llama_log_callback(lambda *_: None)  # it would be freed, and called, without a name
        llama_cpp.llama_log_set(self._silence, None)
        llama_cpp.llama_backend_init()
        file = gguf_form(setup.model, setup.work, setup.variant)
        self.weights = setup.variant + (
            f", quantised again from {setup.model.name}" if file != setup.model else ", as it is"
        )
        self._model = llama_cpp.llama_model_load_from_file(str(file).encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {file}")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = options.n_batch = setup.context
        options.n_threads = options.n_threads_batch = setup.threads
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))

    def generate(self, prompt: Sequence[int], new_tokens: int, on_token: Callable[[int], None]) -> Mapping[str, float]:
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), False)
        rows: Sequence[int] = prompt
        for _ in range(new_tokens):
            token = self._next(rows)
            on_token(token)
            rows = (token,)
        return {}

    def _next(self, rows: Sequence[int]) -> int:
        library = self._library
        memory = (library.llama_token * len(rows))(*rows)
        if code := library.llama_decode(self._context, library.llama_batch_get_one(memory, len(rows))):
            raise RuntimeError(f"llama_decode gave {code}")
        return int(
            np.ctypeslib.as_array(library.llama_get_logits_ith(self._context, -1), shape=(self._vocab,)).argmax()
        )


PEER = LlamaCpp
