"""Every way a command can end: its exit code, what people read and what programs read."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

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
    "raise TimeoutError('w')": 4,
    "import torch.no_such_module": 3,
    "raise ModuleNotFoundError('No module named onnxruntime', name='onnxruntime')": 3,
    "raise ImportError('libsomething.so: cannot open', name='onnxruntime')": 3,
    "raise KeyboardInterrupt": 130,
    "raise EOFError": 4,
    "return Report({}, code=errors.ExitCode.CHECK_FAILED)": 1,
    "return Report({})": 0,
}


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
    assert result.err.splitlines() == ["error: the thing broke", "  where: a/file", "  why: it matters", "  fix: do this"]


@pytest.mark.parametrize(
    ("statement", "fix"),
    [
        ("raise ModuleNotFoundError('x', name='torch.fx')", "pip install 'dflash-compile[build]'"),
        ("raise ModuleNotFoundError('x', name='onnxruntime')", "pip install 'dflash-compile[cpu]'"),
        ("raise OSError(28, 'No space left on device', 'some/file')", "free space"),
        ("raise ValueError('x')", "--debug"),
    ],
)
def test_the_fix_fits_the_fault(cli, failing, statement, fix):
    failing(statement)
    assert fix in cli("fail").err


def test_traceback_only_under_debug(cli, failing):
    failing("raise ValueError('deep')")
    assert "Traceback" not in cli("fail").err
    debug = cli("fail", "--debug", "--json")
    assert "Traceback" in debug.err
    assert "ValueError: deep" in debug.err
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


def test_interrupt_from_outside_ends_with_130():
    script = "import time\nfrom dflash_compile.cli.commands import doctor\n" + (
        "def slow(console):\n    print('ready', flush=True)\n    time.sleep(60)\ndoctor.command = slow\nfrom dflash_compile.cli.main import entry\nentry()"
    )
    process = subprocess.Popen([sys.executable, "-c", script, "doctor"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "error: interrupted\n")


def test_a_reader_that_leaves_early_is_no_failure():
    command = f"{sys.executable} -c 'from dflash_compile.cli.main import entry; entry()' doctor | true; echo ${{PIPESTATUS[0]}}"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("0\n", "")
