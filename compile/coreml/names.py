"""Words that several parts of this back-end share."""

from __future__ import annotations

GPU_STATE, ANE_IO = "gpu-state", "ane-io"
"""cache policies: a state that the engine updates in place, or an input of which the host keeps what was accepted"""
PART = "_part"
"""follows the name of a weight that is stored in parts, before the part's number"""
