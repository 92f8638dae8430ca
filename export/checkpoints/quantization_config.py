"""`quantization_config` of the compressed-tensors layout, in the one form that is read and written here.

int8 weights, symmetric, one scale per output channel, as llm-compressor's scheme W8A8 writes them. Keys and their
meaning are those of PyPI `compressed-tensors` 0.20.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dflash_compile.runtime.errors import CheckpointError

from .files import section

KEY = "quantization_config"
FORMATS = ("int-quantized", "naive-quantized")
_WEIGHTS: Mapping[str, object] = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
_MEANINGLESS: tuple[object, ...] = (None, {}, [])
_CHANGES = ("kv_cache_scheme", "sparsity_config", "transform_config")
"""keys under which something else than the weights is changed"""


def check_quantization(config: Mapping[str, Any], where: str) -> None:
    """Raise `CheckpointError` unless `config`, the value of `quantization_config`, describes int8 weights as this
    module says.

    Activations quantised on the fly pass: they leave nothing in the checkpoint, and how products are computed is the
    engine's business.
    """
    if config.get("quant_method") != "compressed-tensors" or config.get("format") not in FORMATS:
        raise _fault(
            f"weights quantised by {config.get('quant_method')!r} in the format {config.get('format')!r} are not read",
            where,
            f"of quantised checkpoints only compressed-tensors in the format {' or '.join(FORMATS)} is read",
        )
    for key in _CHANGES:
        if config.get(key) not in _MEANINGLESS and section(config.get(key)).get("format") != "dense":
            raise _fault(f"{key} is not supported", f"{where}.{key}", "ignoring it would change the numbers")
    groups = section(config.get("config_groups"))
    if not groups:
        raise _fault(
            "config_groups names no scheme", f"{where}.config_groups", "how the weights were quantised would be a guess"
        )
    for name, group in groups.items():
        _check_group(section(group), f"{where}.config_groups.{name}")


def _check_group(group: Mapping[str, Any], where: str) -> None:
    weights = section(group.get("weights"))
    wrong = [
        f"{key} = {weights.get(key)!r}, not {value!r}" for key, value in _WEIGHTS.items() if weights.get(key) != value
    ]
    if wrong:
        raise _fault("the weights are quantised in a way that is not read", f"{where}.weights", "; ".join(wrong))
    for key in ("input_activations", "output_activations"):
        scheme = section(group.get(key))
        if scheme and scheme.get("dynamic") is not True:
            raise _fault(
                f"{key} with fixed scales are not supported",
                f"{where}.{key}",
                "they hold for one runtime's kernels only",
            )


def int8_channels(ignored: Sequence[str]) -> dict[str, Any]:
    """The value of `quantization_config` for int8 weights; `ignored` are the linear modules left as they were."""
    weights = {**_WEIGHTS, "dynamic": False}
    activations = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    return {
        "quant_method": "compressed-tensors",
        "format": FORMATS[0],
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": activations}},
        "ignore": list(ignored),
    }


def _fault(what: str, where: str, why: str) -> CheckpointError:
    return CheckpointError(
        what,
        where=where,
        why=why,
        fix="use the unquantised checkpoint, or make an int8 one of it with `dflash-compile quantize`",
    )
