"""Pipelines as text: read, printed, and refused with a sentence."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphopt.errors import ParseError
from graphopt.ir.graph import Graph
from graphopt.passes import ALIASES, PASSES, PIPELINES, registry
from graphopt.pipeline.base import Pass, PassContext
from graphopt.pipeline.spec import Registry, build, make, parse_items, to_text


@dataclass(frozen=True)
class Tuned(Pass):
    """Has options of every type."""

    name: ClassVar[str] = "tuned"

    count: int = 3
    rate: float = 0.5
    loud: bool = False
    title: str = "none"
    sizes: tuple[int, ...] = ()

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        return graph


TUNED = Registry(
    {"tuned": f"{__name__}:Tuned", "dce": PASSES["eliminate-dead-code"]},
    {"t": "tuned"},
    {"twice": "tuned{count=1},t", "all": "twice,dce"},
)


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    """pytest imports this file under a name that importlib cannot find by itself."""
    import sys
    import types

    module = types.ModuleType(__name__)
    module.Tuned = Tuned
    monkeypatch.setitem(sys.modules, __name__, module)


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "count": st.integers(),
        "rate": st.floats(allow_nan=False, allow_infinity=False),
        "loud": st.booleans(),
        "title": st.text(),
        "sizes": st.lists(st.integers(), max_size=3).map(tuple),
    },
)


@given(st.lists(OPTIONS, max_size=4))
def test_text_round_trip(options):
    passes = tuple(Tuned(**values) for values in options)
    text = to_text(passes)
    assert tuple(make(Tuned, values) for _, values in parse_items(text)) == passes
    assert to_text(passes) == text


def test_printed_without_defaults():
    assert str(Tuned()) == "tuned"
    assert str(Tuned(count=4, title="a b")) == 'tuned{count=4,title="a b"}'


def test_names_aliases_and_pipelines():
    assert build("t", TUNED) == (Tuned(),)
    assert build("all", TUNED)[:2] == (Tuned(count=1), Tuned())
    assert len(build("twice , t,twice", TUNED)) == 5
    assert build("", TUNED) == ()
    assert build(" \n ", TUNED) == ()


def test_ready_made_passes_go_through():
    assert build([Tuned(count=9)], TUNED) == (Tuned(count=9),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tuned{count=4}", Tuned(count=4)),
        ("tuned { count = 4 , loud = True , }", Tuned(count=4, loud=True)),
        ("tuned{}", Tuned()),
        ("tuned{title=bare-word.x}", Tuned(title="bare-word.x")),
        ('tuned{title="a,}b"}', Tuned(title="a,}b")),
        ("tuned{rate=1}", Tuned(rate=1)),
        ("tuned{sizes=(1, 2)}", Tuned(sizes=(1, 2))),
        ("tuned{rate=-1e-3}", Tuned(rate=-0.001)),
    ],
)
def test_options(text, expected):
    assert build(text, TUNED) == (expected,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (",", "pipeline ',': expected a pass name at ','"),
        ("dce,", "pipeline 'dce,': expected a pass name at ''"),
        ("dce,,dce", "pipeline 'dce,,dce': expected a pass name at ',dce'"),
        ("dce dce", "pipeline 'dce dce': expected ',' or '{' at 'dce'"),
        ("dce}", "pipeline 'dce}': expected ',' or '{' at '}'"),
        ("9dce", "pipeline '9dce': expected a pass name at '9dce'"),
        ("tuned{", "pipeline 'tuned{': '{' is not closed"),
        ("tuned{4}", "pipeline 'tuned{4}': expected option=value at '4}'"),
        ("tuned{count}", "pipeline 'tuned{count}': expected option=value at 'count}'"),
        ("tuned{count=4", "pipeline 'tuned{count=4': '{' is not closed"),
        ("tuned{count=4 loud=True}", "pipeline 'tuned{count=4 loud=True}': '{' is not closed"),
        ("tuned{count=}", "pipeline 'tuned{count=}': expected a value at '}'"),
        ("tuned{title=bare", "pipeline 'tuned{title=bare': 'bare' is no value; quote strings"),
        ("tuned{count=1,count=2}", "pipeline 'tuned{count=1,count=2}': count is given twice"),
        ("tund", "unknown pass 'tund'; did you mean 'tuned'?"),
        ("zzz", "unknown pass 'zzz'; `graphopt passes` lists them"),
        ("all{x=1}", "pipeline 'all' takes no options"),
        ("tuned{cuont=1}", "pass 'tuned' has no option 'cuont'; did you mean 'count'?"),
        ("tuned{zzz=1}", "pass 'tuned' has no option 'zzz'"),
        ("tuned{count=1.5}", "option 'count' of pass 'tuned' takes int, not 1.5"),
        ("tuned{count=True}", "option 'count' of pass 'tuned' takes int, not True"),
        ("tuned{loud=1}", "option 'loud' of pass 'tuned' takes bool, not 1"),
        ("tuned{title=None}", "option 'title' of pass 'tuned' takes str, not None"),
    ],
)
def test_errors(text, message):
    with pytest.raises(ParseError) as caught:
        build(text, TUNED)
    assert str(caught.value) == message


@given(st.text(alphabet='dcetuned,{}=-_1 "()', max_size=25))
def test_garbage_is_a_parse_error_or_a_pipeline(text):
    message = ""
    try:
        build(text, TUNED)
    except ParseError as error:
        message = str(error)
    assert "\n" not in message


def test_registered_pipelines_build_and_round_trip():
    for name in PIPELINES:
        passes = build(name, registry)
        assert build(to_text(passes), registry) == passes


def test_names_mean_one_thing():
    assert not PASSES.keys() & ALIASES.keys()
    assert not PIPELINES.keys() & (PASSES.keys() | ALIASES.keys())
    assert set(ALIASES.values()) <= PASSES.keys()
