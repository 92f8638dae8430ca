"""Every way a command can end: its exit code, what people read and what programs read."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

PROGRAM = f"{sys.executable} -c 'from dflash_compile.cli.main import entry; entry()'"
KEYS = {"schema", "error", "what", "where", "why", "fix", "exit_code"}
ENDINGS = {
    "raise errors.UsageError('w')": 2,
    "raise errors.CheckpointError('w')": 4,
    "raise errors.PairingError('w')": 3,
    "raise errors.BuildError('w')": 4,
    "raise errors.BundleError('w')": 1,
    "raise errors.IncompatibleError('w')": 3,
    "raise errors.LengthError('w')": 2,
    "raise ZeroDivisionError('w')": 4,
    "raise RuntimeError": 4,
    "raise MemoryError": 4,
    "raise OSError(28, 'No space left on device', 'some/file')": 4,
    "raise FileNotFoundError(2, 'No such file or directory', 'some/file')": 2,
    "raise PermissionError(13, 'Permission denied', 'some/file')": 2,
    "raise OSError(36, 'File name too long', 'some/file')": 2,
    "raise OSError(17, 'File exists', 'some/file')": 2,
    "raise TimeoutError('w')": 4,
    "import torch.no_such_module": 3,
    "raise ModuleNotFoundError('No module named onnxruntime', name='onnxruntime')": 3,
    "raise ImportError('libsomething.so: cannot open', name='onnxruntime')": 3,
    "raise KeyboardInterrupt": 130,
    "raise EOFError": 4,
    "return Report({}, code=errors.ExitCode.CHECK_FAILED)": 1,
    "return Report({})": 0,
}


def shell(command: str, around: str = "") -> subprocess.CompletedProcess[str]:
    """`command` in bash; `around` is a redirection of all of it, or an assignment before it."""
    whole = f"{around} {command}" if "=" in around else f"{{ {command}; }} {around}"
    return subprocess.run(["bash", "-c", whole], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("statement", "code"), ENDINGS.items())
def test_exit_code_of_every_ending(cli, failing, statement, code):
    failing(statement)
    assert cli("fail").code == code
    result = cli("fail", "--json")
    assert result.code == code
    if "raise" in statement or "import" in statement:
        assert set(result.document) == KEYS
        assert result.document["exit_code"] == code
        assert result.document["schema"] == "dflash-compile.error/1"
        assert result.document["what"]


def test_people_read_what_where_why_and_fix(cli, failing):
    failing("raise errors.BundleError('the thing broke', where='a/file', why='it matters', fix='do this')")
    result = cli("fail")
    assert result.out == ""
    assert result.err.splitlines() == [
        "error: the thing broke",
        "  where: a/file",
        "  why: it matters",
        "  fix: do this",
    ]


@pytest.mark.parametrize(
    ("statement", "fix"),
    [
        ("raise ModuleNotFoundError('x', name='torch.fx')", "pip install 'dflash-compile[build]'"),
        ("raise ModuleNotFoundError('x', name='onnxruntime')", "pip install 'dflash-compile[cpu]'"),
        ("raise OSError(28, 'No space left on device', 'some/file')", "free space"),
        ("raise ValueError('x')", "--debug"),
        ("raise RuntimeError('DefaultCPUAllocator: can\\'t allocate memory: you tried')", "free memory"),
    ],
)
def test_the_fix_fits_the_fault(cli, failing, statement, fix):
    failing(statement)
    assert fix in cli("fail").err


def test_traceback_only_under_debug(cli, failing):
    failing("raise ValueError('deep')")
    assert "Traceback" not in cli("fail").err
    debug = cli("fail", "--debug", "--json")
    assert "Traceback" in debug.document["traceback"]
    assert "ValueError: deep" in debug.document["traceback"]
    assert debug.document["error"] == "UnexpectedError"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["doctor", "--jsn"], "--json"),
        (["docter"], "doctor"),
        (["echo", "--max-size", "0"], "--max-size"),
        (["echo", "--max-size", "many"], "--max-size"),
        (["echo", "surplus"], "surplus"),
        (["echo", "-v", "-q"], "exclude"),
        (["run"], "bundle"),
    ],
)
def test_usage_errors_are_2_and_say_what_is_wrong(cli, echo, arguments, says):
    plain = cli(*arguments)
    assert (plain.code, plain.out) == (2, "")
    assert says in plain.err
    document = cli(*arguments, "--json").document
    assert set(document) == KEYS
    assert says in document["what"] + document["fix"]
    assert document["exit_code"] == 2


def test_no_arguments_show_the_help_and_are_a_usage_error(cli):
    result = cli()
    assert result.code == 2
    assert "doctor" in result.out


def interrupted(body, number):
    """How a command of this body ends, that prints "ready" and is interrupted then: exit code, output, errors."""
    lines = [
        "import time",
        "from dflash_compile.cli.commands import doctor",
        "def slow(console):",
        *(f"    {line}" for line in body),
        "doctor.command = slow",
    ]
    script = "\n".join([*lines, "from dflash_compile.cli.main import entry", "entry()"])
    process = subprocess.Popen(
        [sys.executable, "-c", script, "doctor"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stderr.readline() == "ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupt_from_outside_ends_with_130(number):
    assert interrupted(["print('ready', flush=True)", "time.sleep(60)"], number) == (130, "", "error: interrupted\n")


@pytest.mark.parametrize(
    "turned_into",
    ["raise ImportError('initialization failed') from None", "raise SystemError('w')", "raise OSError(5, 'w')", "pass"],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_a_library_hides_is_still_one(turned_into, number):
    body = [
        "try:",
        "    print('ready', flush=True)",
        "    time.sleep(60)",
        "except BaseException:",
        f"    {turned_into}",
    ]
    body += ["with console.progress() as progress:", "    progress('going on')", "    time.sleep(60)"]
    code, out, err = interrupted(body, number)
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == "error: interrupted"
    assert "going on" not in err


@pytest.mark.parametrize(
    ("arguments", "code"), [("doctor", 0), ("--help", 0), ("doctor --json", 0), ("inspect /no/such --json", 2)]
)
def test_a_reader_that_leaves_early_changes_nothing(arguments, code):
    ended = shell(f"{PROGRAM} {arguments} 2>/dev/null | true; echo ${{PIPESTATUS[0]}}")
    assert (ended.stdout, ended.stderr) == (f"{code}\n", "")


@pytest.mark.parametrize(
    ("redirection", "code"),
    [
        ("<&-", 0),
        (">&-", 0),
        ("2>&-", 0),
        (">/dev/full", 4),
        ("--json >/dev/full", 4),
        ("--json >/dev/full 2>/dev/full", 4),
        ("--no-such 2>/dev/full", 2),
    ],
)
def test_streams_that_are_closed_or_full(redirection, code):
    ended = shell(f"{PROGRAM} doctor {redirection}; echo rc=$? >&3", "3>&1")
    assert ended.stdout.endswith(f"rc={code}\n")
    assert "Traceback" not in ended.stderr
    assert code != 4 or "2>" in redirection or "disk is full" in ended.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_text_that_the_terminal_cannot_show_is_no_failure(encoding):
    script = (
        "from dflash_compile.cli.commands import doctor\n"
        "from dflash_compile.cli.main import entry\n"
        "from dflash_compile.cli.report import Report\n"
        'doctor.command = lambda console: (console.stream("τ€\\n"), Report({"text": "τ\\udcff"}))[1]\n'
        "entry()"
    )
    program = f"{sys.executable} -c '{script}' doctor"
    plain = shell(program, f"PYTHONIOENCODING={encoding}")
    assert (plain.returncode, plain.stdout, plain.stderr) == (0, "\\u03c4\\u20ac\n", "")
    assert json.loads(shell(f"{program} --json", f"PYTHONIOENCODING={encoding}").stdout)["text"] == "τ\udcff"


def test_a_document_is_whole_or_not_there(cli, failing):
    failing("return Report({'first': 1, 'second': float('nan')})")
    result = cli("fail", "--json")
    assert (result.code, result.document["error"]) == (4, "UnexpectedError")


def test_a_panic_of_a_library_in_rust_is_a_document_too(cli, tmp_path, monkeypatch):
    class PanicException(BaseException):
        """As pyo3 makes it."""

    def panic(*rest, **named):
        raise PanicException("index out of bounds")

    monkeypatch.setattr("dflash_compile.runtime.load", panic)
    result = cli("run", str(tmp_path), "--prompt", "x", "--json")
    assert result.code == 4
    assert "index out of bounds" in json.loads(result.out)["what"]


def test_debug_keeps_the_document_the_only_thing_said(cli, failing):
    failing("raise ZeroDivisionError('w')")
    result = cli("fail", "--json", "--debug")
    assert set(result.document) == {*KEYS, "traceback"}
    assert "ZeroDivisionError" in result.document["traceback"]
    assert result.err == ""


@pytest.mark.parametrize(
    "rest", [("--prompt", "--json"), ("--prompt", "x", "--system", "--raw"), ("--prompt", "x", "--stop", "--debug")]
)
def test_a_flag_is_no_value_of_an_option(cli, tmp_path, rest):
    result = cli("run", str(tmp_path), *rest)
    assert result.code == 2
    assert f"{rest[-1]} follows it" in result.err + result.out


def test_deep_json_and_toml_are_the_users_fault(cli, tmp_path):
    file = tmp_path / "options.toml"
    for content in ("a = " + "[" * 20_000, "[run]\nmax-new-tokens = " + "9" * 5000, "a" + ".a" * 20_000 + " = 1"):
        file.write_text(content)
        assert cli("run", "-c", str(file), str(tmp_path), "--prompt", "x").code == 2
    deep = "[" * 20_000 + "]" * 20_000
    assert cli("run", str(tmp_path), "--prompt", "x", "--chat-template-kwargs", deep).code == 2


@pytest.mark.parametrize("key", ["max-new-tokens", "threads"])
def test_true_in_a_config_file_is_no_number(cli, tmp_path, key):
    file = tmp_path / "options.toml"
    file.write_text(f"[run]\n{key} = true\n")
    result = cli("run", "-c", str(file), str(tmp_path), "--prompt", "x")
    assert result.code == 2
    assert "cannot be true" in result.err


def test_true_in_a_config_file_is_a_switch(cli, tmp_path):
    file = tmp_path / "options.toml"
    file.write_text("[run]\nraw = true\ndraft = false\n")
    assert "cannot be" not in cli("run", "-c", str(file), str(tmp_path), "--prompt", "x").err
