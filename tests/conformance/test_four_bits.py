"""At four bits rows are multiplied two by two: what even blocks rest on."""

from __future__ import annotations

from pathlib import Path

import models
import numpy as np
import pytest
from forms import Cached, bound, ort_call

from dflash_compile.export import open_target
from dflash_compile.export.tracing.trace import trace_target


@pytest.mark.parametrize(("precision", "widths"), [("int4", (4, 6, 8, 10, 16)), ("int8", (3, 5, 7, 8, 16))])
def test_rows_are_the_same_bits_at_every_width_that_blocks_have(
    precision: str, widths: tuple[int, ...], tmp_path: Path
) -> None:
    """With a width of 5 at four bits this fails, wherever the kernel is one of pairs."""
    target = open_target(models.write_target(tmp_path / "target"))
    graph = trace_target(target, (2, 0), 64)
    call = ort_call(bound(graph, precision, {"target": target.tensors}, tmp_path))
    tokens = np.random.default_rng(3).integers(4, models.VOCAB - 4, 48).tolist()
    answers = {}
    for width in (2, *widths):
        engine = Cached(graph.signature, call)
        answers[width] = np.concatenate(
            [engine.verify(tokens[start : start + width], start)[0] for start in range(0, 49 - width, width)]
        )
    assert {width for width, found in answers.items() if (found != answers[2][: len(found)]).any()} == set()
