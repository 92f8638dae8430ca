"""A drafter written down once more, as plainly as can be: whole context at once, no cache, one mask drawn by hand.

What other readings are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional as F

Sees = Callable[[int, int, int], bool]
"""whether the row at one position sees the column at another, given the anchor's position"""


@dataclass(frozen=True)
class PlainDrafter:
    """Tensors by the names of the z-lab layout, and everything about them that decides what is proposed."""

    tensors: Mapping[str, torch.Tensor]
    embedding: torch.Tensor
    head: torch.Tensor
    mask_id: int
    sees: tuple[Sees, ...]
    """of every layer"""
    proposals: int
    head_dim: int = 16
    theta: float = 1e4
    eps: float = 1e-6
    from_anchor: bool = False
    """the anchor's row proposes as well"""
    ids: tuple[int, ...] | None = None
    """tokens that the rows of the head stand for, where they are not all"""
    scale: float = 1.0
    multiplier: float = 1.0
    cap: float | None = None
    candidates: int = 0
    """of each row, among which a selector chooses; 0 for none"""

    def propose(self, taps: torch.Tensor, anchor: int) -> list[int]:
        """Tokens after `anchor`, which follows a context of `taps` [P, n * H]."""
        context = self._norm("hidden_norm", taps @ self.tensors["fc.weight"].T)
        rows = [anchor] + [self.mask_id] * (self.proposals - self.from_anchor)
        x = self.embedding[rows] * self.scale
        for layer, sees in enumerate(self.sees):
            name = f"layers.{layer}"
            h = self._norm(f"{name}.input_layernorm", x)
            x = x + self._around(
                f"{name}.attention_conv",
                h,
                lambda h, name=name, sees=sees: self._attend(f"{name}.self_attn", context, h, sees),
            )
            h = self._norm(f"{name}.post_attention_layernorm", x)
            x = x + self._around(f"{name}.mlp_conv", h, lambda h, name=name: self._mlp(f"{name}.mlp", h))
        hidden = self._norm("norm", x)[0 if self.from_anchor else 1 :]
        logits = hidden @ self.head.T * self.multiplier
        logits = logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap
        chosen = self._walk(logits, hidden, anchor) if self.candidates else logits.argmax(-1).tolist()
        return chosen if self.ids is None else [self.ids[row] for row in chosen]

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.tensors[f"{name}.weight"]

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ self.tensors[f"{name}.weight"].T

    def _attend(self, name: str, context: torch.Tensor, block: torch.Tensor, sees: Sees) -> torch.Tensor:
        past, everything = len(context), torch.cat([context, block])

        def heads(part: str, x: torch.Tensor) -> torch.Tensor:
            return self._linear(f"{name}.{part}_proj", x).view(len(x), -1, self.head_dim)

        q = self._rotate(self._norm(f"{name}.q_norm", heads("q", block)), past)
        k, v = self._rotate(self._norm(f"{name}.k_norm", heads("k", everything)), 0), heads("v", everything)
        mask = torch.tensor(
            [[sees(row, column, past) for column in range(len(everything))] for row in range(past, len(everything))]
        )
        out = []
        for head in range(q.shape[1]):
            shared = head * k.shape[1] // q.shape[1]
            scores = (q[:, head] @ k[:, shared].T * self.head_dim**-0.5).masked_fill(~mask, -torch.inf)
            out.append(scores.softmax(-1) @ v[:, shared])
        return self._linear(f"{name}.o_proj", torch.cat(out, -1))

    def _rotate(self, x: torch.Tensor, start: int) -> torch.Tensor:
        half = self.head_dim // 2
        angles = torch.arange(start, start + len(x))[:, None, None] * self.theta ** (-torch.arange(half) / half)
        first, second = x[..., :half], x[..., half:]
        return torch.cat(
            [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1
        )

    def _mlp(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return self._linear(
            f"{name}.down_proj", F.silu(self._linear(f"{name}.gate_proj", x)) * self._linear(f"{name}.up_proj", x)
        )

    def _around(self, name: str, x: torch.Tensor, half: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """`half` of a layer between its two convolutions, where it has them (DFlash2)."""
        base = self.tensors.get(f"{name}.base_kernel")
        if base is None:
            return half(x)
        made = self._linear(f"{name}.kernel_projection", x).view(len(x), 2, base.shape[1], -1)
        kernels = base + made.repeat_interleave(x.shape[1] // made.shape[-1], -1)

        def convolve(x: torch.Tensor, side: int) -> torch.Tensor:
            return torch.stack(
                [
                    sum(kernels[t, side, tap] * x[t - tap] for tap in range(min(base.shape[1], t + 1)))
                    for t in range(len(x))
                ]
            )

        return convolve(half(convolve(x, 0)), 1)

    def _walk(self, logits: torch.Tensor, hidden: torch.Tensor, anchor: int) -> list[int]:
        """DFlash2's selector: each row's likeliest tokens, by logit and by fit to the token chosen before."""
        path = [anchor]
        for row, state in zip(logits, hidden, strict=True):
            best, tokens = row.topk(self.candidates)
            fit = (
                self._linear("candidate_selector.hidden_projection", state)
                * self.tensors["candidate_selector.successor_codebook"][tokens]
            )
            path.append(
                int(tokens[(best + fit @ self.tensors["candidate_selector.predecessor_codebook"][path[-1]]).argmax()])
            )
        return path[1:]
