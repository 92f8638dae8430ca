"""What calls of a bundle cost: CPU seconds of one thread, by role and width, and of the host around them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from bundle.calls import WAYS, calls, host, interleave

from dflash_compile.runtime.policy.controller import AdaptiveWidth, CyclePlan
from dflash_compile.runtime.policy.verify_rows import Confidence
from dflash_compile.runtime.session import Session

_HOST_TOKENS = 96


class Prices(msgspec.Struct, frozen=True):
    """Seconds."""

    verify: dict[int, float]
    """by rows, padding included"""
    draft: dict[int, float]
    inject: dict[int, float]
    """by rows; in between as on a line"""
    host: dict[str, float]
    """of a cycle by way of decoding, the names of `bundle.calls.WAYS`; those of a drafter that does not say how sure
    it is are "…, silent" """
    read: float = 0.0
    """of a row of a prompt, as one of many; 0 where it was not measured"""

    def injected(self, rows: int) -> float:
        """Of an inject of `rows`."""
        known = sorted(self.inject)
        below = max((it for it in known if it <= rows), default=known[0])
        above = min((it for it in known if it >= rows), default=known[-1])
        low, high = self.inject[below], self.inject[above]
        return low if below == above else low + (high - low) * (rows - below) / (above - below)

    def hosted(self, drafted: bool, looked_up: bool, chances: bool = True) -> float:
        """Of the host's part of a cycle in an answer that drafts and looks up, or does not; without `chances` the
        drafter says nothing of itself.
        """
        name = "both" if drafted and looked_up else "drafts" if drafted else "look-ups" if looked_up else "plain"
        return self.host[name] if chances else self.host.get(f"{name}, silent", self.host[name])


class Unasked(AdaptiveWidth):
    """Decides as if the drafter did not say how sure it is."""

    def choose_verify_rows(self, plan: CyclePlan, confidence: Confidence) -> int:
        return plan.width


def measure_prices(session: Session, tokens: Sequence[int], rounds: int) -> Prices:
    """Of `rounds` calls each, behind `tokens`, which both caches hold."""
    target, drafter = session.engines.target, session.engines.drafter
    widest = min(target.max_rows, drafter.max_rows, len(tokens))
    named = dict(calls(session, tokens))
    # The first inject after other calls finds nothing of its weights in the processor's caches, as one in an answer
    # does.
    injects = {1: named.pop("inject 1"), widest: lambda: drafter.inject(target.taps, widest, 0)}
    named = {name: call for name, call in named.items() if not name.startswith("inject")}
    turns = {
        **named,
        "inject 1": injects[1],
        "read": lambda: target.prefill(tokens[:widest], 0),
        f"inject {widest}": injects[widest],
    }
    seconds = {name: ms / 1000 for name, ms in interleave([turns], rounds)[0].items()}
    by_role = {
        role: {int(name.split()[1]): it for name, it in seconds.items() if name.startswith(f"{role} ")}
        for role in ("verify", "draft", "inject")
    }
    hosts = {name: host(session, _HOST_TOKENS, **way)["host_us"] / 1e6 for name, way in WAYS.items()}
    if drafter.reports_confidence:
        hosts |= {
            f"{name}, silent": host(session, _HOST_TOKENS, Unasked, **way)["host_us"] / 1e6
            for name, way in WAYS.items()
        }
    return Prices(**by_role, host=hosts, read=seconds["read"] / widest)
