"""Waiting for what MXNet's engine is computing."""

from __future__ import annotations

import threading
from typing import Any


def wait_for_all(mxnet: Any) -> None:
    """Return once all is computed; at once in a thread that Python did not start.

    In MXNet's own threads the user's operators (``mx.operator.CustomOp``) run: MXNet would wait
    until the one that calls is over, too, which is for ever.
    """
    if not isinstance(threading.current_thread(), threading._DummyThread):
        mxnet.nd.waitall()
