"""An opened checkpoint: a spec, lazily read tensors, and the text side (tokenizer, chat template)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

    from ..dflash.vocabulary import DraftVocabulary
    from ..spec import DrafterSpec, TargetSpec


class TensorSource(Protocol):
    """Tensors by name, read from disk only when asked. Names are transformers' parameter names."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's name and shape, without reading data."""
        ...

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows `start:stop` of the first axis of `name`, in the stored float dtype (float32 where the file is
        quantised).

        Raises `CheckpointError` for an unknown name or a file that ends early.
        """
        ...


@dataclass(frozen=True)
class TextSource:
    """Everything needed to turn messages into token ids and back."""

    tokenizer_json: bytes
    """a Hugging Face `tokenizers` file"""
    chat_template: str | None
    bos_token: str | None = None
    eos_token: str | None = None
    tokens: Mapping[str, str] = field(default_factory=dict)
    """other special tokens, by the names that chat templates know them by: `pad_token`, a model's own"""
    tool_template: str | None = None
    """the chat template for chats with tools, where it is one of its own"""
    generation: Mapping[str, object] = field(default_factory=dict)
    """the checkpoint's generation defaults, as found"""


@dataclass(frozen=True)
class TargetCheckpoint:
    """A target language model on disk."""

    spec: TargetSpec
    config: PreTrainedConfig
    tensors: TensorSource
    text: TextSource
    path: Path
    files: Mapping[str, str]
    """sha256 of every file the build reads, by file name"""

    def read(self, name: str) -> Any:
        """The whole tensor `name` (torch)."""
        return self.tensors.rows(name, 0, self.tensors.shapes()[name][0])


@dataclass(frozen=True)
class DrafterCheckpoint:
    """A DFlash drafter on disk."""

    spec: DrafterSpec
    tensors: TensorSource
    path: Path
    files: Mapping[str, str]
    text_hash: str | None = None
    """`text.vocabulary_hash` of the tokenizer it was trained with, where the checkpoint records one"""
    template_hash: str | None = None
    """`text.template_hash` of the chat template it was trained with, where the checkpoint records one"""
    thinking: bool | None = None
    """whether its training prompts asked for thinking, where the checkpoint records it"""
    vocabulary: DraftVocabulary | None = None
    """the tokens it can propose, where they are not all of the target's; `spec.draft_vocab` of them"""

    def read(self, name: str) -> Any:
        """The whole tensor `name` (torch)."""
        return self.tensors.rows(name, 0, self.tensors.shapes()[name][0])
