"""What DFlash2 adds to the draft module: dynamic convolutions around each half of a layer, and a selector that chooses
among candidates.

Both stay inside the draft graph. Parameter names equal the checkpoint's tensor names.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ..spec import Convolution, DrafterSpec, Selector
from .v1 import Attend, DflashV1, DraftLayer

# No candidate. Finite, so that a check of an engine's numbers still finds those that are not.
UNCHOSEN = float(torch.finfo(torch.float32).min)


class DynamicConvolution(nn.Module):
    """A depthwise causal convolution inside the block, whose taps are a base kernel and an addition for each group of
    columns, made of the input.

    Side 0 is applied to what enters a half of a layer, side 1 to what leaves it; both additions are made of what
    enters.
    """

    def __init__(self, hidden: int, shape: Convolution) -> None:
        super().__init__()
        self.taps, self.group = shape.kernel, shape.group
        self.base_kernel = nn.Parameter(torch.empty(2, shape.kernel, hidden))
        self.kernel_projection = nn.Linear(hidden, 2 * shape.kernel * (hidden // shape.group), bias=False)

    def additions(self, x: torch.Tensor) -> torch.Tensor:
        """Of x [N, B, H]: [N, B, 2, K, H], the same for every column of a group."""
        made: torch.Tensor = self.kernel_projection(x)[..., None]  # four axes: no more than five have a form in Core ML
        return made.expand(*made.shape[:-1], self.group).reshape(*x.shape[:2], 2, self.taps, x.shape[-1])

    def convolve(self, x: torch.Tensor, additions: torch.Tensor, side: int) -> torch.Tensor:
        """x [N, B, H] by the taps of `side`; row t sees rows t, t - 1, … of the block, and nothing before its first."""
        kernel = self.base_kernel[side] + additions[:, :, side]
        rows = x.shape[1]
        padded = F.pad(x, (0, 0, self.taps - 1, 0))
        shifted = [padded[:, self.taps - 1 - tap : self.taps - 1 - tap + rows] for tap in range(self.taps)]
        return sum((kernel[:, :, tap] * value for tap, value in enumerate(shifted)), torch.zeros_like(x))


class ConvolvedLayer(DraftLayer):
    """A draft layer with a convolution around its attention and one around its MLP."""

    def __init__(self, spec: DrafterSpec, layer: int) -> None:
        super().__init__(spec, layer)
        assert spec.convolution is not None
        self.attention_conv = DynamicConvolution(spec.hidden, spec.convolution)
        self.mlp_conv = DynamicConvolution(spec.hidden, spec.convolution)

    def forward(self, x: torch.Tensor, attend: Attend) -> torch.Tensor:
        inner = self.input_layernorm(x)
        kernel = self.attention_conv.additions(inner)
        inner = self.self_attn(self.attention_conv.convolve(inner, kernel, 0), attend)
        x = x + self.attention_conv.convolve(inner, kernel, 1)
        inner = self.post_attention_layernorm(x)
        kernel = self.mlp_conv.additions(inner)
        return x + self.mlp_conv.convolve(self.mlp(self.mlp_conv.convolve(inner, kernel, 0)), kernel, 1)


class CandidateSelector(nn.Module):
    """Walks the block from the anchor, choosing among each row's likeliest tokens by logit and by fit to the token
    before.
    """

    def __init__(self, vocab: int, hidden: int, shape: Selector, steps: int) -> None:
        """`steps` is the most proposals there can be: the walk is unrolled to it."""
        super().__init__()
        self.top_k, self.steps = shape.top_k, steps
        self.predecessor_codebook = nn.Parameter(torch.empty(vocab, shape.rank))
        self.successor_codebook = nn.Parameter(torch.empty(vocab, shape.rank))
        self.hidden_projection = nn.Linear(hidden, shape.rank, bias=False)

    def forward(self, logits: torch.Tensor, hidden: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        """logits [1, P, V], hidden [1, P, H], anchor [1, 1]: scores [1, P, V] of the walk, `UNCHOSEN` for what is no
        candidate.
        """
        best, candidates = logits.topk(self.top_k, dim=-1)
        fit = self.hidden_projection(hidden)[:, :, None] * F.embedding(candidates, self.successor_codebook)
        # By all the steps, not those missing: the number of rows then has no upper limit to a tracer.
        padded = (
            F.pad(fit, (0, 0, 0, 0, 0, self.steps)),
            F.pad(best, (0, 0, 0, self.steps)),
            F.pad(candidates, (0, 0, 0, self.steps)),
        )
        before, rows = anchor[:, 0].long(), []
        for step in range(self.steps):
            fits, unary, tokens = (value[:, step] for value in padded)
            scores = unary + (fits @ F.embedding(before, self.predecessor_codebook)[:, :, None])[..., 0]
            rows.append(scores)
            before = tokens.gather(-1, scores.argmax(-1, keepdim=True))[:, 0]
        walked = F.pad(torch.stack(rows, dim=1), (0, 0, 0, logits.shape[1]))[:, : logits.shape[1]]
        return torch.full_like(logits, UNCHOSEN).scatter(-1, candidates, walked)


class DflashV2(DflashV1):
    """DFlash2: `DflashV1` with convolutions in its layers, and scores that follow one path through the candidates."""

    def __init__(self, spec: DrafterSpec, taps_width: int, vocab: int) -> None:
        """`vocab` is the target's."""
        super().__init__(spec, taps_width)
        assert spec.selector is not None
        self.layers = nn.ModuleList(ConvolvedLayer(spec, layer) for layer in range(spec.layers))
        self.candidate_selector = CandidateSelector(vocab, spec.hidden, spec.selector, spec.block - 1)

    def scores(self, logits: torch.Tensor, hidden: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        """As in `DflashV1`, then along the selector's path: the largest of each row is what it proposes."""
        return self.candidate_selector(super().scores(logits, hidden, anchor), hidden, anchor)  # type: ignore[no-any-return]


def draft_module(spec: DrafterSpec, taps_width: int, vocab: int) -> DflashV1:
    """The draft module of `spec`, for a target of `vocab` tokens."""
    return DflashV1(spec, taps_width) if spec.selector is None else DflashV2(spec, taps_width, vocab)
