"""One engine in a process of its own: the parser may end it, its memory is counted alone, and ending it leaves nothing
behind.

`python -m dflash_compile.compile.tensorrt.worker` reads one request as JSON on standard input and answers with JSON
lines on standard output: `{"phase", "done", "total"}` while it works, and at last `{"result": …}` or `{"fault": …}`.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from .mapped import parse, releasing_pages
from .network import faults, mark_queries

_ASK, _NOT_RANDOM = 0xFFFFFFFF, 0x0040000
"""of Linux' personality: what it is, and the bit ADDR_NO_RANDOMIZE"""
_NO_DRIVER = "cudaError 35"
"""said by every build on a machine without a GPU, and harmless"""


class Fault(Exception):
    """Why there is no engine."""


def build(trt: Any, request: dict[str, Any], channel: TextIO) -> dict[str, Any]:
    """The plan that `request` asks for; see `plans.Request`. Raises `Fault`."""
    logger, messages = _logger(trt)
    try:
        builder = trt.Builder(logger)
    except Exception as fault:  # what it says of a missing driver went to the logger
        raise Fault("; ".join(messages) or str(fault)) from fault
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    parsed, mapped = parse(parser, Path(request["onnx"]), request["weights"])
    if not parsed:
        raise Fault(
            "; ".join(
                f"{error.node_name()} ({error.node_operator()}): {error.desc()}"
                for error in map(parser.get_error, range(parser.num_errors))
            )
        )
    if found := list(faults(trt, network, request["caches"], request["attentions"])):
        raise Fault("; ".join(found))
    queries = mark_queries(trt, network) if request["mark_queries"] else []
    config, monitor = _config(trt, builder, request["arch"]), _monitor(trt, channel)
    config.progress_monitor = monitor
    _add_profiles(builder, config, request["profiles"])
    started = time.perf_counter()
    with releasing_pages(mapped), Path(request["plan"]).open("wb") as file:
        if not builder.build_serialized_network_to_stream(network, config, _writer(trt, file)):
            raise Fault("; ".join(messages) or "the builder gave no reason")
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "peak_bytes": _peak_bytes(), "queries": queries}


def _config(trt: Any, builder: Any, arch: str) -> Any:
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)  # float32 is there where ten bits are too few
    if hasattr(trt.BuilderFlag, "REQUIRE_USER_ALLOCATION"):  # an engine that allocates while it runs cannot be captured
        config.set_flag(trt.BuilderFlag.REQUIRE_USER_ALLOCATION)
    if hasattr(trt, "ComputeCapability"):
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, arch), 0)
    elif _own_arch() != arch:
        raise Fault(f"this TensorRT compiles for the GPU it runs on, which is {_own_arch()}, not {arch}")
    return config


def _add_profiles(builder: Any, config: Any, profiles: list[dict[str, list[int]]]) -> None:
    """A program for each, every size of it fixed; they share the weights, which are in the plan once."""
    for shapes in profiles:
        profile = builder.create_optimization_profile()
        for name, shape in shapes.items():
            profile.set_shape(name, shape, shape, shape)
        config.add_optimization_profile(profile)


def _fix_addresses() -> None:
    """Start again at addresses that are always the same, where the system lets a process choose: some tables of a plan
    are in the order of addresses, so that equal graphs gave plans that differed in it.
    """
    if not sys.platform.startswith("linux"):
        return
    personality = ctypes.CDLL(None).personality
    now = personality(_ASK)
    if now >= 0 and not now & _NOT_RANDOM and personality(now | _NOT_RANDOM) >= 0 and personality(_ASK) & _NOT_RANDOM:
        os.execv(sys.executable, sys.orig_argv)


def _peak_bytes() -> int | None:
    """Most memory this process has had resident.

    Not from getrusage: its figure begins with that of the process that started this one.
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def _own_arch() -> str:
    device = import_module("cuda.core").Device()
    return "SM{}{}".format(*device.compute_capability)


def _logger(trt: Any) -> tuple[Any, list[str]]:
    messages: list[str] = []

    class Listener(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR) and _NO_DRIVER not in message:
                messages.append(message)

    return Listener(), messages


def _monitor(trt: Any, channel: TextIO) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.phases: dict[str, int] = {}

        def phase_start(self, phase: str, parent: str | None, steps: int) -> None:
            if parent is None:  # those inside start and end too often to mean anything
                self.phases[phase] = steps
                self._say(phase, 0)

        def step_complete(self, phase: str, step: int) -> bool:
            return self._say(phase, step + 1)

        def phase_finish(self, phase: str) -> None:
            self._say(phase, self.phases.get(phase, 0))

        def _say(self, phase: str, done: int) -> bool:
            if phase not in self.phases:
                return True
            try:
                _answer(channel, {"phase": phase, "done": done, "total": self.phases[phase]})
            except OSError:  # nobody listens any more: stop
                return False
            return True

    return Monitor()


def _writer(trt: Any, file: Any) -> Any:
    class Writer(trt.IStreamWriter):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IStreamWriter.__init__(self)

        def write(self, data: Any) -> int:
            written: int = file.write(data)
            return written

    return Writer()


def _answer(channel: TextIO, document: dict[str, Any]) -> None:
    channel.write(json.dumps(document) + "\n")
    channel.flush()


def main() -> None:
    """Serve one request."""
    _fix_addresses()
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints must not get between the answers
    request = json.load(sys.stdin)
    try:
        _answer(channel, {"result": build(import_module(request["module"]), request, channel)})
    except Fault as fault:
        _answer(channel, {"fault": str(fault)})
    except OSError as fault:
        _answer(channel, {"fault": str(fault), "errno": fault.errno})


if __name__ == "__main__":
    main()
