"""The demo's own pair on Core AI, thirty layers deep: whole answers equal those of the CPU bundle at fp32, token for
token.

Slow, minutes of CPU: two bundles are built, and Core AI's runtime on Linux copies the whole cache at every call, so the
context is short.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from suites import suite

from dflash_compile.artifacts import ROOT
from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.runtime import load

pytestmark = pytest.mark.slow
CONTEXT, TOKENS = 160, 64


def test_whole_answers_of_the_demo_pair_equal_those_of_the_cpu_bundle(tmp_path: Path) -> None:
    pair = ("smollm2-135m", ROOT / "smollm2-135m-dflash")
    paths = [
        build(*pair, tmp_path / name, BuildOptions(backend=name, precision="fp32", context=CONTEXT))
        for name in ("coreai", "onnxruntime")
    ]
    accepted = 0
    with load(paths[0]) as session, load(paths[1]) as reference:
        block = session.manifest.pairing.block
        for prompt in (suite(name)[0] for name in ("code", "reasoning", "chat")):
            wanted = list(reference.tokens(prompt, max_new_tokens=TOKENS, draft=False))
            assert list(reference.tokens(prompt, max_new_tokens=TOKENS, block=block)) == wanted, prompt
            assert list(session.tokens(prompt, max_new_tokens=TOKENS, block=block)) == wanted, prompt
            assert len(wanted) == TOKENS, prompt
            assert (session.statistics.cycles, session.statistics.accepted) == (
                reference.statistics.cycles,
                reference.statistics.accepted,
            ), prompt
            accepted += session.statistics.accepted
    assert accepted > 30, "a drafter that is never right proves nothing"
