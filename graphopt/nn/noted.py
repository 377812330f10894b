"""What MXNet notes of a HybridBlock when it is traced, as optimized views have it.

Gluon's own methods, converters (``mx.contrib.amp``) and classes of users read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphopt.compat import import_mxnet

if TYPE_CHECKING:
    from graphopt.nn.state import State


class Noted:
    """Mixin of views: what was noted of the user's Block, or else of what was compiled last."""

    if TYPE_CHECKING:

        @property
        def graphopt_state(self) -> State:
            """What graphopt knows about the view."""

    @property
    def _in_format(self) -> Any:
        """How arguments are nested, which GluonTS writes beside what it exports; ``None`` before.

        As all that MXNet's HybridBlocks note of themselves when they are traced, it stays off the
        user's Block.
        """
        return self._graphopt_noted("_in_format", "arguments")

    @_in_format.setter
    def _in_format(self, layout: Any) -> None:
        self.__dict__["_in_format"] = layout

    @property
    def _out_format(self) -> Any:
        """How results are nested."""
        return self._graphopt_noted("_out_format", "results")

    @_out_format.setter
    def _out_format(self, layout: Any) -> None:
        self.__dict__["_out_format"] = layout

    @property
    def _cached_graph(self) -> Any:
        """Inputs and outputs of the graph, which converters (``mx.contrib.amp``) ask for."""
        own, entries = self.__dict__.get("_cached_graph"), self.graphopt_state.compiled.entries
        if own or not entries:
            return own or ()
        traced = entries[-1].traced
        return [import_mxnet().sym.var(name) for name in traced.names], traced.returned

    @_cached_graph.setter
    def _cached_graph(self, graph: Any) -> None:
        self.__dict__["_cached_graph"] = graph

    @property
    def _cached_op_args(self) -> Any:
        """Its parameters, whose arrays an ``export`` of Gluon's writes for one of the user's."""
        entries = self.graphopt_state.compiled.entries
        if self.__dict__.get("_cached_graph") or not entries:
            return self.__dict__.get("_cached_op_args", [])
        known = self.collect_params()  # type: ignore[attr-defined]
        names = entries[-1].traced.returned.list_inputs()
        return [(False, known[name]) for name in names if name in known]

    @_cached_op_args.setter
    def _cached_op_args(self, arguments: Any) -> None:
        self.__dict__["_cached_op_args"] = arguments

    def _graphopt_noted(self, name: str, which: str) -> Any:
        """What MXNet noted of the user's Block, or else what was traced last."""
        own = self.__dict__.get(name)
        entries = self.graphopt_state.compiled.entries
        return getattr(entries[-1].traced, which) if own is None and entries else own
