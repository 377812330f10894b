"""The text of a region of convolutions, which its node carries.

::

    convolutions 16 direct winograd4 direct
    graph region(%in0: f32[1,3,224,224], param %in1: f32[64,3,7,7]) {
      ...
    }

First how many channels make a block, then how each convolution is computed, in the order of the
graph.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from graphopt.errors import ParseError
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node
from graphopt.ir.parser import parse as parse_graph
from graphopt.ir.printer import print_graph

#: How a convolution is computed: directly, or by Winograd's minimal filtering F(m, 3); with its
#: products in pairs, two for one multiplication, or as they are.
DIRECT: Final = "direct"
PAIRED: Final = "paired"
WINOGRAD: Final = {
    "winograd2": 2,
    "paired-winograd2": 2,
    "winograd4": 4,
    "paired-winograd4": 4,
}
#: What rounds more than direct convolutions, and what to take instead where that is too much.
LARGE_TILES: Final = {"winograd4": "winograd2", "paired-winograd4": "paired-winograd2"}
ALGORITHMS: Final = (DIRECT, PAIRED, *WINOGRAD)
_WORD: Final = "convolutions"


#: Specs by their texts, the last few that were told. Their graphs are written to no more.
_TOLD: Final[OrderedDict[str, ConvolutionsSpec]] = OrderedDict()
_REMEMBERED: Final = 16


def is_paired(algorithm: str) -> bool:
    """Whether products are in pairs."""
    return algorithm.startswith(PAIRED)


@dataclass(frozen=True)
class ConvolutionsSpec:
    """A region, and how its convolutions are computed.

    Attributes:
        body: the region in MXNet's operators; parameters have the role ``param``.
        lanes: channels that make a block, which is a matter of the processor.
        algorithms: for each ``Convolution`` and ``Deconvolution`` of the body, in its order.
    """

    body: Graph
    lanes: int
    algorithms: tuple[str, ...]

    def __str__(self) -> str:
        """The text that :func:`parse` reads."""
        body = self.body.derived("text", print_graph)
        return f"{' '.join((_WORD, str(self.lanes), *self.algorithms))}\n{body}"


def spec_of(node: Node) -> ConvolutionsSpec:
    """The spec of a node that is a region."""
    algorithms = node.attrs["algorithms"]
    assert isinstance(algorithms, tuple)
    lanes = int(str(node.attrs["lanes"]))
    return ConvolutionsSpec(node.graphs[0], lanes, tuple(map(str, algorithms)))


def told(spec: ConvolutionsSpec) -> str:
    """Its text, for the bridge, which soon asks what it says."""
    text = str(spec)
    _TOLD[text] = spec
    if len(_TOLD) > _REMEMBERED:
        _TOLD.popitem(last=False)
    return text


def parse(text: str) -> ConvolutionsSpec:
    """Read what ``str(spec)`` prints.

    Raises:
        ParseError: the text is malformed.
    """
    known = _TOLD.get(text)
    return _read(text) if known is None else known


def _read(text: str) -> ConvolutionsSpec:
    first, _, rest = text.partition("\n")
    word, _, more = first.partition(" ")
    lanes, *algorithms = more.split() or [""]
    if word != _WORD or not lanes.isdigit():
        raise ParseError(f"not a region of convolutions: {first[:80]!r}")
    for name in algorithms:
        if name not in ALGORITHMS:
            raise ParseError(f"convolutions are not computed by {name!r}")
    return ConvolutionsSpec(parse_graph(rest), int(lanes), tuple(algorithms))
