"""Target, drafter and cycle over the engines and buffers of a pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...engines import CycleEngine, DrafterEngine, Engines, TargetEngine
from ...errors import IncompatibleError, UsageError
from .bitwise import equal_widths
from .cycle import Cycle, State
from .loop import Kernels, Loop, Places
from .pair import Pair
from .steps import Chain

_ANSWER = ("block", "accepted", "bonus", "next_position")
_NO_LOOP = "device_loop is left aside, and the host starts each cycle: {what} ({why})."
_NOT_CAPTURED = (
    "This TensorRT cannot capture the engines into one graph: each captures itself, and a cycle takes several launches."
)
_ROUNDS_OTHERWISE = (
    "On this GPU a verify of {rows} rows rounds otherwise than one of {block}: it is not used, since the text must not"
    " depend on how wide a cycle is."
)


class Target(TargetEngine):
    """Prefill in chunks, verify at the narrowest width that holds the block."""

    def __init__(self, pair: Pair, widths: Sequence[int]) -> None:
        """`widths` are those of verify, narrowest first, that give one another's bits."""
        manifest = pair.manifest
        super().__init__(
            context=manifest.context, vocab=manifest.target.vocab, max_rows=pair.chunk, min_verify_rows=widths[0]
        )
        self._pair, self._widths = pair, widths

    def room(self, keep: int, rows: int) -> bool:
        """Taps always go to the same place, since a captured cycle reads them there: none are kept."""
        return False

    def close(self) -> None:
        self._pair.close()

    def _prefill_impl(self, tokens: Sequence[int], rows: int, position: int) -> int:
        pair = self._pair
        pair.write("tokens", [*tokens, *[0] * (pair.chunk - len(tokens))])
        pair.write("position", [position])
        pair.write("valid", [rows])
        pair.run("prefill", pair.chunk)
        return pair.read("next_token", 1)[0]

    def _verify_impl(self, block: Sequence[int], position: int, keep: int) -> Sequence[int]:
        pair = self._pair
        if keep or len(block) > pair.block:
            raise UsageError(
                f"a verify of {len(block)} rows that keeps {keep}",
                why=f"the engine has {pair.block} rows and keeps none",
            )
        rows = next(width for width in self._widths if width >= len(block))
        pair.write("block", [*block, *[block[-1]] * (rows - len(block))])
        pair.write("position", [position])
        pair.run("verify", rows)
        return pair.read("tokens", len(block))

    def _taps_impl(self) -> Pair:
        return self._pair


class Drafter(DrafterEngine):
    """Draft at the block's width; inject at the block's or at a chunk's."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(context=pair.manifest.context, block=pair.block, max_rows=pair.chunk)
        self._pair = pair

    def close(self) -> None:
        self._pair.close()

    def _inject_impl(self, memory: Pair, rows: int, position: int) -> None:
        # The rows beyond those that count land behind them, where nothing is read before it is written again.
        memory.write("position", [position])
        memory.run("inject", self._pair.block if rows <= self._pair.block else self._pair.chunk)

    def _draft_impl(self, anchor: int, position: int, width: int) -> Sequence[int]:
        pair = self._pair
        pair.write("anchor", [anchor])
        pair.write("position", [position])
        pair.run("draft", pair.block)
        return pair.read("block", width)[1:]


def engines(
    pair: Pair,
    commit: Callable[[Sequence[int]], None],
    loop: Callable[[], Kernels] | None = None,
    cycles: int = 1,
) -> Engines:
    """Target, drafter and cycle of `pair`, whose caches are overwritten; `commit` puts the commit kernel on the stream.

    With `loop`, which loads the kernels of one, the device does up to `cycles` cycles a launch, where it can.
    """
    widths = equal_widths(pair)
    notes = [] if pair.captures else [_NOT_CAPTURED]
    if left := [str(rows) for rows in pair.widths if rows not in widths]:
        notes.append(_ROUNDS_OTHERWISE.format(rows=" and ".join(left), block=pair.block))
    cycle: CycleEngine | None = None
    if loop is not None:
        try:
            cycle = _loop(pair, widths, loop, cycles)
        except IncompatibleError as fault:
            notes.append(_NO_LOOP.format(what=fault.what, why=fault.why))
    return Engines(Target(pair, widths), Drafter(pair), tuple(notes), cycle or _cycle(pair, widths, commit))


def _runners(pair: Pair, widths: Sequence[int]) -> Mapping[int, Sequence[Chain]]:
    """Draft, verify and inject of every width."""
    # A narrower verify takes the front of the same block, and what inject writes behind it is not read before it is
    # written again.
    draft, inject = (pair.chains[role, pair.block] for role in ("draft", "inject"))
    return {rows: (draft, pair.chains["verify", rows], inject) for rows in widths}


def _cycle(pair: Pair, widths: Sequence[int], commit: Callable[[Sequence[int]], None]) -> Cycle:
    arguments = [pair.buffers[name] for name in (*_ANSWER, "anchor", "position", "report")]
    state = State(*arguments[-3:])
    sizes = {"context": pair.manifest.context, "rows": pair.rows}
    runners = _runners(pair, widths)
    return Cycle(pair.device, runners, lambda: commit(arguments), state, **sizes, captures=pair.captures)


def _loop(pair: Pair, widths: Sequence[int], kernels: Callable[[], Kernels], cycles: int) -> Loop:
    """Raises `IncompatibleError` where the device or the engines cannot."""
    if not pair.captures:
        raise IncompatibleError(
            "this TensorRT cannot capture the engines", why="a loop on the device is a graph that holds them"
        )
    block, accepted, bonus, following, anchor, position = (
        pair.buffers[name] for name in (*_ANSWER, "anchor", "position")
    )
    places = Places((block, accepted, bonus, following), anchor, position)
    sizes = {"context": pair.manifest.context, "rows": pair.rows}
    return Loop(pair.device, _runners(pair, widths), kernels(), places, cycles=cycles, **sizes)
