"""Settings every test shares: no network. Being here also lets tests import `models`, the tiny checkpoints, by name."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
