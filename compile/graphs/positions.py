"""Values every attention form needs once per graph: row count, position of each row, visible columns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from dflash_compile.export.ops.semantic import NO_WINDOW

from .edit import Editor


class Positions:
    """Computed on demand and shared by all layers; `edit.eliminate_dead_nodes` then sorts them to where they belong.

    `position` is the graph's int32 [1] input; the row count is the second dimension of what is embedded, or of the
    first input where nothing is.
    """

    def __init__(self, model: ir.Model) -> None:
        self.edit = Editor(model, None, "positions")
        self.position = next(value for value in model.graph.inputs if value.name == "position")
        self.rows_of = _embedded(model) or model.graph.inputs[0]
        self._made: dict[object, ir.Value] = {}

    def _once(self, key: object, make: Callable[[], ir.Value]) -> ir.Value:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def start(self) -> ir.Value:
        """int64 [1]: the position of the first row."""
        return self._once("start", lambda: self.edit.one("Cast", [self.position], {"to": ir.DataType.INT64}))

    def rows(self) -> ir.Value:
        """int64 [1]: S."""
        return self._once("rows", lambda: self.edit.one("Shape", [self.rows_of], {"start": 1, "end": 2}))

    def total(self) -> ir.Value:
        """int32 [1]: position + S."""

        def make() -> ir.Value:
            rows = self.edit.one("Cast", [self.rows()], {"to": ir.DataType.INT32})
            return self.edit.one("Add", [self.position, rows])

        return self._once("total", make)

    def last(self) -> ir.Value:
        """int32 [1]: position + S - 1."""
        return self._once(
            "last", lambda: self.edit.one("Sub", [self.total(), self.edit.constant(np.array([1], np.int32))])
        )

    def of_rows(self) -> ir.Value:
        """int64 [1, S]: the position of each row."""

        def make() -> ir.Value:
            zero, one = (self.edit.constant(np.array(n, np.int64)) for n in (0, 1))
            count = self.edit.one("Squeeze", [self.rows(), self.edit.constant(np.array([0], np.int64))])
            steps = self.edit.one("Range", [zero, count, one])
            row = self.edit.one("Add", [steps, self.start()])
            return self.edit.one("Unsqueeze", [row, self.edit.constant(np.array([0], np.int64))])

        return self._once("of_rows", make)

    def visible(self, length: int, window: int, causal: bool, anchored: bool = False) -> ir.Value:
        """bool [S, length]: which cache columns each row may attend to, as `export.ops` defines it."""

        def make() -> ir.Value:
            edit = self.edit
            row = edit.one("Transpose", [self.of_rows()], {"perm": [1, 0]})
            column = edit.constant(np.arange(length, dtype=np.int64)[None])
            if causal:
                mask = edit.one("LessOrEqual", [column, row])
            else:
                written = edit.one("Less", [column, edit.one("Add", [self.start(), self.rows()])])
                shape = edit.one("Concat", [self.rows(), edit.constant(np.array([length], np.int64))], {"axis": 0})
                mask = edit.one("Expand", [written, shape])
            if window != NO_WINDOW and anchored:
                first = edit.one("Sub", [self.start(), edit.constant(np.array([window], np.int64))])
                mask = edit.one("And", [mask, edit.one("GreaterOrEqual", [column, first])])
            elif window != NO_WINDOW:
                distance = edit.one("Abs", [edit.one("Sub", [row, column])])
                mask = edit.one("And", [mask, edit.one("Less", [distance, edit.constant(np.array(window, np.int64))])])
            return mask

        return self._once(("visible", length, window, causal, anchored), make)

    def folded(self, length: int, window: int, causal: bool, anchored: bool, groups: int) -> ir.Value:
        """bool [1, 1, groups * S, length]: `visible` once for each of the query heads that share a key head."""

        def make() -> ir.Value:
            mask = self.visible(length, window, causal, anchored)
            tiled = self.edit.one("Concat", [mask] * groups, {"axis": 0}) if groups > 1 else mask
            return self.edit.one("Unsqueeze", [tiled, self.edit.constant(np.array([0, 1], np.int64))])

        return self._once(("folded", length, window, causal, anchored, groups), make)


def _embedded(model: ir.Model) -> ir.Value | None:
    """The token ids looked up in the embedding: fewer than a graph is given where a draft leaves the last mask out."""
    for node in model.graph:
        if node.op_type == "Gather":
            table, ids = node.inputs
            if table is not None and table.producer() is None and table.shape is not None and len(table.shape) == 2:
                return ids
    return None
