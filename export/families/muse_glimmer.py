"""Muse Glimmer: layers with and without rotary embedding, norms around each half of a layer, a gate on attention's
output.
"""

from __future__ import annotations

from transformers.models.muse_glimmer import modeling_muse_glimmer as modeling

from . import Norm
from ._muse import family

NORMS = (
    Norm(modeling.MuseGlimmerRMSNorm, eps="eps"),
    Norm(modeling.MuseGlimmerTextCenteredRMSNorm, eps="eps", offset=1.0),
)
FAMILY = family(modeling, modeling.MuseGlimmerPreTrainedModel, modeling.MuseGlimmerTextModel, NORMS)
