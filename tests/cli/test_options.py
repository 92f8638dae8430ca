"""Options: where a value comes from, and what every command shares."""

from __future__ import annotations

import pytest
import typer.main

from dflash_compile.cli.register import SHARED, application

DEFAULT, FILE, ENVIRONMENT, FLAG = "default", "file", "environment", "flag"


@pytest.fixture
def config(tmp_path):
    def write(text: str) -> str:
        (tmp_path / "c.toml").write_text(text)
        return str(tmp_path / "c.toml")

    return write


@pytest.mark.parametrize(
    "given",
    [
        (),
        (FILE,),
        (ENVIRONMENT,),
        (FLAG,),
        (FILE, ENVIRONMENT),
        (FILE, FLAG),
        (ENVIRONMENT, FLAG),
        (FILE, ENVIRONMENT, FLAG),
    ],
)
def test_flag_beats_environment_beats_file_beats_default(cli, echo, config, monkeypatch, given):
    arguments = ["echo", "--json"]
    if FILE in given:
        arguments = [*arguments, "-c", config(f'[echo]\nword = "{FILE}"')]
    if ENVIRONMENT in given:
        monkeypatch.setenv("DFLASH_COMPILE_ECHO_WORD", ENVIRONMENT)
    if FLAG in given:
        arguments = [arguments[0], "--word", FLAG, *arguments[1:]]
    assert cli(*arguments).document["word"] == (given[-1] if given else DEFAULT)


def test_a_file_may_hold_every_kind_of_value_and_both_spellings(cli, echo, config):
    document = cli(
        "echo",
        "--config",
        config('[echo]\nmax-size = 7\nflag = false\nmany = ["a", "b"]\njson = true\n[doctor]\nquiet = true'),
    ).document
    assert document == {
        "schema": "dflash-compile.echo/1",
        "word": "default",
        "max_size": 7,
        "flag": False,
        "many": ["a", "b"],
    }
    assert cli("echo", "--json", "-c", config("[echo]\nmax_size = 8")).document["max_size"] == 8


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[echo]\nwrod = 'x'", "did you mean `word`?"),
        ("[echo]\nmax-szie = 3", "did you mean `max-size`?"),
        ("[ecoh]\nword = 'x'", "did you mean `echo`?"),
        ("[echo]\nzzz = 1", "known:"),
        ("[echo]\nconfig = 'other.toml'", "unknown key"),
        ("word = 'x'", "unknown table: `word`"),
        ("echo = 3", "write [echo]"),
        ("[echo", "is not TOML"),
        ("[echo]\nmax-size = 0", "--max-size"),
        ("[echo]\nmax-size = 'many'", "--max-size"),
        ("[echo]\nword = {a = 1}", "`word` cannot be"),
        ("[echo]\nword = ['a']", "`word` cannot be"),
        ("[echo]\nmax-size = 1979-05-27", "`max-size` cannot be"),
        ("[echo]\nmany = [['a']]", "or a list of them"),
    ],
)
def test_a_wrong_file_is_a_usage_error_that_helps(cli, echo, config, text, says):
    result = cli("echo", "-c", config(text))
    assert result.code == 2
    assert says in result.err


def test_one_value_stands_for_a_list_of_one(cli, echo, config):
    assert cli("echo", "--json", "-c", config("[echo]\nmany = 'a'")).document["many"] == ["a"]


def test_a_missing_file_is_named(cli, echo, tmp_path):
    result = cli("echo", "-c", str(tmp_path / "none.toml"))
    assert result.code == 2
    assert "none.toml" in result.err


def test_only_the_documented_short_flags_and_the_shared_options_everywhere():
    for name, command in typer.main.get_group(application()).commands.items():
        flags = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        short = {flag for flag in flags if flag.startswith("-") and not flag.startswith("--")}
        assert short <= {"-o", "-c", "-v", "-q"}, name
        assert {f"--{option}" for option in SHARED} <= flags, name
        assert not any("_" in flag for flag in flags if flag.startswith("-")), name
