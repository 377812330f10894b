"""A region of convolutions as a program: what its steps are, and where everything lies.

Values that only another step needs do not exist: sums and activations are computed with the
convolution before them, and what is joined is written to its place at once. Images share one arena
by their lifetimes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from graphopt.ir.node import DATA, Node, Value
from graphopt.ir.types import TensorType
from graphopt.kernels.convolutions.activations import Activation, unary
from graphopt.kernels.convolutions.arena import Buffer, Place
from graphopt.kernels.convolutions.drafts import Draft, finished, pack
from graphopt.kernels.convolutions.program import Program
from graphopt.kernels.convolutions.spec import WINOGRAD, ConvolutionsSpec, is_paired
from graphopt.kernels.convolutions.steps import Combination, Kind, Step
from graphopt.kernels.convolutions.taking import Taking
from graphopt.kernels.convolutions.transposed import made_by_convolution, transposed
from graphopt.kernels.convolutions.windows import (
    Images,
    Window,
    bundle,
    groups_of,
    has_algorithm,
    is_adaptive,
    is_concat,
    is_convolution,
    is_deconvolution,
    is_dense,
    is_depthwise,
    is_gate,
    is_narrow,
    is_pooling,
    is_prelu,
    is_product,
    is_reshape,
    is_sum,
    size_of,
    stretch,
    tiles_of,
    widths,
    window,
)

#: Floats of transformed tiles that are near the processor while they are worked on.
_NEAR = 400_000
#: Tiles of Winograd's that are worth a product.
_FEWEST_TILES = 28
#: Tiles that are multiplied at a time where products are in pairs, on any processor.
_STRIP = 8
#: Blocks of channels of which products of pairs are summed up by themselves.
_PART = 16


def plan(spec: ConvolutionsSpec) -> Program:
    """The program of a region; linear but for the placing of its images."""
    return spec.body.derived(
        f"program of {spec.lanes} lanes, {spec.algorithms}", lambda _: _planned(spec)
    )


def _planned(spec: ConvolutionsSpec) -> Program:
    planner = _Planner(spec)
    planner.walk()
    return planner.program()


class _Planner:
    def __init__(self, spec: ConvolutionsSpec) -> None:
        self.graph, self.lanes = spec.body, spec.lanes
        self.order = self.graph.topological()
        self.number = {node.id: at for at, node in enumerate(self.graph.inputs)}
        convolutions = [node for node in self.order if has_algorithm(node)]
        self.algorithm = {
            node.id: name for node, name in zip(convolutions, spec.algorithms, strict=True)
        }
        self.places: dict[Value, Place] = {}
        self.planar: dict[Value, Place] = {}
        #: What only scales and shifts an input, by what it makes.
        self.scaling: dict[Value, Node] = {}
        self.taking = Taking(self.graph, self.number)
        self.drafts: list[Draft] = []
        self.written = 0
        first = next(n for n in self.graph.inputs if n.op == DATA)
        self.count = self.size(first.out())[0]

    # -- sizes and places ------------------------------------------------------------------------

    def size(self, value: Value) -> Images:
        return size_of(self.graph, value)

    def blocks(self, value: Value) -> int:
        return -(-self.size(value)[1] // self.lanes)

    def place(self, value: Value) -> Place:
        """Where a value lies; decided when it is first asked for."""
        if value not in self.places:
            _, _, height, width = self.size(value)
            blocks = self.blocks(value)
            rows = self.count if self.graph.type_of(value).rank == 2 else 0
            buffer = Buffer(blocks, height, width, self.lanes, rows)
            self.places[value] = Place(buffer, 0, blocks)
        return self.places[value]

    def place_joined(self) -> None:
        """Give what is joined its place in the whole, the outermost first."""
        for node in reversed(self.order):
            if not is_concat(node):
                continue
            whole, block = self.place(node.out()), 0
            for value in node.inputs:
                blocks = self.blocks(value)
                source = self.graph[value.node]
                if value not in self.places and not source.is_input:
                    self.places[value] = Place(whole.buffer, whole.block + block, blocks)
                block += blocks

    def source(self, value: Value) -> Place:
        """The place of a value that a step reads; inputs are loaded when first read."""
        place = self.place(value)
        node = self.graph[value.node]
        if node.is_input and value not in self.taking.ready:
            self.taking.ready.add(value)
            channels = self.size(value)[1]
            step = Step(Kind.LOAD, self.count, array=self.number[node.id], channels=channels)
            self.drafts.append(Draft(step, place))
        return place

    def planar_source(self, value: Value, halo: int) -> Place:
        """An input with all channels as planes, for a convolution that has few of them.

        It may be scaled and shifted on the way.
        """
        if value not in self.planar:
            _, channels, height, width = self.size(value)
            place = Place(Buffer(channels, height, width, 1), 0, channels)
            self.planar[value] = place
            scaling = self.scaling.get(value)
            weights, bias = (-1, -1) if scaling is None else self.parameters(scaling)
            read = value if scaling is None else scaling.inputs[0]
            step = Step(
                Kind.LOAD_PLANAR,
                self.count,
                array=self.number[read.node],
                channels=channels,
                filters=channels,
                groups=channels,
                weights=weights,
                bias=bias,
            )
            self.drafts.append(Draft(step, place))
        place = self.planar[value]
        place.buffer.halo = max(place.buffer.halo, halo)
        return place

    # -- steps -----------------------------------------------------------------------------------

    def walk(self) -> None:
        """Make all steps."""
        self.place_joined()
        for node in self.order:
            if node.is_input or node.id in self.taking.done:
                continue
            if is_convolution(node):
                self.convolution(node)
            elif is_deconvolution(node):
                self.deconvolution(node)
            elif is_dense(node):
                self.dense(node)
            elif is_pooling(node):
                self.pooling(node)
            elif is_concat(node):
                self.concat(node)
            elif stretch(node) is not None:
                self.stretch(node)
            else:
                self.combine(node)
        for number, value in enumerate(self.graph.outputs):
            step = Step(Kind.STORE, self.count, array=number, channels=self.size(value)[1])
            self.drafts.append(Draft(step, source=self.source(value)))

    def reads_planes(self, node: Node) -> bool:
        """Whether a convolution reads an input as planes."""
        source = node.inputs[0]
        is_first = self.graph[source.node].is_input or source in self.scaling
        few = 2 * self.size(source)[1] <= self.lanes
        by_sums = self.algorithm[node.id] not in WINOGRAD and groups_of(node) == 1
        return is_first and few and by_sums

    def takes_scaling(self, node: Node) -> bool:
        """Whether a node that scales channels of an input is left to whoever loads that."""
        source, user = node.inputs[0], self.taking.only_user(node.out())
        if not (is_depthwise(self.graph, node) and window(self.graph, node).is_pointwise):
            return False
        if not self.graph[source.node].is_input or user is None or not is_convolution(user):
            return False
        self.scaling[node.out()] = node
        if self.reads_planes(user):
            return True
        del self.scaling[node.out()]
        return False

    def convolution(self, node: Node) -> None:
        if self.takes_scaling(node):
            return
        source = node.inputs[0]
        step, value, added = self.with_weights(node)
        halo = _halo(self.size(source), self.size(node.out()), step.window)
        algorithm, scratch = self.algorithm[node.id], None
        channels, filters = widths(self.graph, node)
        if step.groups > 1 and is_narrow(channels, filters) and channels < self.lanes:
            step = replace(step, kind=Kind.DEPTHWISE)
        elif (together := bundle(step.groups, channels, filters)) > 1:
            step = replace(step, groups=step.groups // together, bundle=together)
        elif algorithm in WINOGRAD:
            halo = 0
            made = self.size(node.out())
            step, scratch = self.winograd(step, made, algorithm)
        elif self.reads_planes(node):
            step = replace(step, is_planar=True)
        elif is_paired(algorithm):
            step = replace(step, is_paired=True)
        if step.is_planar:
            given = self.planar_source(source, halo)
        else:
            given = self.source(source)
            given.buffer.halo = max(given.buffer.halo, halo)
        self.emit(step, value, given, added, scratch)

    def deconvolution(self, node: Node) -> None:
        """A convolution that makes several pixels as channels, and their way to their places."""
        found, algorithm = transposed(node), self.algorithm[node.id]
        given, made = self.size(node.inputs[0]), made_by_convolution(self.graph, node)
        weights, bias = self.parameters(node)
        step = Step(
            Kind.DIRECT,
            self.count,
            weights=weights,
            channels=given[1],
            filters=made[1],
            window=found.window,
            is_paired=is_paired(algorithm),
            transposed=found,
        )
        scratch, source = None, self.source(node.inputs[0])
        if algorithm in WINOGRAD:
            step, scratch = self.winograd(step, made, algorithm)
        else:
            halo = _halo(given, made, found.window)
            source.buffer.halo = max(source.buffer.halo, halo)
        blocks = made[1] // self.lanes
        between = Place(Buffer(blocks, *made[2:], self.lanes), 0, blocks)
        self.drafts.append(Draft(step, between, source, scratch=scratch))
        filters = self.size(node.out())[1]
        window = Window((1, 1), stride=found.stride)
        place = Step(Kind.SHUFFLE, self.count, bias=bias, filters=filters, window=window)
        value, place = self.taking.take_activations(node.out(), place)
        self.emit(place, value, between)

    def dense(self, node: Node) -> None:
        """A matrix times whole images: a convolution as large as they are."""
        step, value, added = self.with_weights(node)
        self.emit(step, value, self.source(node.inputs[0]), added)

    def with_weights(self, node: Node) -> tuple[Step, Value, Place | None]:
        """A step with what it takes along: what it makes, and what it adds."""
        value, other = self.taking.take_sum(node.out())
        weights, bias = self.parameters(node)
        step = Step(
            Kind.DIRECT,
            self.count,
            weights=weights,
            bias=bias,
            channels=self.size(node.inputs[0])[1],
            filters=self.size(node.out())[1],
            groups=groups_of(node),
            window=window(self.graph, node),
        )
        value, step = self.taking.take_activations(value, step)
        return step, value, self.source(other) if other is not None else None

    def parameters(self, node: Node) -> tuple[int, int]:
        """Which inputs of the region have the weights and the bias of a node; -1 if none has."""
        numbers = (self.number[value.node] for value in node.inputs[1:])
        weights, bias = (*numbers, -1)[:2]
        return weights, bias

    def winograd(self, step: Step, made: Images, algorithm: str) -> tuple[Step, Buffer]:
        tile, paired = WINOGRAD[algorithm], is_paired(algorithm)
        given, filters = (-(-size // self.lanes) for size in (step.channels, step.filters))
        tiles = tiles_of(made, step.window.dilation, tile)
        each = (tile + 2) ** 2 * (given + filters) * self.lanes
        most = max(_FEWEST_TILES, _NEAR // each)
        chunk = -(-tiles // -(-tiles // most))
        if paired:
            chunk = -(-chunk // _STRIP) * _STRIP
        parts = -(-given // _PART)
        noted = (1 + parts) * (tile + 2) ** 2 if paired else 0
        odd = 2 * (tile + 2) ** 2 * self.lanes  # see OddLines in winograd.h
        buffer = Buffer(0, 0, 0, self.lanes, scratch=chunk * (each + noted) + odd)
        step = replace(step, kind=Kind.WINOGRAD, is_paired=paired, tile=tile, chunk=chunk)
        return step, buffer

    def pooling(self, node: Node) -> None:
        step = Step(
            Kind.POOL,
            self.count,
            window=window(self.graph, node),
            is_average=is_adaptive(node) or node.attrs.get("pool_type", "max") == "avg",
            counts_padding=node.attrs.get("count_include_pad") not in (False, "False", 0, "0"),
        )
        value, step = self.taking.take_activations(node.out(), step)
        self.emit(step, value, self.source(node.inputs[0]))

    def stretch(self, node: Node) -> None:
        first = stretch(node)
        assert first is not None
        value, more = self.taking.take_stretch(node.out())
        times = (first[0] * more[0], first[1] * more[1])
        step = Step(Kind.STRETCH, self.count, window=Window((1, 1), stride=times))
        self.emit(step, value, self.source(node.inputs[0]))

    def concat(self, node: Node) -> None:
        """Copy what could not be written to its place."""
        whole, block = self.place(node.out()), 0
        for value in node.inputs:
            blocks = self.blocks(value)
            place = Place(whole.buffer, whole.block + block, blocks)
            if self.place(value) != place:
                copy = Step(Kind.COMBINE, self.count)
                self.drafts.append(Draft(copy, place, self.source(value)))
            block += blocks
        self.taking.ready.add(node.out())

    def combine(self, node: Node) -> None:
        """A sum, a product or a function that no other step took along, or a copy."""
        step = Step(Kind.COMBINE, self.count)
        if is_product(node):
            self.product(node, step)
            return
        if not is_sum(node):
            found = Activation() if is_reshape(node) else unary(node)
            assert found is not None
            slopes = self.number[node.inputs[1].node] if is_prelu(node) else -1
            step = replace(step, activation=found, slopes=slopes)
            value, step = self.taking.take_activations(node.out(), step)
            self.emit(step, value, self.source(node.inputs[0]))
            return
        value, last = self.taking.take_activations(node.out(), step)
        first, *others = (self.source(v) for v in node.inputs)
        for at, other in enumerate(others):
            self.emit(last if at == len(others) - 1 else step, value, first, other)
            first = self.place(value)

    def product(self, node: Node, step: Step) -> None:
        """A product of images, or of images and a gate."""
        first, other = node.inputs
        if is_gate(self.graph, first, other):
            first, other = other, first
        is_whole = self.size(first) == self.size(other)
        step = replace(step, combination=Combination.PRODUCT if is_whole else Combination.GATE)
        value, step = self.taking.take_activations(node.out(), step)
        self.emit(step, value, self.source(first), self.source(other))

    def emit(
        self,
        step: Step,
        value: Value,
        source: Place,
        other: Place | None = None,
        scratch: Buffer | None = None,
    ) -> None:
        self.drafts.append(Draft(step, self.place(value), source, other, scratch))
        if value not in self.taking.ready and not self.graph.is_output(value):
            self.written += math.prod(self.size(value))
        self.taking.ready.add(value)

    # -- the program -----------------------------------------------------------------------------

    def program(self) -> Program:
        """Place all buffers and finish the steps."""
        arena = pack(self.drafts, self.count)
        data = sum(node.op == DATA for node in self.graph.inputs)
        return Program(
            arena,
            tuple(_shape(node.type) for node in self.graph.inputs),
            data,
            tuple(_shape(self.graph.type_of(value)) for value in self.graph.outputs),
            tuple(finished(draft, self.count, self.lanes) for draft in self.drafts),
            self.written,
        )


def _halo(given: Images, made: Images, window: Window) -> int:
    """How far a window reaches out of the image, on any side."""
    sizes = (given[2:], made[2:], window.kernel, window.stride, window.dilation, window.pad)
    behind = (
        (m - 1) * stride + (k - 1) * dilation - pad - (g - 1)
        for g, m, k, stride, dilation, pad in zip(*sizes, strict=True)
    )
    return max(map(int, (*window.pad, *behind)))


def _shape(type_: TensorType) -> tuple[int, ...]:
    return tuple(extent or 0 for extent in type_.shape or ())
