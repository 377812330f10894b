"""How each kind of operator call is recorded: decided once per operator, attributes and types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphopt.analysis.sparse import makes_sparse
from graphopt.batching import special
from graphopt.batching.fixed import is_parameter, make_fixed
from graphopt.batching.kinds import Kind, kind
from graphopt.batching.lazy import Lazy
from graphopt.batching.library import FOREIGN, Entry, Library
from graphopt.batching.native.programs import source_of
from graphopt.batching.numbers import number_as_row
from graphopt.batching.operators import handle, infer, name_of
from graphopt.batching.recorder import TRAINING, Recorder
from graphopt.batching.rules import NotRowwiseError, roles
from graphopt.batching.signature import Signature, broadcasting, run_operator
from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError
from graphopt.ir.ops import OpInfo, info, is_known

_BATCH_NORMS = ("BatchNorm", "BatchNorm_v1", "CuDNNBatchNorm", "_contrib_BatchNormWithReLU")
#: As many arrays that are no parameters as are taken for weights, by operator and types.
_MAX_WEIGHTS = 32


def make_entry(
    library: Library,
    recorder: Recorder,
    operator: int,
    args: Sequence[Any],
    attrs: Mapping[str, Any],
) -> tuple[Entry, bool]:
    """The entry for a call, and whether it serves for other calls with the same key.

    Raises:
        MXNetError: the arguments do not fit the operator.
        UnsupportedError: the call is refused in a batch.
    """
    op = name_of(operator)
    facts = info(op, dict(attrs))
    training = bool(recorder.state & TRAINING)
    _refuse_statistics(op, attrs, training=training)
    if not args:
        return _creation(library, facts, operator, attrs)
    if any(not isinstance(a, Lazy) and recorder.real(a).tag is FOREIGN for a in args):
        why = f"{op}: an argument is sparse, empty, or of mx.np"
        return _eager(library, operator, attrs, why), True
    # In inference BatchNorm writes nothing, and its rule knows the difference.
    if not is_known(op) or (facts.writes(len(args)) and op not in _BATCH_NORMS):
        why = f"{op}: may write to its arguments"
        return _eager(library, operator, attrs, why, writes=True), True
    if makes_sparse(op, attrs):
        why = f"{op}: makes a sparse array"
        return _eager(library, operator, attrs, why), True
    constant = make_fixed(library, recorder, facts, operator, args, attrs)
    if constant is not None:
        return constant
    numbered = number_as_row(library, recorder, op, args, attrs)
    if numbered is not None:
        return numbered, False
    handler = special.find(op, attrs, args)
    if handler is not None:
        return handler(library, recorder.state, op, operator, dict(attrs)), True
    try:
        return _rows(library, recorder, op, operator, args, attrs)
    except NotRowwiseError as error:
        return single(library, recorder.state, op, operator, attrs, str(error)), True


def _refuse_statistics(op: str, attrs: Mapping[str, Any], *, training: bool) -> None:
    fixed = str(attrs.get("use_global_stats", False)).lower() in ("true", "1")
    if op in _BATCH_NORMS and training and not fixed:
        raise UnsupportedError(
            f"{op} in training takes statistics over the samples of one call, which batching would"
            " change: use use_global_stats=True, LayerNorm, or graphopt.batch(net, debug=True)"
        )


def _creation(
    library: Library, facts: OpInfo, operator: int, attrs: Mapping[str, Any]
) -> tuple[Entry, bool]:
    """Without inputs: a constant is made once per batch or less, random numbers for every call."""
    run = run_operator(operator, [], list(attrs), list(attrs.values()))

    def make() -> Any:
        return run(())[0]

    first = make() if facts.pure else None
    if first is None or not first.shape or not first.shape[0]:
        return lambda recorder, args: make(), True
    key = object()
    with library.lock:
        library.constants.get(key, lambda: first)

    def entry(recorder: Recorder, args: Sequence[Any]) -> Lazy:
        found = recorder.created.get(key)
        if found is None:
            with library.lock:
                array = library.constants.get(key, make)
            found = recorder.created[key] = recorder.rows_of(array)
            found.array = recorder.owned[id(array)] = array
        return found

    return entry, True


def _eager(
    library: Library, operator: int, attrs: Mapping[str, Any], why: str, *, writes: bool = False
) -> Entry:
    """Waits for the arguments and runs at once."""
    invoke = import_mxnet().ndarray._internal._imperative_invoke
    names, texts = list(attrs), [str(v) for v in attrs.values()]

    def entry(recorder: Recorder, args: Sequence[Any]) -> Any:
        library.note(why)
        if writes:
            recorder.before_write()
        return invoke(operator, args, names, texts, None, False, False)

    return entry


def _rows(
    library: Library,
    recorder: Recorder,
    op: str,
    operator: int,
    args: Sequence[Any],
    attrs: Mapping[str, Any],
) -> tuple[Entry, bool]:
    """One call for all rows of all samples."""
    shapes = [tuple(a.shape) for a in args]
    kinds = [a.kind if isinstance(a, Lazy) else recorder.real(a).kind for a in args]
    training = bool(recorder.state & TRAINING)
    found = roles(op, attrs, shapes, training=training)
    widened = broadcasting(op)
    if widened is not None and len({len(shape) for shape in shapes}) > 1:
        return _uneven_ranks(library, recorder, op, operator, args, attrs)
    shared = [at for at, role in enumerate(found) if role == "s"]
    fresh = False
    for at in shared:
        if isinstance(args[at], Lazy):
            return _weights_per_sample(library, recorder, op, operator, attrs, shared)
        if recorder.real(args[at]).tag.shared is None:
            fresh = True
            if not is_parameter(recorder, args[at]):
                _count_weights(library, (op, tuple(kinds), recorder.state))
            library.share(recorder, args[at])
    outs = _outs(operator, attrs, shapes, kinds, found)
    tags = [recorder.real(a).tag if at in shared else None for at, a in enumerate(args)]
    template = [None if tag is None else tag.shared for tag in tags]
    positions = [at for at in range(len(args)) if at not in shared]
    names, values = list(attrs), list(attrs.values())
    is_pair = widened is not None and len(args) == 2
    code = handle(widened) if is_pair and widened else operator
    signature = library.signature(
        (op, tuple(names), tuple(map(str, values)), tuple(kinds), tuple(map(id, template))),
        op,
        len(positions),
        outs,
        recorder.state,
        run_operator(code, template, names, values),
        can_broadcast=is_pair,
        source=source_of(widened if is_pair and widened else op, attrs, template, kinds),
    )
    check = _mismatch(operator, attrs)
    stretches = is_pair and op.startswith("broadcast_")
    if len(positions) == 1:
        return Unary(signature, positions[0]), not fresh
    if stretches:
        return _pair(signature, check), not fresh
    return _several(signature, positions, check), not fresh


def _count_weights(library: Library, key: Any) -> None:
    """Raise where each sample brings its own: each would be kept, with a group by itself."""
    library.numbers[key] += 1
    if library.numbers[key] > _MAX_WEIGHTS:
        raise NotRowwiseError("its weights differ from sample to sample")


def by_rows(
    library: Library,
    recorder: Recorder,
    op: str,
    operator: int,
    args: Sequence[Any],
    attrs: Mapping[str, Any],
) -> Entry:
    """The entry of an operator of which it is known that rows are independent."""
    return _rows(library, recorder, op, operator, args, attrs)[0]


def _outs(
    operator: int,
    attrs: Mapping[str, Any],
    shapes: Sequence[tuple[int, ...]],
    kinds: Sequence[Kind],
    found: str,
) -> list[Kind]:
    out_shapes, out_dtypes = infer(operator, attrs, shapes, kinds)
    rows = max(shape[0] for shape, role in zip(shapes, found, strict=True) if role == "r")
    if not out_shapes or any(not s or s[0] != rows for s in out_shapes):
        raise NotRowwiseError("its output does not have the rows of its input")
    ctx = kinds[0].ctx
    return [kind(s[1:], d, ctx) for s, d in zip(out_shapes, out_dtypes, strict=True)]


class Unary:
    """The entry of a call with one argument that has rows, which is at ``position``."""

    __slots__ = ("position", "signature")

    def __init__(self, signature: Signature, position: int) -> None:
        self.signature, self.position = signature, position

    def __call__(self, recorder: Recorder, args: Sequence[Any]) -> Any:
        """Record a call; its other arguments are in the signature."""
        x = args[self.position]
        if type(x) is not Lazy or x.recorder is not recorder:
            x = recorder.rows_of(x)
        return recorder.unary(self.signature, x)


def _pair(signature: Any, mismatch: Any) -> Entry:
    """Two arguments, one of which may be stretched along axis 0."""

    def entry(recorder: Recorder, args: Sequence[Any]) -> Any:
        x, y = args
        if type(x) is not Lazy or x.recorder is not recorder:
            x = recorder.rows_of(x)
        if type(y) is not Lazy or y.recorder is not recorder:
            y = recorder.rows_of(y)
        rows, other = x.rows, y.rows
        if rows != other:
            if rows != 1 and other != 1:
                mismatch(args)
            rows = max(rows, other)
        return recorder.join(signature, (x, y), rows)

    return entry


def _several(signature: Any, positions: Sequence[int], mismatch: Any) -> Entry:
    def entry(recorder: Recorder, args: Sequence[Any]) -> Any:
        values = [recorder.rows_of(args[at]) for at in positions]
        rows = values[0].rows
        for value in values:
            if value.rows != rows:
                mismatch(args)
        return recorder.join(signature, values, rows)

    return entry


def _mismatch(operator: int, attrs: Mapping[str, Any]) -> Any:
    """Raises MXNet's own error about shapes that do not fit."""

    def mismatch(args: Sequence[Any]) -> None:
        shapes = [tuple(a.shape) for a in args]
        infer(operator, attrs, shapes, [special.kind_of_any(a) for a in args])
        raise ValueError(f"{name_of(operator)} was given arrays of shapes {shapes}")

    return mismatch


def _uneven_ranks(
    library: Library,
    recorder: Recorder,
    op: str,
    operator: int,
    args: Sequence[Any],
    attrs: Mapping[str, Any],
) -> tuple[Entry, bool]:
    """Broadcasting aligns the last axes: the shorter one must say nothing about rows."""
    rank = max(len(a.shape) for a in args)
    low = next(at for at, a in enumerate(args) if len(a.shape) < rank)
    names, values = list(attrs), list(attrs.values())
    if not isinstance(args[low], Lazy):
        # A real array: with axes of 1 in front it is one row, the same for all samples.
        def widened(recorder: Recorder, given: Sequence[Any]) -> Any:
            pair = list(given)
            pair[low] = recorder.padded(given[low], rank)
            return recorder.call(operator, pair, names, values)

        return widened, True
    if tuple(args[low].shape) != (1,):
        raise NotRowwiseError("its arguments differ in rank")

    def scalar(recorder: Recorder, given: Sequence[Any]) -> Any:
        if given[low].shape != (1,):
            return fallback(recorder, given)
        pair = list(given)
        shape = (1,) * rank
        pair[low] = recorder.call(handle("Reshape"), [given[low]], ["shape"], [shape])
        return recorder.call(operator, pair, names, values)

    fallback = single(library, recorder.state, op, operator, attrs, "its arguments differ in rank")
    return scalar, True


def _weights_per_sample(
    library: Library,
    recorder: Recorder,
    op: str,
    operator: int,
    attrs: Mapping[str, Any],
    shared: Sequence[int],
) -> tuple[Entry, bool]:
    """A weight that was computed: a constant is as good as a real array, others are not."""
    fallback = single(
        library, recorder.state, op, operator, attrs, "its weights are computed per sample"
    )
    names, values = list(attrs), list(attrs.values())

    def entry(recorder: Recorder, args: Sequence[Any]) -> Any:
        given = list(args)
        for at in shared:
            if type(given[at]) is Lazy:
                if given[at].array is None or given[at].depth:
                    return fallback(recorder, args)
                given[at] = given[at].array
        return recorder.call(operator, given, names, values)

    return entry, True


def single(
    library: Library, state: int, op: str, operator: int, attrs: Mapping[str, Any], why: str
) -> Entry:
    """Recorded like any other, but run call by call."""
    by_shapes: dict[Any, Any] = {}
    names, values = list(attrs), list(attrs.values())
    waits = _eager(library, operator, attrs, f"{op}: {why}; its output's shape is not known before")

    def entry(recorder: Recorder, args: Sequence[Any]) -> Any:
        given = [special.together(recorder, recorder.rows_of(a)) for a in args]
        key = tuple((x.kind, x.rows) for x in given)
        found = by_shapes.get(key)
        if found is None:
            found = by_shapes[key] = _single_signature(given)
        if found == "waits":
            return waits(recorder, args)
        library.note(f"{op}: {why}")
        signature, rows = found
        return recorder.join_single(signature, given, rows)

    def _single_signature(given: Sequence[Lazy]) -> Any:
        kinds = [x.kind for x in given]
        shapes, dtypes = infer(operator, attrs, [x.shape for x in given], kinds)
        if not shapes or any(not s or 0 in s for s in shapes) or len({s[0] for s in shapes}) > 1:
            return "waits"
        outs = [kind(s[1:], d, kinds[0].ctx) for s, d in zip(shapes, dtypes, strict=True)]
        key: tuple[Any, ...] = (
            "single",
            op,
            tuple(names),
            tuple(map(str, values)),
            tuple(x.shape for x in given),
        )
        key += tuple(kinds)
        run = run_operator(operator, [None] * len(given), names, values)
        made = library.signature(key, op, len(given), outs, state, run, form="single")
        return made, shapes[0][0]

    return entry
