"""The exceptions graphopt raises; every message is one sentence a user can act on."""

from __future__ import annotations


class GraphoptError(Exception):
    """Base of all errors that graphopt raises on purpose."""


class MissingDependencyError(GraphoptError, ImportError):
    """A package or shared library that the called function needs is not installed."""


class GraphError(GraphoptError, ValueError):
    """A graph breaks an invariant of the IR (dangling value, cycle, duplicate input name ...)."""


class ParseError(GraphoptError, ValueError):
    """A text, JSON or option string is malformed."""


class InputError(GraphoptError, ValueError):
    """An argument, file, shape, dtype or parameter given by the user does not fit."""


class UnsupportedError(GraphoptError, NotImplementedError):
    """The request is understood, but this version cannot serve it; nothing was changed."""


class PassError(GraphoptError, RuntimeError):
    """A pass raised, broke the graph or changed its values; raised only in strict mode."""
