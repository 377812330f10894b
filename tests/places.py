"""Where things lie that tests read."""

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def data_folder() -> Path:
    """The folder of shared data: in $GRAPHOPT_SHARED, or in ``shared/`` beside the repository."""
    return Path(os.environ.get("GRAPHOPT_SHARED", REPOSITORY.parent / "shared")) / "data"
