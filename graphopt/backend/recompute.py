"""A training step within a memory budget: marks for MXNet's executor to compute values again.

MXNet computes again, in backward, what is marked ``__force_mirroring__``. Which marks bring what is
asked of MXNet itself: an executor is bound with them, which takes milliseconds and touches no
memory, and lists what it planned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphopt.analysis.effects import is_pure
from graphopt.backend.costs import measure_costs
from graphopt.backend.documents import document_of, symbol_of
from graphopt.backend.equal_heads import tell_apart
from graphopt.backend.order import Names, in_order, other_orders
from graphopt.backend.step import MATCHES, bind, watch_gradient
from graphopt.cached import cached_property
from graphopt.compat import import_mxnet
from graphopt.errors import BudgetError
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, Node
from graphopt.ir.ops import canonical
from graphopt.ir.types import dtype_name
from graphopt.memory.listing import allocated, repeated
from graphopt.memory.recompute import Cost, Plan, Search, Work
from graphopt.memory.sizes import print_size
from graphopt.memory.training import backward_reads, training_graph

_MARK = "__force_mirroring__"
_KEPT = "__graphopt_kept__"
_MIB = 1 << 20
_NOTHING: frozenset[str] = frozenset()
#: Operators that update their states in backward only, and compute the same again, by device.
#: On GPUs cuDNN updates those of BatchNorm in forward.
_REPEATABLE = {"cpu": frozenset({"BatchNorm", "graphopt_batch_norm"})}
#: Where nobody reads the output, as of some repetitions, MXNet refuses to run these.
_REFUSED = frozenset(
    {
        "BilinearSampler",
        "Convolution_v1",
        "Crop",
        "Embedding",
        "GridGenerator",
        "_contrib_DeformableConvolution",
        "_contrib_ModulatedDeformableConvolution",
        "_contrib_MultiProposal",
        "_contrib_Proposal",
        "_image_to_tensor",
        "_np_diag",
        "_np_diagflat",
        "_np_diagonal",
        "_np_moveaxis",
        "_npi_diag_indices_from",
        "_npi_pad",
        "diag",
        "hard_sigmoid",
        "pick",
    }
)
#: Of these it does not compute the statistics then that their gradient reads.
_UNREPEATABLE = _REFUSED | {"LayerNorm", "GroupNorm", "moments"}
#: These it refuses where oneDNN does not run them, which has no other floats than these.
_ONEDNN = frozenset({"Convolution", "Deconvolution", "Pooling"})
_ONEDNN_DTYPES = frozenset({"float32", "bfloat16"})


@dataclass(frozen=True)
class Setting:
    """What MXNet's planner goes by: ``match`` as in :func:`bind`, and the order of operators.

    ``order`` has their names; empty: MXNet's own order.
    """

    match: int
    order: Names = ()


@dataclass(frozen=True)
class Fitted:
    """A training graph as it keeps within its budget.

    Attributes:
        symbol: with marks, in its order.
        plan: what is marked, and what that comes to.
        plain: the plan without marks, in MXNet's own order.
        held: bytes of inputs, parameters, states and gradients, which no plan changes.
        forward: seconds of the forward, by its operators.
        operators: how many there are.
        setting: of MXNet's planner.
    """

    symbol: Any
    plan: Plan
    plain: Plan
    held: int
    forward: float
    operators: int
    setting: Setting

    def __str__(self) -> str:
        """What was done, as ``explain()`` tells it."""
        after, before = (print_size(self.held + p.cost.nbytes) for p in (self.plan, self.plain))
        covered = f"{print_size(self.held)} of it for inputs, parameters, states and gradients"
        if self.plan is self.plain:
            return f"a step takes {after} ({covered}), and keeps all values"
        done = ["operators run in another order"] if self.setting.order else []
        if self.plan.marks:
            again = len(self.plan.cost.repeated)
            share = self.plan.seconds / self.forward if self.forward else 0.0
            done.append(
                f"{again} of {self.operators} operators are computed again in backward,"
                f" {share:.0%} of the time of forward"
            )
        return f"a step takes {after} ({covered}) instead of {before}: {', and '.join(done)}"


class StepMemory:
    """Plans for the training step of one graph on one context.

    Args:
        graph: lowered for training.
        symbol: of the graph.
        arrays: all it reads, by name.
        gradients: arrays for those that are wanted, by name of the argument.
        ctx: where it runs.
    """

    def __init__(
        self,
        graph: Graph,
        symbol: Any,
        arrays: Mapping[str, Any],
        gradients: Mapping[str, Any],
        ctx: Any,
    ) -> None:
        """Nothing is measured yet."""
        self._graph, self._symbol, self._arrays, self._ctx = graph, symbol, arrays, ctx
        self._document = document_of(symbol)
        self._names: list[str] = symbol.list_arguments()
        self._settings = [Setting(match) for match in MATCHES]
        self._gradients = gradients
        # An array may have several names.
        held = {id(array): array for array in (*arrays.values(), *gradients.values())}
        self.held = sum(map(_nbytes, held.values()))

    @cached_property
    def search(self) -> Search:
        """Over this graph; operators that were not measured before are measured now."""
        self._try_orders()
        plain = Plan(_NOTHING, self._evaluate(_NOTHING), 0.0)
        return Search(self._work, self._evaluate, {_NOTHING: plain})

    @cached_property
    def _work(self) -> list[Work]:
        seconds = measure_costs(self._graph, self._symbol, self._arrays, self._ctx)
        return _work_of(self._graph, seconds, self._ctx.device_type)

    @cached_property
    def _plain(self) -> Plan:
        return Plan(_NOTHING, self._evaluate(_NOTHING), 0.0)

    def fit(self, budget: int | None) -> Fitted:
        """Marks so that a step takes at most ``budget`` bytes, at the least time.

        Raises:
            BudgetError: there are none; the message has the least that is possible.
        """
        plain = self._plain
        if budget is None or self.held + plain.cost.nbytes <= budget:
            setting = self._settings[plain.cost.setting]
            return Fitted(self._symbol, plain, plain, self.held, 0.0, 0, setting)
        plan = self.search.plan(budget - self.held)
        if plan is None:
            least = self.held + self.search.least().cost.nbytes
            raise BudgetError(
                f"a training step of {self._graph.name!r} cannot run in {print_size(budget)}: the"
                f" least is {print_size(least, up=True)}, of which {print_size(self.held)} are"
                " inputs, parameters and their gradients"
            )
        forward = sum(one.seconds for one in self._work)
        setting = self._settings[plan.cost.setting]
        symbol = self._marked(plan.marks, setting.order)
        return Fitted(symbol, plan, plain, self.held, forward, len(self._work), setting)

    def _try_orders(self) -> None:
        """Take up the orders that need the least memory, without marks and with all there can be.

        Only where that is less than in MXNet's own order; of most graphs there are none.
        """
        others = other_orders(self._graph)
        for marks in (_NOTHING, frozenset(one.name for one in self._work if one.can_repeat)):
            least = self._evaluate(marks).nbytes
            better: list[Setting] = []
            for order in others:
                settings = [Setting(match, order) for match in MATCHES]
                try:
                    nbytes = min(self._cost(marks, setting).nbytes for setting in settings)
                except import_mxnet().MXNetError:
                    continue  # MXNet merges equal operators, and then these wait for each other
                if nbytes < least:
                    least, better = nbytes, settings
            self._settings += better

    @cached_property
    def _reads(self) -> dict[str, frozenset[str]]:
        """Of each operator, those whose outputs its gradient reads, but for itself."""
        shapes = {name: tuple(array.shape) for name, array in self._arrays.items()}
        dtypes = {name: dtype_name(array.dtype) for name, array in self._arrays.items()}
        # A step that nobody differentiates is bound with a gradient all the same.
        requests = dict.fromkeys(self._gradients or self._names[-1:], "write")
        graph = training_graph(self._symbol, shapes, dtypes, requests, self._ctx)
        return {
            name: frozenset(graph.steps[entry.step].of for entry in entries if entry.step >= 0)
            - {name}
            for name, entries in backward_reads(graph).items()
        }

    def _marked(self, marks: frozenset[str], order: Names) -> Any:
        if not marks and not order:
            return self._symbol
        able = {one.name for one in self._work if one.can_repeat} if marks else set()
        kept = {name for name in able - marks if marks & self._reads.get(name, frozenset())}
        document = marked(self._document, marks, kept) if marks else self._document
        for node in document["nodes"]:
            if _KEPT in node.get("attrs", {}):
                watch_gradient(node["op"])
        if order:
            # What waits for another would make MXNet compute that again, too.
            document = in_order(document, order, free=marks | kept)
        return symbol_of(document)

    def _evaluate(self, marks: frozenset[str]) -> Cost:
        found = []
        for number, setting in enumerate(self._settings):
            cost = self._cost(marks, setting)
            found.append(Cost(cost.nbytes, cost.repeated, number))
        return min(found, key=lambda cost: cost.nbytes)

    def _cost(self, marks: frozenset[str], setting: Setting) -> Cost:
        symbol = self._marked(marks, setting.order)
        arguments = {n: self._arrays[n] for n in self._names}
        states = {n: self._arrays[n] for n in symbol.list_auxiliary_states()}
        executor = bind(symbol, self._ctx, arguments, self._gradients, states, match=setting.match)
        listing = executor.debug_str()
        # MXNet rounds down.
        return Cost((allocated(listing) + 1) * _MIB, repeated(listing))


def with_distinct_outputs(symbol: Any) -> Any:
    """A symbol none of whose outputs is another's value.

    MXNet's executor takes the gradient of one of several outputs that are the same value, and
    forgets those of the others. Behind an identity they are values of their own. Equal nodes are
    marked as well, which it would take for one (:func:`tell_apart`).
    """
    document = document_of(symbol)
    nodes, heads = document["nodes"], document["heads"]
    seen: set[tuple[int, int]] = set()
    for at, (source, out, *_) in enumerate(heads):
        if (source, out) in seen:
            name = f"{nodes[source]['name']}_again{at}"
            nodes.append({"op": "_copy", "name": name, "inputs": [[source, out, 0]]})
            heads[at] = [len(nodes) - 1, 0, 0]
        seen.add((source, out))
    if not tell_apart(nodes, heads) and len(seen) == len(heads):
        return symbol
    document.pop("node_row_ptr", None)
    return symbol_of(document)


def marked(
    document: Mapping[str, Any], marks: Collection[str], kept: Collection[str]
) -> dict[str, Any]:
    """Symbol JSON in which nodes are to be computed again.

    MXNet repeats a node for readers that are marked, too; the gradient of one that is not marked
    reads, and so keeps, what that one read. So what is to be kept, but not for the sake of its own
    gradient, is marked as well and handed on by an identity that is not. Its memory is the same.

    Args:
        document: Symbol JSON.
        marks: nodes whose outputs are not kept.
        kept: nodes of the others that are to be marked.
    """
    nodes: list[dict[str, Any]] = []
    place: dict[int, int] = {}  # of a node
    handed: dict[tuple[int, int], int] = {}  # of the identity behind an output
    read = {(source, out) for node in document["nodes"] for source, out, *_ in node["inputs"]}

    def entry(source: int, out: int, *more: int) -> list[int]:
        if (source, out) in handed:
            return [handed[source, out], 0, 0]
        return [place[source], out, *more]

    for number, node in enumerate(document["nodes"]):
        place[number] = len(nodes)
        is_kept = node["name"] in kept and node["op"] != "null"
        more: dict[str, Any] = {"inputs": [entry(*source) for source in node["inputs"]]}
        if node.get("control_deps"):
            more["control_deps"] = [place[before] for before in node["control_deps"]]
        if is_kept or (node["name"] in marks and node["op"] != "null"):
            more["attrs"] = {**node.get("attrs", {}), _MARK: "True"} | (
                {_KEPT: "True"} if is_kept else {}
            )
        nodes.append(node | more)
        for out in sorted(out for source, out in read if is_kept and source == number):
            handed[number, out] = len(nodes)
            name = f"{node['name']}_kept{out}"
            nodes.append({"op": "_copy", "name": name, "inputs": [[place[number], out, 0]]})
    changed = {
        "nodes": nodes,
        "arg_nodes": [place[number] for number in document["arg_nodes"]],
        "heads": [[place[head[0]], *head[1:]] for head in document["heads"]],
    }
    rest = {key: value for key, value in document.items() if key != "node_row_ptr"}
    return rest | changed


def _work_of(graph: Graph, seconds: Mapping[str, float], device: str) -> list[Work]:
    repeatable = _REPEATABLE.get(device, frozenset())
    results = {value.node for value in graph.outputs}
    place: dict[int, int] = {}
    found: list[Work] = []
    for node in graph:
        if node.is_input or node.op == CONSTANT:
            continue
        sources = sorted({place[v.node] for v in node.inputs if v.node in place})
        again = is_pure(node, training=True) or canonical(node.op) in repeatable
        place[node.id] = len(found)
        found.append(
            Work(
                node.name,
                sum(kind.nbytes or 0 for kind in node.types),
                seconds.get(node.name, 0.0),
                again and _runs_unread(node) and node.id not in results,
                tuple(sources),
            )
        )
    return found


def _runs_unread(node: Node) -> bool:
    """Whether an operator computes what its gradient reads, also if nobody reads its output."""
    op = canonical(node.op)
    if op == "UpSampling":
        return node.attrs.get("sample_type") == "nearest"  # the other kind is a Deconvolution
    return op not in _UNREPEATABLE and (op not in _ONEDNN or node.type.dtype in _ONEDNN_DTYPES)


def _nbytes(array: Any) -> int:
    return int(array.size * np.dtype(array.dtype).itemsize)
