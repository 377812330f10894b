"""A progress bar for work that takes more than two seconds, on a terminal only."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from graphopt.cli.console import is_rich

#: Told after each step what was done.
Step = Callable[[str], None]

PATIENCE_S = 2.0


@contextmanager
def progress(total: int, what: str) -> Iterator[Step]:
    """Yield a function to call once a step; draws on stderr after two seconds."""
    if not is_rich(sys.stderr):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    )
    task = bar.add_task(what, total=total)
    timer = threading.Timer(PATIENCE_S, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda label: bar.update(task, advance=1, description=f"{what}: {label}")
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
