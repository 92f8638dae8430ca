"""What GroupQueryAttention takes of a step by rows and position, in SmolLM2-135M's shape, and what two other forms of
it would.

    python benchmarks/attention.py [--positions 128,2048,8000] [--rows 1,2,4,6,64] [--threads 1] [--rounds 9] [--json]

"As built" is what a bundle's layers do. Ten layers of attention alone, each with K and V of its own, so that they have
to be read as in a model; milliseconds for 30 layers, medians, forms by turns. "heads as rows" lets the three query
heads of a K/V head be rows of one head, under a mask, so that K and V are read once for all of them: it sees as many
rows of the cache, writes three times as many new ones, and what its rotation and padding would take is not in it. "int8
cache" is ONNX Runtime's own, with a scale a channel. All take random numbers: only time is measured.
`ORT_GQA_DISABLE_FLASH_ATTENTION=1` in the environment takes the kernel that writes all scores out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64
LAYERS, MODEL_LAYERS = 10, 30
FORMS = ("as built", "heads as rows", "int8 cache")
FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32


def shape(form: str, rows: int) -> tuple[int, int, bool, int]:
    """Query heads, rows, whether there is a mask, and the element type of the cache."""
    folded = form == "heads as rows"
    return (
        KV_HEADS if folded else HEADS,
        rows * HEADS // KV_HEADS if folded else rows,
        folded,
        TensorProto.INT8 if form == "int8 cache" else FLOAT,
    )


def graph(form: str, rows: int, room: int) -> bytes:
    """The layers, one beside the other, over caches of `room` rows."""
    heads, rows, masked, cache = shape(form, rows)
    ports = {"q": (FLOAT, [1, rows, heads * HEAD_DIM]), "last": (INT32, [1]), "total": (INT32, [])}
    ports |= {name: (FLOAT, [1, rows, KV_HEADS * HEAD_DIM]) for name in ("k", "v")}
    ports |= {"mask": (FLOAT, [1, 1, rows, "total rows"])} if masked else {}
    more = [*[""] * 5, "scale", "scale"] if cache != FLOAT else ["", "", "", "mask"] if masked else []
    kinds = (
        {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}
        if cache != FLOAT
        else {}
    )
    weights = (
        [numpy_helper.from_array(np.full((KV_HEADS, 1, HEAD_DIM), 0.03, np.float32), "scale")] if cache != FLOAT else []
    )
    nodes, outputs = [], {}
    for layer in range(LAYERS):
        names = [f"{name}{layer}" for name in ("k_cache_", "v_cache_")]
        ports |= {name: (cache, [1, KV_HEADS, room, HEAD_DIM]) for name in names}
        given = {f"out_{layer}": (FLOAT, [1, rows, heads * HEAD_DIM]), **{f"{name}_out": ports[name] for name in names}}
        inputs = ["q", "k", "v", *names, "last", "total", *more]
        nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                inputs,
                list(given),
                domain="com.microsoft",
                num_heads=heads,
                kv_num_heads=KV_HEADS,
                do_rotary=0,
                **kinds,
            )
        )
        outputs |= given
    infos = [
        [helper.make_tensor_value_info(name, kind, size) for name, (kind, size) in side.items()]
        for side in (ports, outputs)
    ]
    versions = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(
        helper.make_graph(nodes, "attention", *infos, weights), opset_imports=versions, ir_version=10
    )
    serialised: bytes = model.SerializeToString()
    return serialised


def call(form: str, rows: int, position: int, threads: int) -> Callable[[], Any]:
    """A function of nothing that attends with `rows` rows at `position`."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(
        graph(form, rows, position + rows), options, providers=["CPUExecutionProvider"]
    )
    noise, binding = np.random.default_rng(0), session.io_binding()
    total = position + rows  # as many for every form: the first of the heads that became rows lie before `position`
    exact = {"last": np.array([total - 1], np.int32), "total": np.array(total, np.int32)}
    values = {}
    for port in session.get_inputs():
        size = [total if isinstance(it, str) else it for it in port.shape]
        if port.name in exact:
            array: Any = exact[port.name]
        elif port.type == "tensor(int8)":
            array = noise.integers(-127, 128, size, np.int8)
        else:
            array = np.zeros(size, np.float32) if port.name == "mask" else noise.standard_normal(size, np.float32)
        values[port.name] = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        binding.bind_ortvalue_input(port.name, values[port.name])
    for port in session.get_outputs():
        cache = values.get(port.name.removesuffix("_out"))
        if cache is None:
            cache = values[port.name] = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(port.shape, np.float32))
        binding.bind_ortvalue_output(port.name, cache)
    return lambda: session.run_with_iobinding(binding)


def measure(rows: int, position: int, threads: int, rounds: int) -> dict[str, float]:
    """Milliseconds of 30 layers by form."""
    calls, seconds = (
        {form: call(form, rows, position, threads) for form in FORMS},
        {form: list[float]() for form in FORMS},
    )
    for turn in range(rounds + 1):
        for form, run in calls.items():
            start = time.perf_counter()
            run()
            if turn:
                seconds[form].append(time.perf_counter() - start)
    return {form: 1000 * median(taken) * MODEL_LAYERS / LAYERS for form, taken in seconds.items()}


def _numbers(text: str) -> list[int]:
    numbers = [int(it) for it in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError("numbers from 1, with commas between them")
    return numbers


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--positions",
        type=_numbers,
        default="128,2048,8000",
        help="rows in the cache before the call (default: %(default)s)",
    )
    parser.add_argument("--rows", type=_numbers, default="1,2,4,6,64", help="of the call (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of ONNX Runtime (default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=9, help="calls of each form that are timed (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="one document instead of lines")
    given = parser.parse_args(words)
    positions, widths, table = given.positions, given.rows, []
    if min(positions) < 2 * max(widths):
        parser.error("the least position is twice the rows, for the heads that become rows")
    if min(given.threads, given.rounds) < 1:
        parser.error("at least one thread and one round")
    if not given.json:
        print("milliseconds of 30 layers:")
    for position in positions:
        for rows in widths:
            table.append({"position": position, "rows": rows, **measure(rows, position, given.threads, given.rounds)})
            if not given.json:
                print(
                    "  ".join(
                        f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}"
                        for name, value in table[-1].items()
                    ),
                    flush=True,
                )
    if given.json:
        print(
            json.dumps(
                {
                    "onnxruntime": onnxruntime.__version__,
                    "onnx": onnx.__version__,
                    "threads": given.threads,
                    "rows": table,
                }
            )
        )


if __name__ == "__main__":
    main()
