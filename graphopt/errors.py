"""The exceptions graphopt raises; every message is one sentence a user can act on."""

from __future__ import annotations


class GraphoptError(Exception):
    """Base of all errors that graphopt raises on purpose."""


class MissingDependencyError(GraphoptError, ImportError):
    """A package or shared library that the called function needs is not installed."""


class GraphError(GraphoptError, ValueError):
    """A graph breaks an invariant of the IR (dangling value, cycle ...), or MXNet refuses it."""


class ParseError(GraphoptError, ValueError):
    """A text, JSON or option string is malformed."""


class InputError(GraphoptError, ValueError):
    """An argument, file, shape, dtype or parameter given by the user does not fit."""


class UnsupportedError(GraphoptError, NotImplementedError):
    """The request is understood, but this version cannot serve it; nothing was changed."""


class UninitializedError(InputError, RuntimeError):
    """A parameter has no values yet; a RuntimeError as well, which MXNet raises then."""


class BudgetError(InputError):
    """No plan keeps a training step within its memory budget."""


class HigherOrderError(UnsupportedError):
    """Gradients are to be differentiated, which compiled graphs cannot be twice."""


class PassError(GraphoptError, RuntimeError):
    """A pass raised, broke the graph or changed its values; raised only in strict mode."""


class SampleError(GraphoptError, RuntimeError):
    """Samples of a batch raised; the others were run.

    Attributes:
        failures: what each raised, by number of sample.
        results: one per sample, None where it failed.
    """

    def __init__(self, failures: dict[int, Exception], results: list[object]) -> None:
        """Name the first sample that failed, and where."""
        self.failures = failures
        self.results = results
        number, error = min(failures.items())
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        super().__init__(
            f"sample {number}{more} raised {type(error).__name__}{_where(error)}: {error};"
            f" the results of the others are in .results"
        )


def _where(error: Exception) -> str:
    """The line of the user's code that raised: the innermost that is no library's."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if "site-packages" not in path and "/graphopt/" not in path and "<" not in path:
            found = f" at {path}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
