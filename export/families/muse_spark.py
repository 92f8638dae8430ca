"""Muse Spark: attention as in Muse Glimmer, mixtures of experts at a width of their own, gates on the residual."""

from __future__ import annotations

from transformers.models.muse_spark import modeling_muse_spark as modeling

from . import Norm
from ._muse import family

NORMS = (
    Norm(modeling.MuseSparkRMSNorm, eps="eps"),
    Norm(modeling.MuseSparkTextCenteredRMSNorm, eps="eps", offset=1.0),
    Norm(modeling.MuseSparkTextInputScaledRMSNorm, eps="eps", offset=1.0, before=True),
)
FAMILY = family(modeling, modeling.MuseSparkPreTrainedModel, modeling.MuseSparkTextModel, NORMS)
