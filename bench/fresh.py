"""Measurements in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def measured(module: str, *arguments: str, cache: Path) -> dict[str, float]:
    """What a module prints last, as JSON, with such a cache and what was measured kept there."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, *arguments],
        cwd=ROOT,
        env=os.environ | {"GRAPHOPT_CACHE_DIR": str(cache), "GRAPHOPT_REMEMBER": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
