"""Where a training run computes, and in which float type: decided once, here."""

from __future__ import annotations

from dataclasses import dataclass

import torch

CPU_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")
"""what torch calls a CPU's own bfloat16 products, on x86 and Arm"""
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class Compute:
    """A device and the float type of products on it. Weights that are trained stay float32 in both."""

    device: torch.device
    dtype: torch.dtype

    def autocast(self) -> torch.autocast:
        """A context in which products are taken in `dtype`."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16)


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether `device` has bfloat16 products in hardware: without them torch emulates, slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        capabilities = torch.cpu.get_capabilities()
        return any(capabilities.get(flag) for flag in CPU_FLAGS)
    return False


def choose_compute(precision: str = "auto", device: torch.device | None = None) -> Compute:
    """CUDA where there is one, else the CPU, unless a `device` is given.

    `precision` is "bfloat16", "float32", or "auto": bfloat16 where the device has it in hardware.
    """
    if device is None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if precision == "auto":
        precision = "bfloat16" if multiplies_bfloat16(device) else "float32"
    return Compute(device, DTYPES[precision])
