"""Standard output holds the result and nothing else; everything else is on standard error."""

from __future__ import annotations

import io
import logging
import re
import threading

from dflash_compile.cli import progress


def test_what_libraries_print_never_reaches_standard_output(cli, echo):
    plain = cli("echo", "--word", "x")
    assert plain.out == "word x\n"
    assert "a library prints this" in plain.err
    assert cli("echo", "--json").document["schema"] == "dflash-compile.echo/1"


def test_libraries_log_and_warn_only_when_asked(cli, echo, caplog, recwarn):
    cli("echo")
    assert (caplog.messages, recwarn.list) == ([], [])
    cli("echo", "-v")
    assert caplog.messages == ["a library logs this"]
    assert str(recwarn.pop().message) == "a library warns of this"
    logging.getLogger("elsewhere").warning("after the command")
    assert caplog.messages[-1] == "after the command"


def test_a_broken_command_lists_itself_and_says_why(cli, add_command):
    add_command("broken", "import no_such_library_anywhere")
    listing = cli("--help")
    assert listing.code == 0
    assert "broken" in listing.out
    assert "no_such_library_anywhere" in listing.out
    called = cli("broken", "some", "--arguments", "--json")
    assert called.code == 3
    assert "no_such_library_anywhere" in called.document["why"]
    assert cli("--version").code == 0


def test_without_a_terminal_progress_is_plain_lines():
    stream = io.StringIO()
    with progress.show_progress(stream) as report:
        for done in range(100):
            report("first", done, 100)
        report("second")
    lines = stream.getvalue().splitlines()
    assert [line.partition("] ")[2] for line in lines] == ["first", "second"]
    assert all(re.match(r"\[ *\d+\.\d s\] ", line) for line in lines)


def test_a_long_step_gives_signs_of_life(monkeypatch):
    alive = threading.Event()

    class Stream(io.StringIO):
        def write(self, text):
            if "still: slow" in text:
                alive.set()
            return super().write(text)

    monkeypatch.setattr(progress, "HEARTBEAT_SECONDS", 0.01)
    with progress.show_progress(Stream()) as report:
        report("slow")
        assert alive.wait(timeout=30)


def test_a_terminal_gets_a_bar():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    with progress.show_progress(stream) as report:
        report("step", 1, 2)
        report("step", 2, 2)
        report("unknown length")
    assert "step" in stream.getvalue()
    assert "100%" in stream.getvalue()
    assert "unknown length" in stream.getvalue()
