"""An engine whose library is not installed."""

from __future__ import annotations

from typing import ClassVar

from peer import Setup


class Absent:
    VARIANTS: ClassVar = ("any",)
    INSTALL: ClassVar = "pip install no-such-library"

    def __init__(self, setup: Setup) -> None:
        import no_such_library  # noqa: F401


PEER = Absent
