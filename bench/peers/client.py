"""Finds the Pythons that have the peers, and talks to servers in them.

``GRAPHOPT_PEERS_PYTHON`` names one Python, or several with ``:`` between; without it,
``.venv-peers`` (``make peers``) is tried. ONNX Runtime, PyTorch and the export to ONNX may each be
in another one, since what they need does not always go together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SERVER = Path(__file__).with_name("server.py")

#: Modules a Python needs, per job.
JOBS = {
    "graphopt_trees": ("mxnet",),
    "mxnet": ("mxnet",),
    "mxnet_recurrence": ("mxnet",),
    "mxnet_trees": ("mxnet",),
    "export": ("mxnet", "onnx"),
    "onnxruntime": ("onnxruntime",),
    "torch_encoder": ("torch",),
    "torch_mlp": ("torch",),
    "torch_expression": ("torch",),
    "torch_lstm": ("torch",),
    "torch_module": ("torch",),
    "torch_optimizer": ("torch",),
    "torch_text": ("torch",),
    "torch_tree_package": ("torch", "treelstm"),
    "torch_trees": ("torch",),
}


class PeerError(Exception):
    """A peer could not do what it was asked for."""


class Peer:
    """A server process; calling it times the model it loaded."""

    times_itself = True

    def __init__(self, python: str) -> None:
        """Start it; its messages go to a file that errors quote."""
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [python, str(SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
        )

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Send a request, wait for the answer.

        Raises:
            PeerError: it failed, or the process died.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            last = (self._errors.read().strip().splitlines() or ["no message"])[-1]
            raise PeerError(f"the process ended with {self._process.wait()}: {last}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def __call__(self, count: int) -> list[float]:
        """Milliseconds of each of so many runs."""
        found: list[float] = self.ask("run", count=count)["ms"]
        return found

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()


class Peers:
    """The peers there are, and a folder for the files they share."""

    def __init__(self, *, enabled: bool = True) -> None:
        """Nothing is started yet."""
        self._folder = tempfile.TemporaryDirectory(prefix="graphopt-peers-")
        self.folder = Path(self._folder.name)
        self._pythons = _pythons() if enabled else {}
        self.why_not = "peers are switched off" if not enabled else ""

    def has(self, *jobs: str) -> bool:
        """Whether all these jobs can be done."""
        return all(job in self._pythons for job in jobs)

    def missing(self, *jobs: str) -> str:
        """A sentence about what is not there."""
        lost = [module for job in jobs if not self.has(job) for module in JOBS[job]]
        return self.why_not or (
            f"no peer: {', '.join(lost)} in none of the Pythons of GRAPHOPT_PEERS_PYTHON or"
            " .venv-peers (make peers)"
        )

    def start(self, job: str, **request: Any) -> Peer:
        """A server that has loaded a model.

        Raises:
            PeerError: it cannot.
        """
        peer = Peer(self._pythons[job])
        try:
            peer.ask("load", kind=job, **request)
        except PeerError:
            peer.close()
            raise
        return peer

    def memory(self, job: str, **request: Any) -> float:
        """MB by which so many runs exceed what a process has in any case.

        Raises:
            PeerError: it cannot tell.
        """
        peer = Peer(self._pythons[job])
        try:
            return float(peer.ask("memory", kind=job, **request)["mb"])
        finally:
            peer.close()

    def export(self, symbol: Path, params: Path, shapes: list[tuple[int, ...]], to: Path) -> None:
        """Write an ONNX file.

        Raises:
            PeerError: mx.onnx cannot.
        """
        peer = Peer(self._pythons["export"])
        try:
            peer.ask("export", symbol=str(symbol), params=str(params), shapes=shapes, to=str(to))
        finally:
            peer.close()

    def close(self) -> None:
        """Remove the files."""
        self._folder.cleanup()


def _pythons() -> dict[str, str]:
    """The first Python that has what each job needs."""
    named = os.environ.get("GRAPHOPT_PEERS_PYTHON")
    candidates = named.split(os.pathsep) if named else [str(ROOT / ".venv-peers/bin/python")]
    found: dict[str, str] = {}
    for python in [*candidates, sys.executable]:
        if not Path(python).exists():
            continue
        modules = {module for needed in JOBS.values() for module in needed}
        command = [python, str(SERVER), "--modules", *sorted(modules)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        has = set(json.loads(done.stdout)) if done.returncode == 0 else set()
        for job, needed in JOBS.items():
            if has >= set(needed):
                found.setdefault(job, python)
    # The same MXNet, numpy and Python as here.
    found["mxnet"] = found["graphopt_trees"] = sys.executable
    return found
