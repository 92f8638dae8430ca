"""Device and float type are chosen by what the hardware has, and can be forced."""

from __future__ import annotations

import pytest
import torch

from dflash_compile.train.compute import choose_compute

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("capabilities", "dtype"),
    [
        ({"avx2": True, "avx512_f": True, "avx512_bf16": False, "amx_bf16": False}, torch.float32),
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True}, torch.bfloat16),
        ({"architecture": "aarch64", "bf16": True}, torch.bfloat16),
        ({"architecture": "aarch64", "bf16": False}, torch.float32),
        ({}, torch.float32),
    ],
    ids=str,
)
def test_bfloat16_only_where_the_cpu_has_it(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], dtype: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert choose_compute("auto", CPU).dtype == dtype
    assert choose_compute("bfloat16", CPU).dtype == torch.bfloat16
    assert choose_compute("float32", CPU).dtype == torch.float32


@pytest.mark.parametrize(
    ("there", "hardware", "device", "dtype"),
    [(False, True, "cpu", None), (True, True, "cuda", torch.bfloat16), (True, False, "cuda", torch.float32)],
)
def test_cuda_is_taken_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, there: bool, hardware: bool, device: str, dtype: torch.dtype | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or hardware
    )
    compute = choose_compute()
    assert compute.device.type == device
    assert dtype is None or compute.dtype == dtype


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_products_have_the_chosen_type(precision: str) -> None:
    compute = choose_compute(precision, CPU)
    with compute.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == compute.dtype
