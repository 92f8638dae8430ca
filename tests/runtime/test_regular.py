"""Reading regular files only: nothing else is opened for long."""

from __future__ import annotations

import os

import pytest

from dflash_compile.runtime.regular import read_regular


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files in /proc")  # noqa: PTH112
def test_what_is_refused_is_closed(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "large").write_bytes(bytes(11))
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for path in (tmp_path, pipe, tmp_path / "large"):
        for _ in range(5):
            with pytest.raises(OSError, match=r"regular|directory|MiB"):
                read_regular(path, 10)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_file_of_just_the_size_is_read(tmp_path):
    (tmp_path / "a").write_bytes(b"0123456789")
    assert read_regular(tmp_path / "a", 10) == b"0123456789"
