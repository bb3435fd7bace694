"""The recording rules, and how metric names look in them."""

from __future__ import annotations

import re
from pathlib import Path

RULES = Path(__file__).parents[2] / "mixin" / "rules"
NAMES = re.compile(r"\b(?:gpu|container_gpu|gpuledger)_[a-z_]+\b(?!:)")
