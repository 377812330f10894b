"""``graphopt.load``: a saved Symbol model, optimized and callable."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt.backend.findings import Findings
from graphopt.backend.symbol import first_line
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.frontend.symbol import data_names, lift_symbol
from graphopt.ir.graph import Graph
from graphopt.nn.building import build_graph
from graphopt.nn.built import Built
from graphopt.nn.config import Config
from graphopt.nn.context_pools import ContextPools
from graphopt.nn.following import Following
from graphopt.pipeline.base import Mode
from graphopt.pipeline.manager import Receipt

if TYPE_CHECKING:
    from graphopt.memory.memory_plan import MemoryPlan

Signature = tuple[Any, ...]


class Model:
    """A Symbol with parameters that compiles itself per input signature.

    ``model(x)`` or ``model(data=x)`` takes NDArrays or numpy arrays and returns an NDArray, or a
    list of them when the Symbol has several outputs. Under ``mx.autograd.record()`` the training
    graph runs, and gradients reach the arrays in ``params`` that have ``attach_grad()``.
    """

    def __init__(
        self,
        symbol: Any,
        params: Mapping[str, Any],
        config: Config,
        shapes: Mapping[str, Sequence[int]] | None = None,
        name: str = "",
    ) -> None:
        """Keep the parts; nothing is compiled before the first call."""
        mx = import_mxnet()
        self.symbol = symbol
        self.params: dict[str, Any] = {
            key: value
            if isinstance(value, mx.nd.NDArray)
            else mx.nd.array(value, dtype=value.dtype)
            for key, value in params.items()
        }
        self.config = config
        self._name = name
        self._inputs: list[str] = symbol.list_inputs()
        _check_known(self.params, self._inputs)
        self._forget()
        for key in shapes or {}:
            _check_known({key: None}, self._inputs)
        self._data = list(shapes) if shapes else self._guess_data()

    def _forget(self) -> None:
        """Nothing is compiled."""
        self._memory = ContextPools(self.config.max_shapes)
        self._compiled: dict[Signature, tuple[Graph, Built | Following]] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """What was given: copies compile anew."""
        own = ("_memory", "_compiled", "_lock")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Take over what was given."""
        self.__dict__.update(state)
        self._forget()

    @property
    def data(self) -> tuple[str, ...]:
        """Names of the inputs a call gives, in the order of positional arguments."""
        return tuple(self._data)

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        """Run.

        Raises:
            InputError: an input is unknown or missing, a parameter has no value or another shape
                than the inputs call for.
        """
        mx = import_mxnet()
        if len(args) > len(self._data):
            raise InputError(f"{len(args)} inputs given, the model takes {self._data}")
        given = dict(zip(self._data, args, strict=False)) | inputs
        _check_known(given, self._inputs)
        arrays = {name: _array(mx, value) for name, value in given.items()}
        if not arrays:
            raise InputError(f"no input given; the model takes {self._data}")
        found = self.built(arrays).run(arrays)
        return found[0] if len(found) == 1 else found

    def built(self, arrays: Mapping[str, Any]) -> Built | Following:
        """What runs on such NDArrays, by name, as autograd's state is now; compiled if it was not.

        Raises:
            InputError: a parameter has no value, or another shape than the inputs call for.
        """
        autograd = import_mxnet().autograd
        differentiating = autograd.is_recording() or autograd.is_training()
        mode = self.config.graph_mode(differentiating=differentiating)
        key = _key(mode, arrays, next(iter(arrays.values())).ctx)
        if key not in self._compiled:
            with self._lock:
                self._add(key, arrays)
        return self._compiled[key][1]

    def receipts(self) -> dict[str, tuple[Receipt, ...]]:
        """Per compiled signature (mode and input types), a receipt per pass."""
        return {_title(key): made.result.receipts for key, (_, made) in self._compiled.items()}

    def graph(self) -> Graph:
        """The optimized graph compiled last.

        Raises:
            InputError: the model was not called yet.
        """
        return self._last()[1].result.graph

    def memory_plan(self) -> MemoryPlan:
        """The memory plan of what runs of the graph compiled last; nothing is run.

        Of a training step with ``memory=`` or ``max_shapes=`` that is the step as planned last: in
        its order, and with all that is computed again (phase ``recompute``). Print ``.report()``
        for its peak, the tensors there, bytes by layer, and live bytes over time.

        Raises:
            InputError: nothing was compiled yet, or MXNet cannot bind it for training.
        """
        return self._last()[1].lowered.memory_plan()

    def explain(self) -> str:
        """What was done, on which engine it runs, and why not more was done."""
        from graphopt.nn.explain import explain_result

        parts = [
            "\n".join(
                explain_result(original, made.result, made.lowered.choice, _title(key), made.told)
            )
            for key, (original, made) in self._compiled.items()
        ]
        return "\n".join(parts) or "nothing compiled yet: it happens at the first call"

    def report(self, path: str | Path) -> Path:
        """Write an HTML report about the graph compiled last; returns the path."""
        from graphopt.api.reporting import write_report

        original, made = self._last()
        mode = next(reversed(self._compiled))[0]
        return write_report(
            original,
            self.config.pipeline(mode),
            path,
            mode=mode,
            frozen=made.frozen,
            title=original.name,
            step=made.lowered.step_plan(),
        )

    def export(self, path: str | Path, epoch: int = 0, *, kernels: bool = False) -> None:
        """Write the graph compiled last as ``path-symbol.json`` and ``path-<epoch>.params``.

        Args:
            path: prefix of the files.
            epoch: a number for the name of the parameters.
            kernels: keep fused kernels; such files load in processes that imported graphopt.

        Raises:
            InputError: the model was not called yet.
        """
        from graphopt.nn.exporting import write

        lowered = self._last()[1].lowered
        write(str(path), epoch, lowered.exported(kernels=kernels), lowered.parameters())

    def _last(self) -> tuple[Graph, Built | Following]:
        if not self._compiled:
            raise InputError("the model has no compiled graph yet: call it once first")
        return list(self._compiled.values())[-1]

    def _guess_data(self) -> list[str]:
        aux = set(self.symbol.list_auxiliary_states())
        if self.params:
            return [n for n in self._inputs if n not in self.params and n not in aux]
        return data_names(self.symbol)

    def _add(self, key: Signature, arrays: Mapping[str, Any]) -> None:
        """Compile for a signature, once the memory of the largest shapes is taken."""
        mode, ctx, _ = key
        if key not in self._compiled and mode == "training" and self.config.plans_memory:
            self._prepare_memory(arrays, ctx)
        if key not in self._compiled:
            self._compiled[key] = self._compile(mode, arrays, ctx)

    def _compile(
        self, mode: Mode, arrays: Mapping[str, Any], ctx: Any
    ) -> tuple[Graph, Built | Following]:
        params = {name: _on(array, ctx) for name, array in self._typed_params().items()}
        shapes = {n: tuple(a.shape) for n, a in (params | dict(arrays)).items()}
        dtypes = {n: np.dtype(a.dtype).name for n, a in (params | dict(arrays)).items()}
        graph = lift_symbol(self.symbol, shapes, dtypes, data=set(self._data), name=self._name)
        pools = self._memory.pools(ctx) if mode == "training" else None
        akin = self._akin(_key(mode, arrays, ctx))
        made = build_graph(self.config, graph, params, arrays, ctx, mode, akin=akin, pools=pools)
        return graph, made

    def _akin(self, key: Signature) -> list[Findings]:
        """What was measured for signatures that differ in shapes only."""
        return [
            made.findings
            for other, (_, made) in self._compiled.items()
            if other[:2] == key[:2] and _kinds(other) == _kinds(key)
        ]

    def _prepare_memory(self, arrays: Mapping[str, Any], ctx: Any) -> None:
        """Take the memory of the largest shapes before the first step, and refuse larger ones."""
        largest = self._memory.admit(arrays, ctx)
        if largest is None:
            return
        try:
            compiled = self._compile("training", largest, ctx)
            compiled[1].lowered.reserve(largest)
        except Exception as error:
            self._memory.forget(largest, ctx)
            if isinstance(error, InputError):
                raise self._memory.explained(error, largest) from None
            raise
        self._compiled[_key("training", largest, ctx)] = compiled

    def _typed_params(self) -> dict[str, Any]:
        return {name: array for name, array in self.params.items() if name in self._inputs}


def load(
    symbol_json: str | Path,
    params: str | Path | Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    passes: str = "default",
    check: bool = False,
    precise: bool = False,
    strict: bool = False,
) -> Model:
    """Load a saved model and optimize it for inference.

    Args:
        symbol_json: path of a ``*-symbol.json`` file of any MXNet version.
        params: path of a ``.params`` file, or value (NDArray or numpy) per name; names may carry
            MXNet's ``arg:`` and ``aux:`` prefixes.
        shapes: names (and shapes) of the data inputs; default: inputs that ``params`` has no value
            for. When given, the model is compiled now rather than at the first call.
        passes: pipeline, as for :func:`graphopt.optimize`.
        check: compare every pass's result with the original.
        precise: no pass may round differently.
        strict: raise where a pass fails.

    Returns:
        A callable :class:`Model`; parameters are frozen.

    Raises:
        ParseError: the symbol file is malformed.
        InputError: the params file cannot be read, or parameters are missing or misshapen.
    """
    from graphopt.frontend.symbol_json import read_symbol

    path = Path(symbol_json)
    symbol = read_symbol(path)
    arrays = params if isinstance(params, Mapping) else read_params(params) if params else {}
    values = {name.split(":", 1)[-1] if ":" in name else name: a for name, a in arrays.items()}
    known = set(symbol.list_inputs())
    # Checkpoints of fine-tuned nets often hold parameters of layers that were cut off.
    values = {name: value for name, value in values.items() if name in known}
    config = Config(passes, "inference", check, precise, strict)
    title = path.name.removesuffix(".json").removesuffix("-symbol")
    model = Model(symbol, values, config, shapes, title)
    if shapes:
        mx = import_mxnet()
        model(**{name: mx.nd.zeros(tuple(shape)) for name, shape in shapes.items()})
    return model


def read_params(path: str | Path) -> dict[str, Any]:
    """Arrays of a ``.params`` file by name.

    Raises:
        InputError: the file is missing or is no params file.
    """
    mx = import_mxnet()
    if not Path(path).is_file():
        raise InputError(f"cannot read {str(path)!r}: no such file")
    try:
        found = mx.nd.load(str(path))
    except mx.MXNetError as error:
        raise InputError(f"{str(path)!r} is no MXNet params file: {first_line(error)}") from None
    except UnicodeDecodeError:
        raise InputError(f"{str(path)!r} is no MXNet params file: a name is no text") from None
    if not isinstance(found, dict):
        raise InputError(f"{str(path)!r} holds arrays without names")
    return found


def _array(mx: Any, value: Any) -> Any:
    if isinstance(value, mx.nd.NDArray):
        return value
    array = np.asarray(value)
    return mx.nd.array(array, dtype="float32" if array.dtype == np.float64 else array.dtype)


def _on(array: Any, ctx: Any) -> Any:
    return array if array.ctx == ctx else array.as_in_context(ctx)


def _check_known(given: Mapping[str, Any], inputs: Sequence[str]) -> None:
    for name in given:
        if name not in inputs:
            near = difflib.get_close_matches(name, inputs, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"the model has no input {name!r}{hint}")


def _key(mode: str, arrays: Mapping[str, Any], ctx: Any) -> Signature:
    return (mode, ctx, tuple((n, a.shape, a.dtype) for n, a in arrays.items()))


def _kinds(key: Signature) -> list[tuple[str, Any]]:
    """What a signature says besides shapes."""
    return [(name, dtype) for name, _, dtype in key[2]]


def _title(key: Signature) -> str:
    mode, _, types = key
    inputs = ", ".join(
        f"{name}: {np.dtype(dtype).name}{list(shape)}" for name, shape, dtype in types
    )
    return f"{mode} ({inputs})"
