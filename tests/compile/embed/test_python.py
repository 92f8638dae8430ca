"""Source code for apps: the Python form answers as the runtime does. `test_swift.py` has the Swift form."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from apple import BLOCK, CONTEXT, Compiled, Library

from dflash_compile.cli.main import main
from dflash_compile.compile.embed import write
from dflash_compile.compile.embed.source import source_of
from dflash_compile.compile.embed.write import MARK, embed
from dflash_compile.runtime import load
from dflash_compile.runtime.backends.apple.host_cache import HostCache
from dflash_compile.runtime.bundle.manifest import GraphRecord, PortRecord
from dflash_compile.runtime.bundle.read import read_manifest
from dflash_compile.runtime.errors import UsageError

PROMPTS = [[5], [7, 8, 9, 200, 17], list(range(10, 80))]
TOKENS = 24
ROOT = Path(__file__).parents[3]

Bundle = Callable[..., Path]


@pytest.fixture(scope="module")
def coreml(apple_bundle: Bundle) -> Path:
    return apple_bundle("llama", "coreml", "fp16")


@pytest.fixture(scope="module")
def coreai(apple_bundle: Bundle) -> Path:
    return apple_bundle("llama", "coreai", "fp32")


@pytest.fixture(scope="module")
def hosted(apple_bundle: Bundle) -> Path:
    """The pair of `coreml` with caches that the host keeps."""
    return apple_bundle("llama", "coreml", "fp16", "ane-io")


@pytest.fixture(scope="module")
def cut(apple_bundle: Bundle) -> Path:
    """A deeper pair, its target in three packages and its drafter in two."""
    return apple_bundle("deep-llama", "coreml", "fp16", "ane-io", "160000")


@pytest.fixture(scope="module", params=["coreml", "hosted", "cut"])
def either(request: pytest.FixtureRequest) -> Path:
    """A Core ML bundle of each cache policy, and one that is cut into several packages."""
    found: Path = request.getfixturevalue(request.param)
    return found


def module(folder: Path) -> ModuleType:
    """The generated file, imported."""
    spec = importlib.util.spec_from_file_location("dflash_generate", folder / "dflash_generate.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["dflash_generate"] = made  # dataclasses look their module up
    spec.loader.exec_module(made)
    return made


def answer(generator: Any, prompt: list[int], limit: int) -> list[int]:
    tokens: list[int] = []
    assert generator.generate(prompt, limit, tokens.append) == len(tokens)
    return tokens


def test_the_python_form_answers_as_the_runtime_does(coreai: Path, tmp_path: Path) -> None:
    """On Core AI's own runtime: the same tokens from the same number of cycles, with and without the drafter."""
    embed(coreai, "python", tmp_path / "app")
    generator = module(tmp_path / "app").load(coreai)
    with load(coreai) as session:
        for prompt in PROMPTS:
            wanted = list(session.tokens(prompt, max_new_tokens=TOKENS, block=BLOCK))
            generator.drafting = True
            assert answer(generator, prompt, TOKENS) == wanted
            assert generator.cycles == session.statistics.cycles
            generator.drafting = False
            assert answer(generator, prompt, TOKENS) == wanted
            assert generator.cycles == len(wanted) - 1
        generator.drafting = True
        assert answer(generator, PROMPTS[2], 1000) == list(
            session.tokens(PROMPTS[2], block=BLOCK)
        )  # to the context's end


def test_the_python_form_is_a_program(coreai: Path, tmp_path: Path) -> None:
    embed(coreai, "python", tmp_path / "app")
    script = [sys.executable, str(tmp_path / "app" / "dflash_generate.py")]
    run = subprocess.run([*script, str(coreai), "12", "7", "8", "9"], capture_output=True, text=True, check=True)
    with load(coreai) as session:
        wanted = list(session.tokens([7, 8, 9], max_new_tokens=12, block=BLOCK))
    assert [int(line) for line in run.stdout.split()] == wanted
    assert f"{len(wanted)} tokens" in run.stderr
    assert subprocess.run([*script, str(coreai), "x"], capture_output=True, check=False).returncode == 2


def test_the_python_form_runs_core_ml_packages(either: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Core ML played by the evaluator of saved packages: whole prompts of several chunks, and blocks of which all, some
    or none is accepted.
    """
    embed(either, "python", tmp_path / "app")
    made, library = module(tmp_path / "app"), Library()
    monkeypatch.setattr(made, "coremltools", library)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr("dflash_compile.runtime.backends.coreml.backend._import_library", lambda: Library())
    monkeypatch.setenv("DFLASH_COMPILE_CACHE", str(tmp_path / "compiled"))
    generator = made.load(either)
    with load(either) as session:
        for prompt in (PROMPTS[2], PROMPTS[1]):
            wanted = list(session.tokens(prompt, max_new_tokens=12, block=BLOCK))
            assert answer(generator, prompt, 12) == wanted
            assert generator.cycles == session.statistics.cycles
    made.load(either)
    packages = {
        graph.file for model in (read_manifest(either).target, read_manifest(either).drafter) for graph in model.graphs
    }
    assert len(library.compiled) == len(packages)  # kept, and found again

    def scripted(graph: Any, numbers: dict[str, list[int]]) -> Any:
        """The answer itself, but for every third token."""
        known = [*PROMPTS[1], *wanted, *[0] * BLOCK]
        start = numbers["position"][0] + 1
        rows = [
            known[place] if place % 3 else (known[place] + 1) % 90 for place in range(start, start + graph.rows - 1)
        ]
        return made.Answer({"proposals": np.array([rows])})

    monkeypatch.setattr(generator.drafter, "call", scripted)
    assert answer(generator, PROMPTS[1], 12) == wanted
    assert 4 <= generator.cycles < len(wanted) - 1, "some blocks must be accepted in part"


def test_the_cache_that_an_app_keeps_is_the_one_that_the_runtime_keeps(hosted: Path, tmp_path: Path) -> None:
    """Blocks of several widths, accepted in part or not at all, calls without rows and new requests: equal after each,
    bit for bit.
    """
    embed(hosted, "python", tmp_path / "app")
    random, sizes, latest = np.random.default_rng(5), [4, 2, 32, 3], {}
    port = PortRecord(name="cache", dtype="float16", shape=sizes)
    record: Any = SimpleNamespace(
        name="tiny", graphs=[GraphRecord(role="verify", file="f", rows=4, inputs=[port], outputs=[], caches=[])]
    )
    theirs = HostCache(record, SimpleNamespace(call=lambda *_: dict(latest)))  # type: ignore[arg-type]
    made = module(tmp_path / "app")
    memory, position = made.Memory(sizes), 0
    ours = made.HostCache(sizes, memory)
    for number in range(200):
        ours.commit(position)
        rows = int(random.choice([1, 2, 4, 8]))
        latest = {} if number % 5 == 0 else {"rows": random.standard_normal((4, 2, rows, 3)).astype(np.float16)}
        theirs.call("verify", {"position": np.array([position], np.int32)})
        assert np.array_equal(memory.array, theirs.cache)
        if latest:
            ours.hold(latest["rows"].flatten(), rows, position)
        # Behind a call without rows, too: what was held before it is gone for good.
        position += int(random.integers(0, rows + 1))
        position = position if position <= 24 else int(random.integers(0, 3))
    assert memory.array.any()


def test_no_call_is_given_a_copy_of_the_cache(hosted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All functions of a model read one array, in the memory that was there from the first call on; what they are given
    is made once for each.
    """
    embed(hosted, "python", tmp_path / "app")
    made = module(tmp_path / "app")
    calls: dict[str, list[tuple[int, int, bool]]] = {}

    class Watched(Compiled):
        def predict(self, feeds: Mapping[str, Any], state: dict[str, Any] | None = None) -> dict[str, Any]:
            cache = feeds["cache"]
            owner = "drafter" if "drafter" in self.path else "target"
            calls.setdefault(f"{owner}/{self.function}", []).append((id(feeds), cache.ctypes.data, bool(cache.any())))
            return super().predict(feeds, state)

        def __init__(self, path: str, **how: Any) -> None:
            super().__init__(path, **how)
            self.path = Path(path).name

    library = Library()
    library.models.CompiledMLModel = Watched
    monkeypatch.setattr(made, "coremltools", library)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    generator = made.load(hosted)
    assert len(answer(generator, PROMPTS[2], 12)) == 12
    assert len(calls) >= 4
    for owner in ("target", "drafter"):
        seen = {name: found for name, found in calls.items() if name.startswith(owner)}
        assert len({place for found in seen.values() for _, place, _ in found}) == 1, "one array, never moved"
        assert all(len({given for given, _, _ in found}) == 1 for found in seen.values()), "made once for a function"
        assert any(written for found in seen.values() for *_, written in found), "rows that were committed are in it"


def test_code_for_one_cache_policy_refuses_bundles_of_the_other(coreml: Path, hosted: Path, tmp_path: Path) -> None:
    for number, (right, wrong) in enumerate([(coreml, hosted), (hosted, coreml)]):
        embed(right, "python", tmp_path / str(number))
        made = module(tmp_path / str(number))
        assert made.Manifest(right).context == CONTEXT
        with pytest.raises(ValueError, match="cache policy"):
            made.Manifest(wrong)


@pytest.mark.parametrize(
    ("backend", "policy"), [("coreml", "gpu-state"), ("coreml", "ane-io"), ("coreai", "gpu-state")]
)
def test_generated_python_is_clean(backend: str, policy: str, tmp_path: Path) -> None:
    manifest = SimpleNamespace(
        requires=SimpleNamespace(backend=backend),
        target=SimpleNamespace(name="t"),
        context=9,
        pairing=SimpleNamespace(block=4),
        config={"cache_policy": policy},
    )
    for name, text in source_of(manifest, "python").items():  # type: ignore[arg-type]
        (tmp_path / name).write_text(text)
    # Templates cannot break lines by the length of what is put in: theirs may be longer than ours.
    config = ["--config", str(ROOT / "pyproject.toml"), "--line-length", "160", "--no-cache"]
    for command in (["check", *config], ["format", "--check", *config]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout


def choice(history: list[int]) -> int:
    """A made-up target: its next token depends on every token before it."""
    value = 7
    for token in history:
        value = (value * 31 + token) % 97
    return value


class FakeModel:
    """Target or drafter with a cache of tokens in place of K and V; a row that nobody wrote, or that was rejected,
    shows as a wrong token.
    """

    def __init__(self, made: ModuleType, right: Callable[[int], bool]) -> None:
        self.made, self.right, self.cache = made, right, [-1] * 200
        self.widths: list[int] = []

    def call(self, graph: Any, numbers: dict[str, list[int]]) -> Any:
        (position,) = numbers["position"]
        rows = numbers.get("tokens") or numbers["block"]
        assert len(rows) == graph.rows
        self.widths.append(graph.rows)
        if "block" in numbers:
            known = [*self.cache[:position], rows[0]]
            assert -1 not in known, "the draft cache has a hole"
            proposals = []
            for slot in range(graph.rows - 1):
                true = choice([*known, *proposals])
                proposals.append(true if self.right(position + 1 + slot) else (true + 1) % 97)
            self.cache[position : position + graph.rows] = [-2] * graph.rows
            return self.made.Answer({"proposals": np.array([proposals])})
        assert -1 not in self.cache[:position]
        self.cache[position : position + len(rows)] = rows
        choices = [choice(self.cache[: position + row + 1]) for row in range(len(rows))]
        if "valid" in numbers:
            choices = [choices[numbers["valid"][0] - 1]]
        return self.made.Answer(
            {
                "choices": np.array([choices]),
                "taps": np.array([[[position + row, token] for row, token in enumerate(rows)]]),
            }
        )

    def inject(self, graph: Any, taps: Any, rows: int, position: int) -> None:
        shown = taps.first(rows, [1, graph.rows, 2])[0]
        assert shown[:rows, 0].tolist() == list(range(position, position + rows)), (
            "taps of other rows than those committed"
        )
        self.cache[position : position + rows] = shown[:rows, 1].tolist()


@pytest.fixture(scope="module")
def made(coreai: Path, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = tmp_path_factory.mktemp("embedded")
    embed(coreai, "python", folder / "app")
    return module(folder / "app")


@pytest.mark.parametrize("wrong_every", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("prompt", [1, 64, 65, 90])
def test_the_loop_keeps_what_the_target_chooses_however_good_the_drafter_is(
    coreai: Path, made: ModuleType, wrong_every: int, prompt: int
) -> None:
    manifest = made.Manifest(coreai)
    drafter = FakeModel(made, lambda position: position % wrong_every != 0)
    generator = made.Generator(manifest, FakeModel(made, bool), drafter)
    history = [number % 90 for number in range(prompt)]
    found = answer(generator, history, 25)
    wanted: list[int] = []
    while len(wanted) < min(25, CONTEXT - prompt + 1) and not (wanted and wanted[-1] in manifest.text.ends):
        wanted.append(choice([*history, *wanted]))
    assert found == wanted
    if wrong_every == 1000 and len(wanted) > 20:
        assert generator.cycles <= -(-(len(wanted) - 1) // BLOCK) + 1, (
            "a drafter that is always right must give a block a cycle"
        )


@pytest.mark.parametrize(("prompt", "limit"), [([], 5), ([1], 0), ([1] * (CONTEXT + 1), 5), ([-1], 5), ([10**6], 5)])
def test_a_request_that_cannot_be_answered_is_an_error(
    coreai: Path, made: ModuleType, prompt: list[int], limit: int
) -> None:
    generator = made.Generator(made.Manifest(coreai), FakeModel(made, bool), FakeModel(made, bool))
    with pytest.raises(ValueError, match="prompt"):
        generator.generate(prompt, limit, print)


@pytest.mark.parametrize("language", ["swift", "python"])
def test_a_cache_policy_without_such_code_is_refused(coreml: Path, language: str) -> None:
    from msgspec.structs import replace

    manifest = read_manifest(coreml)
    with pytest.raises(UsageError, match="cache policy elsewhere") as caught:
        source_of(replace(manifest, config=manifest.config | {"cache_policy": "elsewhere"}), language)
    assert "--cache-policy gpu-state" in str(caught.value)


def test_the_command(coreml: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "deep" / "app"
    command = ["embed", str(coreml), "--lang", "swift", "-o", str(place)]
    assert main([*command, "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert sorted([*document["files"], MARK]) == sorted(
        path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()
    )
    assert main(command) == 2
    assert "--force" in capfd.readouterr().err
    assert main([*command, "--force", "-q"]) == 0
    assert capfd.readouterr().err == ""
    (place / ".build").mkdir()
    (place / ".build" / "made").write_text("by the compiler")
    assert main([*command, "--force"]) == 0


@pytest.mark.parametrize("file", ["Package.swift", "Sources/DFlash/Mine.swift", MARK])
def test_work_of_the_users_own_is_never_replaced(coreml: Path, tmp_path: Path, file: str) -> None:
    embed(coreml, "swift", tmp_path / "app")
    (tmp_path / "app" / file).write_text("mine")
    with pytest.raises(UsageError):
        embed(coreml, "swift", tmp_path / "app", force=True)
    assert (tmp_path / "app" / file).read_text() == "mine"


def test_a_folder_that_embed_did_not_write_stays(coreml: Path, tmp_path: Path) -> None:
    (tmp_path / "Package.swift").write_text("// somebody's package")
    with pytest.raises(UsageError, match="is no source folder"):
        embed(coreml, "swift", tmp_path, force=True)


def test_nothing_is_left_half_written(coreml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "Mark", full)
    with pytest.raises(Exception, match="could not be written"):
        embed(coreml, "swift", tmp_path / "app")
    assert list(tmp_path.iterdir()) == []


def test_bundles_without_such_code_are_refused(coreai: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", str(coreai), "--lang", "swift", "-o", str(tmp_path / "app")]) == 2
    assert "--lang python" in capfd.readouterr().err
    damaged = shutil.copytree(coreai, tmp_path / "damaged")
    (damaged / "target" / "target.aimodel" / "metadata.json").write_text("{}")
    assert main(["embed", str(damaged), "--lang", "python", "-o", str(tmp_path / "app")]) != 0
    other = read_manifest(coreai)
    with pytest.raises(UsageError, match="back-end onnxruntime"):
        source_of(
            SimpleNamespace(
                requires=SimpleNamespace(backend="onnxruntime"),
                **{name: getattr(other, name) for name in ("target", "context", "pairing", "config")},
            ),
            "python",
        )  # type: ignore[arg-type]
    assert not (tmp_path / "app").exists()
