"""What the loop asks of a target and of a drafter, whatever runs them.

The public methods own the invariants (ranges, widths, the rows taps cover); a back-end implements the `_…_impl` ones
and may rely on them. Positions are absolute: `position` is the number of tokens whose K/V the cache holds before the
call. Moving it back is the whole of rollback.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from .embeds import Span
from .errors import BundleError, IncompatibleError, LengthError, UsageError
from .foreign import foreign_errors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Taps:
    """Tap outputs of the target's last calls, where the target wrote them: valid until its next call."""

    memory: Any
    """the back-end's own handle; holds [1, at least `rows`, taps · hidden], row 0 first"""
    rows: int


class TargetEngine(ABC):
    """The target in verification mode: any number of rows at any position, tokens in, choices out."""

    reports_logits = False
    """whether the logits behind the choices can be had"""

    def __init__(
        self,
        *,
        context: int,
        vocab: int,
        max_rows: int,
        min_verify_rows: int,
        row_multiple: int = 1,
        embeds: int | None = None,
    ) -> None:
        self.context = context
        """rows of the cache"""
        self.vocab = vocab
        self.max_rows = max_rows
        """most rows of one call"""
        self.min_verify_rows = min_verify_rows
        """fewest rows of one call: narrower calls are padded, because one row may run another kernel and round
        otherwise"""
        self.row_multiple = row_multiple
        """rows of a verify come in multiples of it: where kernels take so many at once, a row that is left over runs
        another one"""
        self.embeds = embeds
        """width of the rows that a prefill takes in place of embedded tokens; None where it takes none"""
        self._rows = self._answered = 0
        """rows of taps that the last calls wrote, and rows that the last one answered"""

    @final
    def prefill(self, tokens: Sequence[int], position: int, embeds: Sequence[Span] = ()) -> int:
        """Write the K/V of `tokens`, at most `max_rows`, and return the target's choice after the last of them.

        `embeds`, which count from the first of `tokens`, take the place of their embeddings.
        """
        padded, rows = self._padded(tokens, position, self.min_verify_rows), len(tokens)
        with _faults("prefill"):
            if embeds:
                choice = self._embeds_impl(padded, rows, position, embeds)
            else:
                choice = self._prefill_impl(padded, rows, position)
        self._rows, self._answered = rows, 1
        return choice

    @final
    def verify(self, block: Sequence[int], position: int, keep: int = 0) -> Sequence[int]:
        """Write the K/V of `block` and return the target's choice after each of its rows.

        The taps of this call go behind the first `keep` rows of those before, so that several calls can be injected as
        one.
        """
        rows = self._padded(block, position, self.padded(len(block)))
        if not 0 <= keep <= min(self._rows, self.max_rows - len(rows)):
            raise UsageError(
                f"{keep} rows of taps to keep",
                why=f"{self._rows} are there, and {self.max_rows} fit with the {len(rows)} of this call",
            )
        with _faults("verify"):
            choices = self._verify_impl(rows, position, keep)
        self._rows, self._answered = keep + len(block), len(block)
        return choices[: len(block)]

    def room(self, keep: int, rows: int) -> bool:
        """Whether a call of `rows` can keep the taps of `keep` rows before it."""
        return keep + self.padded(rows) <= self.max_rows

    def padded(self, rows: int) -> int:
        """Rows that a verify of `rows` really has."""
        rows = max(rows, self.min_verify_rows)
        return rows + -rows % self.row_multiple

    def fitting(self, position: int) -> int:
        """Most rows of a block at `position`, none of them left over."""
        most = min(self.context - position, self.max_rows)
        return most - most % self.row_multiple

    @property
    def taps(self) -> Taps:
        """Taps of the last call's rows, without the padding, behind those it kept."""
        return Taps(self._taps_impl(), self._rows)

    @final
    def row_logits(self, row: int) -> NDArray[np.float32]:
        """The logits of row `row` of the last verify, or of row 0, the prompt's last, after a prefill: float32 [vocab],
        valid until the next call. Raises `IncompatibleError` where the engine gives none.
        """
        if not 0 <= row < self._answered:
            raise UsageError(f"row {row}", why=f"the last call answered {self._answered}, from 0", fix="verify more")
        return self._logits_impl(row)

    @abstractmethod
    def close(self) -> None:
        """Release the engine's memory."""

    def _logits_impl(self, row: int) -> NDArray[np.float32]:
        """As `row_logits`. Targets whose engines give choices alone leave it as it is, and refuse."""
        raise IncompatibleError(
            "this bundle's engines give choices and no logits",
            fix="build the bundle for a back-end whose engines give logits: `dflash-compile build --help`",
        )

    @abstractmethod
    def _prefill_impl(self, tokens: Sequence[int], rows: int, position: int) -> int:
        """As `prefill`; `tokens` may be padded beyond its first `rows`."""

    def _embeds_impl(self, tokens: Sequence[int], rows: int, position: int, embeds: Sequence[Span]) -> int:
        """As `_prefill_impl`, with rows of `embeds` in place of tokens.

        Targets that take none leave it as it is, and refuse.
        """
        raise UsageError(
            "rows in place of embedded tokens",
            why="this target takes none",
            fix="build the bundle of a multimodal checkpoint",
        )

    @abstractmethod
    def _verify_impl(self, block: Sequence[int], position: int, keep: int) -> Sequence[int]: ...

    @abstractmethod
    def _taps_impl(self) -> Any: ...

    def _padded(self, tokens: Sequence[int], position: int, rows: int) -> Sequence[int]:
        """`tokens`, made up to at least `rows` rows.

        The added ones are past every real one, so no real row sees them.
        """
        if not 1 <= len(tokens) <= self.max_rows:
            raise UsageError(
                f"{len(tokens)} rows in one call of the target",
                why=f"it takes 1 to {self.max_rows}",
                fix="split the rows over several calls",
            )
        missing = rows - len(tokens)
        _check_fits(position, max(len(tokens), rows), self.context)
        return [*tokens, *[tokens[-1]] * missing] if missing > 0 else tokens


class DrafterEngine(ABC):
    """The drafter: takes the taps of committed tokens in, gives proposals for the next ones out."""

    reports_confidence = False
    """whether `confidence` can be asked"""

    def __init__(self, *, context: int, block: int, max_rows: int) -> None:
        self.context = context
        """rows of the draft cache"""
        self.block = block
        """rows of the block it was trained for: the anchor and the proposals"""
        self.max_rows = max_rows
        """most rows of one inject"""
        self._slots = 0
        """proposals of the last draft"""

    @final
    def inject(self, taps: Taps, rows: int, position: int) -> None:
        """Write the context K/V of the first `rows` rows of `taps`, whose tokens were committed at `position`."""
        if not 1 <= rows <= min(taps.rows, self.max_rows):
            raise UsageError(
                f"{rows} rows in one inject",
                why=f"the taps hold {taps.rows} and an inject takes {self.max_rows}",
                fix="inject what the last call committed, in several calls",
            )
        _check_fits(position, rows, self.context)
        with _faults("inject"):
            self._inject_impl(taps.memory, rows, position)

    @final
    def draft(self, anchor: int, position: int, width: int) -> Sequence[int]:
        """`width - 1` proposals for the tokens after `anchor`, whose own position is `position`."""
        if not 2 <= width <= self.block:
            raise UsageError(
                f"a block of {width} rows",
                why=f"the drafter takes 2 to {self.block}",
                fix="choose a width in that range",
            )
        _check_fits(position, width, self.context)
        self._slots = width - 1
        with _faults("draft"):
            return self._draft_impl(anchor, position, width)

    @final
    def confidence(self, slot: int) -> float:
        """The probability, from 0 to 1, that the drafter gave its proposal at `slot` of the last draft, 0 right after
        the anchor.

        Raises `UsageError` for a slot that was not drafted, and for a drafter that reports no confidence.
        """
        if not 0 <= slot < self._slots:
            raise UsageError(f"slot {slot}", why=f"the last draft has {self._slots}, from 0", fix="draft a wider block")
        return self._confidence_impl(slot)

    @abstractmethod
    def close(self) -> None:
        """Release the engine's memory."""

    @abstractmethod
    def _inject_impl(self, memory: Any, rows: int, position: int) -> None: ...

    @abstractmethod
    def _draft_impl(self, anchor: int, position: int, width: int) -> Sequence[int]: ...

    def _confidence_impl(self, slot: int) -> float:
        """As `confidence`. Drafters whose engines give choices and no logits leave it as it is, and refuse."""
        raise UsageError(
            "how sure this drafter is",
            why="its engines give choices without their probabilities",
            fix="ask only where `reports_confidence` is true",
        )


@dataclass(frozen=True, slots=True)
class Cycled:
    """What a cycle of the device gave: 1 to `width` tokens."""

    tokens: Sequence[int]
    width: int
    seconds: float | None = None
    """what it took, where the call did not wait for this cycle alone"""


class CycleEngine(ABC):
    """Draft, verify, inject and commit as one step of the device, over the caches of a target and a drafter."""

    def __init__(self, *, context: int, widths: Sequence[int]) -> None:
        self.context = context
        self.widths = tuple(sorted(widths))
        """rows that a cycle can have"""

    @final
    def begin(self, end: int, eos_ids: Collection[int]) -> None:
        """A new answer: nothing that was computed for another one is continued.

        It ends where the caches hold `end` rows, or with one of `eos_ids`: what a cycle gives does not depend on it,
        but the device may know when to stop.
        """
        self._begin_impl(end, eos_ids)

    @final
    def run(self, anchor: int, position: int, width: int) -> Cycled:
        """The tokens after `anchor`. Both caches hold every row before `position`, and afterwards those of all tokens
        but the last.

        The device may already be in the next cycles, of the same width, when this returns, or through them. Where the
        next call does not continue this one, that work is thrown away; where it does but asks for another width, it
        gets what is under way first, and its own after that.
        """
        if width not in self.widths:
            raise UsageError(
                f"a cycle of {width} rows",
                why=f"the device has those of {', '.join(map(str, self.widths))}",
                fix="choose one of them",
            )
        _check_fits(position, width, self.context)
        with _faults("a cycle"):
            return self._run_impl(anchor, position, width)

    @abstractmethod
    def close(self) -> None:
        """Wait for the device and release the engine's memory."""

    @abstractmethod
    def _begin_impl(self, end: int, eos_ids: Collection[int]) -> None: ...

    @abstractmethod
    def _run_impl(self, anchor: int, position: int, width: int) -> Cycled: ...


@dataclass(frozen=True)
class Engines:
    """A pair that was built together."""

    target: TargetEngine
    drafter: DrafterEngine
    notes: tuple[str, ...] = ()
    """what the user should know about how they run, in sentences"""
    cycle: CycleEngine | None = None
    """where the device can do a whole cycle by itself"""

    @property
    def widths(self) -> Sequence[int]:
        """Rows that a block costs least with; empty where any number of rows is as good as another."""
        if self.cycle is not None:
            return self.cycle.widths
        step, block = self.target.row_multiple, self.drafter.block
        return sorted({*range(step, block, step), block}) if step > 1 else ()

    def close(self) -> None:
        """Release them, the one that may be running first."""
        if self.cycle is not None:
            self.cycle.close()
        self.target.close()
        self.drafter.close()


def _faults(role: str) -> AbstractContextManager[None]:
    return foreign_errors(
        BundleError,
        f"an engine of the bundle failed: {role}",
        fix="build the bundle again with this machine's versions; if that does not help, report it",
    )


def _check_fits(position: int, rows: int, context: int) -> None:
    if position < 0 or position + rows > context:
        raise LengthError(
            f"rows {position} to {position + rows} do not fit the cache",
            why=f"it holds {context}",
            fix="build the bundle with a larger --max-context",
        )
