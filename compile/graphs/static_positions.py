"""`Positions` of a graph whose row count is fixed: constants where a free graph computes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .positions import Positions


class StaticPositions(Positions):
    """Rows, and with them everything but the position itself, are known when the graph is made."""

    def __init__(self, model: ir.Model) -> None:
        super().__init__(model)
        count = None if self.rows_of.shape is None else self.rows_of.shape[1]
        assert isinstance(count, int), "traced with a row count"
        self.count = count

    def rows(self) -> ir.Value:
        """int64 [1]: S."""
        return self.edit.constant(np.array([self.count], np.int64))

    def total(self) -> ir.Value:
        """int32 [1]: position + S."""
        return self._once(
            "total", lambda: self.edit.one("Add", [self.position, self.edit.constant(np.array([self.count], np.int32))])
        )

    def of_rows(self) -> ir.Value:
        """int64 [1, S]: the position of each row."""
        steps = self.edit.constant(np.arange(self.count, dtype=np.int64)[None])
        return self._once("of_rows", lambda: self.edit.one("Add", [steps, self.start()]))
