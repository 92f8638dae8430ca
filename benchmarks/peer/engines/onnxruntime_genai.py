"""onnxruntime-genai, on a model that its own builder makes from a transformers directory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from peer import Setup
from peer.conversion import made_once, transformers_folder


class OnnxRuntimeGenai:
    """Variants are precisions of its builder, at its own size of block or at larger ones."""

    VARIANTS: ClassVar = ("int4", "int4-128", "int8")
    INSTALL: ClassVar = "pip install onnxruntime-genai onnxruntime onnx onnx-ir torch transformers gguf"

    def __init__(self, setup: Setup) -> None:
        import onnxruntime
        import onnxruntime_genai

        self._library: Any = onnxruntime_genai
        self.version = f"{onnxruntime_genai.__version__}, onnxruntime {onnxruntime.__version__}"
        self.weights = f"{setup.variant}: what its builder makes of it" + (
            ", in blocks of 128" if "-" in setup.variant else ""
        )
        checkpoint = transformers_folder(setup.model, setup.work)
        folder = made_once(
            setup.work / f"onnxruntime-genai-{onnxruntime_genai.__version__}-{setup.variant}",
            lambda path: _build(checkpoint, path, setup),
        )
        config = onnxruntime_genai.Config(str(folder))
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": setup.threads}}}}))
        self._model = onnxruntime_genai.Model(config)

    def generate(self, prompt: Sequence[int], new_tokens: int, on_token: Callable[[int], None]) -> Mapping[str, float]:
        options = self._library.GeneratorParams(self._model)
        length = len(prompt) + new_tokens
        options.set_search_options(do_sample=False, min_length=length, max_length=length)
        generator = self._library.Generator(self._model, options)
        generator.append_tokens(list(prompt))
        for _ in range(new_tokens):
            generator.generate_next_token()
            on_token(int(generator.get_next_tokens()[0]))
        return {}


def _build(checkpoint: Path, folder: Path, setup: Setup) -> None:
    cache = setup.work / "onnxruntime-genai-cache"
    precision, _, block = setup.variant.partition("-")
    command = [
        sys.executable,
        "-m",
        "onnxruntime_genai.models.builder",
        "-i",
        checkpoint,
        "-o",
        folder,
        "-p",
        precision,
        "-e",
        "cpu",
        "-c",
        cache,
    ]
    command += ["--extra_options", f"int4_block_size={block}"] if block else []
    subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr)


PEER = OnnxRuntimeGenai
