"""Engines of one attention layer, compiled for real: what comes out, and what is left when nothing does."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import onnx
import onnx.parser
import pytest

from dflash_compile.compile.tensorrt import builder as plans
from dflash_compile.compile.tensorrt.architectures import ARCHITECTURES
from dflash_compile.compile.tensorrt.builder import Request, build_plan
from dflash_compile.compile.tensorrt.commit_kernel import write_commit_kernel
from dflash_compile.compile.tensorrt.engine_info import inspect_plan
from dflash_compile.compile.tensorrt.loop_kernel import write_loop_kernels
from dflash_compile.runtime.bundle.files import sha256
from dflash_compile.runtime.bundle.manifest import PlanRecord
from dflash_compile.runtime.errors import BuildError

CACHES = (("kc", "ko"), ("vc", "vo"))
PORTS = (
    "float16[1,4,8,64] q, float16[1,2,8,64] k, float16[1,2,8,64] v, float16[1,2,256,64] kc, float16[1,2,256,64] vc,"
    " int32[1] position, int32[1] total"
)
UPDATES = "ko = trt.TRT_KVCacheUpdate (kc, k, position) vo = trt.TRT_KVCacheUpdate (vc, v, position)"
# Q is computed, as it is in a model: an input of the network could not be one of its outputs too.
QUERY = "two = Add (q, q)"
GOOD = f'{UPDATES} {QUERY} out = trt.TRT_Attention <causal_kind: string = "lower_right"> (two, ko, vo, , , total)'


@pytest.fixture
def request_for(tmp_path: Path) -> Callable[..., Request]:
    def make(
        body: str = GOOD, arch: str = "SM89", ports: str = PORTS, out: str = "float16[1,4,8,64]", **changes: object
    ) -> Request:
        text = (
            f'<ir_version: 11, opset_import: ["" : 24, "trt" : 1, "com.microsoft" : 1]> g ({ports}) => ({out} out,'
            " float16[1,2,256,64] ko, "
        )
        text += f"float16[1,2,256,64] vo) {{ {body} }}"
        onnx.save(onnx.parser.parse_model(text), tmp_path / "graph.onnx")
        request = Request(
            "tensorrt_rtx",
            str(tmp_path / "graph.onnx"),
            str(tmp_path / "engine.plan"),
            arch,
            CACHES,
            1,
            mark_queries=True,
        )
        return replace(request, **changes)  # type: ignore[arg-type]

    return make


def inspected(request: Request) -> PlanRecord:
    return inspect_plan(Path(request.plan), (1, 2, 256, 64))


def test_a_plan_has_fused_attention_and_copies_no_cache(request_for: Callable[..., Request]) -> None:
    request, heard = request_for(), []
    built = build_plan(request, lambda phase, done, total: heard.append((phase, done, total)))
    record = inspected(request)
    assert (record.fused_attention, record.cache_copies, record.capturable) == (1, 0, True)
    assert record.bytes == Path(request.plan).stat().st_size
    assert record.kernels
    assert record.scratch_bytes
    assert (built.queries, built.seconds > 0, built.peak_bytes is not None and built.peak_bytes > 2**20) == (
        ("query_0",),
        True,
        True,
    )
    assert all(0 <= done <= total for _, done, total in heard)
    assert heard


def test_several_widths_are_programs_of_one_plan(request_for: Callable[..., Request]) -> None:
    """Each with everything fixed as if it were alone; what they cost is a program each, not weights."""
    build_plan(request := request_for())
    alone = inspected(request)
    free = PORTS.replace("4,8,64", "4,rows,64").replace("2,8,64", "2,rows,64")
    profiles = tuple({"q": (1, 4, rows, 64), "k": (1, 2, rows, 64), "v": (1, 2, rows, 64)} for rows in (8, 4))
    build_plan(request := request_for(ports=free, out="float16[1,4,rows,64]", profiles=profiles))
    wide, narrow, beyond = (inspect_plan(Path(request.plan), (1, 2, 256, 64), number) for number in range(3))
    for found in (wide, narrow):
        assert contents(found) == contents(alone)
    assert wide.bytes == narrow.bytes < 2.2 * alone.bytes
    assert beyond == PlanRecord(bytes=wide.bytes), "there is no third"


def contents(record: PlanRecord) -> tuple[object, ...]:
    return record.kernels, record.fused_attention, record.cache_copies, record.capturable


def test_without_its_query_as_an_output_grouped_attention_copies(request_for: Callable[..., Request]) -> None:
    """What marking the query is for; should TensorRT stop needing it, this test says so."""
    request = request_for(mark_queries=False)
    build_plan(request)
    assert inspected(request).cache_copies == 2


def test_equal_inputs_give_equal_plans(request_for: Callable[..., Request], tmp_path: Path) -> None:
    request = request_for(arch="SM120")
    again = replace(request, plan=str(tmp_path / "again.plan"))
    build_plan(request)
    build_plan(again)
    assert sha256(Path(request.plan)) == sha256(Path(again.plan))


BAD = {
    "has neither lengths nor a mask": (
        f'{UPDATES} {QUERY} out = trt.TRT_Attention <causal_kind: string = "lower_right"> (two, ko, vo)'
    ),
    "is causal from the upper left corner": (
        f'{UPDATES} {QUERY} out = trt.TRT_Attention <causal_kind: string = "upper_left"> (two, ko, vo, , , total)'
    ),
    "0 layers attend, not 1": f"{UPDATES} {QUERY} out = Identity (two)",
    "caches are updated as": (
        f"ko = trt.TRT_KVCacheUpdate (kc, k, position) vo = Identity (vc) {QUERY} "
        'out = trt.TRT_Attention <causal_kind: string = "lower_right"> (two, ko, vo, , , total)'
    ),
    "Nonsense": f"{UPDATES} {QUERY} out = Nonsense (two)",
}


@pytest.mark.parametrize("says", BAD)
def test_a_network_that_is_not_the_graph_is_no_engine(says: str, request_for: Callable[..., Request]) -> None:
    request = request_for(BAD[says])
    with pytest.raises(BuildError) as failure:
        build_plan(request)
    assert says in failure.value.why
    assert not Path(request.plan).exists()


def test_a_parser_that_dies_is_an_error_like_any_other(request_for: Callable[..., Request]) -> None:
    request = request_for(
        f"{UPDATES} out = com.microsoft.GroupQueryAttention <num_heads: int = 4, kv_num_heads: int = 2> (q, k, v)"
    )
    with pytest.raises(BuildError):
        build_plan(request)
    assert not Path(request.plan).exists()


class Cancelled(Exception):
    pass


def test_cancelling_ends_the_worker_and_leaves_nothing(
    request_for: Callable[..., Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[str]] = []
    real = subprocess.Popen

    def popen(*args: object, **options: object) -> subprocess.Popen[str]:
        started.append(real(*args, **options))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    request = request_for()

    def impatient(*_: object) -> None:
        assert started[0].poll() is None
        raise Cancelled

    with pytest.raises(Cancelled):
        build_plan(request, impatient)
    assert started[0].poll() is not None
    assert not Path(request.plan).exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a plan",
        b"header {\n  version = 6\nmain {\n label x:\n  new_kind={ }\0",
        np.random.default_rng(0).bytes(100_000),
    ],
)
def test_an_unknown_format_tells_its_size_and_no_more(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "engine.plan"
    file.write_bytes(content or b"\0")
    assert inspect_plan(file, (1, 2, 256, 64)) == PlanRecord(bytes=max(len(content), 1))


@pytest.mark.parametrize("write", [write_commit_kernel, write_loop_kernels])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_kernels_of_a_cycle_are_compiled_for_every_architecture(
    arch: str, write: Callable[[str, Path], None], tmp_path: Path
) -> None:
    files = [tmp_path / "one.cubin", tmp_path / "two.cubin"]
    for file in files:
        write(arch, file)
    assert (b"cudaGraphSetConditional" in files[0].read_bytes()) == (write is write_loop_kernels), (
        "an older driver must be able to load the other one"
    )
    assert files[0].read_bytes().startswith(b"\x7fELF")
    assert files[0].read_bytes() == files[1].read_bytes(), "equal inputs give equal bytes"


@pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="this system does not show the environment of a process"
)
@pytest.mark.parametrize("own", [None, "4096"])
def test_the_compiling_process_gives_memory_back_unless_it_is_told_otherwise(
    own: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    if own is not None:
        monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", own)
    with (tmp_path / "complaints").open("w+") as complaints, plans._start(complaints) as process:
        shown, until = Path(f"/proc/{process.pid}/environ"), monotonic() + 30
        while (
            not (environment := shown.read_bytes()) and monotonic() < until
        ):  # empty while the new program is being loaded
            sleep(0.01)
        process.kill()
    assert f"MALLOC_MMAP_THRESHOLD_={own or 131072}".encode() in environment.split(b"\0")


def test_architectures_are_named_as_the_library_names_them() -> None:
    import tensorrt_rtx as trt

    assert all(hasattr(trt.ComputeCapability, architecture.enumerator) for architecture in ARCHITECTURES.values())
