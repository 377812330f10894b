"""Reading Symbol JSON of every age, and refusing what is malformed with one sentence."""

import copy
import json
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphopt.api.lifting import lift
from graphopt.errors import GraphError, InputError, ParseError
from graphopt.frontend.symbol import lift_symbol
from graphopt.frontend.symbol_json import check_document, parse_symbol, read_symbol
from graphopt.ir.parser import parse
from graphopt.ir.verify import verify
from tests.frontend.documents import chain, current, middle, oldest
from tests.places import REPOSITORY

SHAPES = {"data": (1, 3, 8, 8)}


def lifted(document, shapes=SHAPES):
    return lift_symbol(parse_symbol(json.dumps(document), "f.json"), shapes, name="net")


CURRENT = """\
graph net(%data: f32[1,3,8,8], param %w: f32[4,3,3,3] {__lr_mult__="2.0"}) {
  %conv = Convolution(%data, %w) {kernel=(3, 3), no_bias=True, num_filter=4} : f32[1,4,6,6]
  %act = Activation(%conv) {act_type="relu"} : f32[1,4,6,6]
  %split = SliceChannel(%act) {num_outputs=2} : (f32[1,2,6,6], f32[1,2,6,6])
  %sum = elemwise_add(%split, %split#1) : f32[1,2,6,6]
  return %sum
}"""


def test_current(mx):
    assert str(lifted(current())) == CURRENT


def test_middle_age(mx):
    assert str(lifted(middle())) == CURRENT


def test_oldest_gets_its_auxiliary_states(mx):
    graph = lifted(oldest(), {"data": (2, 3), "label": (2,)})
    verify(graph, "captured")
    assert {node.name: node.op for node in graph.inputs} == {
        "data": "data",
        "fc_weight": "param",
        "fc_bias": "param",
        "bn_gamma": "param",
        "bn_beta": "param",
        "bn_moving_mean": "aux",
        "bn_moving_var": "aux",
        "label": "data",
    }
    assert graph.find("fc").attrs["__ctx_group__"] == "dev1"
    assert graph.find("fc_weight").attrs["__lr_mult__"] == "0.5"
    assert graph.find("bn").attrs["momentum"] == 0.9
    assert [str(graph.type_of(value)) for value in graph.outputs] == ["f32[2,4]"]


def test_forward_references_are_sorted(mx):
    document = current()
    order = [5, 2, 0, 4, 1, 3]
    new = {old: number for number, old in enumerate(order)}
    for node in document["nodes"]:
        node["inputs"] = [[new[a], b, c] for a, b, c in node["inputs"]]
    document["nodes"] = [document["nodes"][old] for old in order]
    document["heads"] = [[0, 0, 0]]
    assert str(lifted(document)) == CURRENT


def test_names_may_be_of_any_language(mx):
    document = current()
    document["nodes"][3]["name"] = "активация 激活"
    assert lifted(document).find("активация 激活").op == "Activation"


def test_unknown_fields_do_no_harm(mx):
    document = current()
    document["comment"] = ["by", "hand"]
    document["nodes"][3]["color"] = {"r": 1}
    document["arg_nodes"] = [9999]
    document["node_row_ptr"] = "none"
    document["attrs"]["written_by"] = 3.5
    assert str(lifted(document)) == CURRENT


def test_operators_without_a_use_are_dropped(mx):
    document = current()
    document["nodes"].append({"op": "relu", "name": "dead", "inputs": [[0, 0, 0]]})
    assert str(lifted(document)) == CURRENT


def test_control_dependencies(mx):
    document = current()
    document["nodes"][5]["control_deps"] = [2]
    assert "%split#1) after(%conv) : f32" in str(lifted(document))


# -- malformed documents ------------------------------------------------------------------------


def change(**fields):
    return lambda document: document.update(fields)


def node(number, **fields):
    return lambda document: document["nodes"][number].update(fields)


def drop(number, key):
    return lambda document: document["nodes"][number].pop(key)


MALFORMED = [
    (change(nodes={}), "it has no list 'nodes', so it is no MXNet symbol"),
    (change(nodes=None), "it has no list 'nodes', so it is no MXNet symbol"),
    (change(heads=[]), "it has no list 'heads'"),
    (change(heads=None), "it has no list 'heads'"),
    (change(heads=[[6, 0, 0]]), "head [6, 0, 0] refers to a node out of range 0..5"),
    (change(heads=[5]), "head 5 refers to a node out of range 0..5"),
    (change(heads=[[5, -1, 0]]), "head [5, -1, 0] refers to a node out of range 0..5"),
    (change(heads=[[5, 9, 0]]), "its heads name output 9 of node 'sum', which has 1"),
    (change(attrs=[]), "its 'attrs' are no object"),
    (
        change(attrs={"mxnet_version": "1.9"}),
        "its MXNet version is '1.9', not ['int', number]",
    ),
    (
        change(attrs={"mxnet_version": ["int", "x"]}),
        "its MXNet version is ['int', 'x'], not ['int', number]",
    ),
    (lambda document: document["nodes"].insert(0, 7), "node 0 is no object"),
    (drop(3, "op"), "node 3 has no text 'op'"),
    (drop(3, "name"), "node 3 has no text 'name'"),
    (node(3, name=4), "node 3 has no text 'name'"),
    (node(3, op=""), "node 3 ('act') has an empty operator name"),
    (node(3, inputs=None), "node 3 ('act') has no list 'inputs'"),
    (node(0, inputs=[[1, 0, 0]]), "node 0 ('data') is a variable but has inputs"),
    (node(3, inputs=[[9, 0, 0]]), "node 3 ('act') reads [9, 0, 0], out of range 0..5"),
    (node(3, inputs=[[-1, 0, 0]]), "node 3 ('act') reads [-1, 0, 0], out of range 0..5"),
    (node(3, inputs=[[2.0, 0, 0]]), "node 3 ('act') reads [2.0, 0, 0], out of range 0..5"),
    (node(3, inputs=[[float("nan"), 0, 0]]), "node 3 ('act') reads [nan, 0, 0], out of range 0..5"),
    (node(3, inputs=[[True, 0, 0]]), "node 3 ('act') reads [True, 0, 0], out of range 0..5"),
    (node(3, inputs=[[2]]), "node 3 ('act') reads [2], out of range 0..5"),
    (node(3, inputs=[2]), "node 3 ('act') reads 2, out of range 0..5"),
    (node(3, inputs=[[0, 7, 0]]), "node 'act' reads output 7 of node 'data', which has 1"),
    (
        node(5, inputs=[[4, 0, 0], [4, 2, 0]]),
        "node 'sum' reads output 2 of node 'split', which has 2",
    ),
    (node(3, control_deps=4), "node 3 ('act') has no list 'control_deps'"),
    (node(3, control_deps=[9]), "node 3 ('act') has control dependency 9, out of range"),
    (node(3, subgraphs=None), "node 3 ('act') has no list 'subgraphs'"),
    (node(3, attrs=None), "node 3 ('act') has 'attrs' that maps no names to texts"),
    (node(3, attrs={"act_type": 3}), "node 3 ('act') has 'attrs' that maps no names to texts"),
    (node(3, param=[]), "node 3 ('act') has 'param' that maps no names to texts"),
    (
        node(2, inputs=[[5, 0, 0], [1, 0, 0]]),
        "it has a cycle through 'conv' -> 'act' -> 'split' -> 'sum'",
    ),
    (node(3, inputs=[[3, 0, 0]]), "it has a cycle through 'act'"),
    (node(3, control_deps=[5]), "it has a cycle through 'act' -> 'split' -> 'sum'"),
    (
        node(2, attrs={"kernel": "(3, 3)", "num_filter": "4", "num_group": "0"}),
        "node 2 ('conv') has num_group=0, which is not in 1..2147483648",
    ),
    (
        node(4, attrs={"num_outputs": "2000000000"}),
        "node 4 ('split') has num_outputs=2000000000, which is not in 1..1048576",
    ),
    (node(3, op="_Native"), "node 3 ('act') has operator '_Native', which no file can hold"),
    (
        node(3, op="_backward_Activation"),
        "node 3 ('act') has operator '_backward_Activation', which no file can hold",
    ),
    (
        node(3, subgraphs=[{"nodes": []}]),
        None,
    ),
    (node(3, op="BatchNorm", attrs={}), "node 'act' (BatchNorm) has 1 of 5 inputs"),
    (node(3, name="\ud800"), "a text in it has half of a surrogate pair"),
]


@pytest.mark.parametrize(("edit", "problem"), MALFORMED)
def test_malformed(mx, edit, problem):
    document = current()
    edit(document)
    with pytest.raises(ParseError) as caught:
        parse_symbol(json.dumps(document), "f.json")
    if problem is None:
        expected = "subgraph 0 of node 'act' in f.json is malformed: it has no list 'heads'"
    else:
        expected = f"f.json is malformed: {problem}"
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.json is not valid JSON: Expecting value"),
        ('{"nodes": [', "f.json is not valid JSON: Expecting value"),
        (json.dumps(current())[:300], "f.json is not valid JSON"),
        ("[1, 2]", "f.json is malformed: it has no list 'nodes', so it is no MXNet symbol"),
        ("3", "f.json is malformed: it has no list 'nodes', so it is no MXNet symbol"),
        ("null", "f.json is malformed: it has no list 'nodes', so it is no MXNet symbol"),
        ("[" * 100_000, "f.json is not valid JSON"),
        ("graph g(%x: ?) {", "f.json is not valid JSON"),
    ],
)
def test_no_symbol(mx, text, message):
    with pytest.raises(ParseError) as caught:
        parse_symbol(text, "f.json")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"op": "NoSuchOperator"}, "MXNet cannot load f.json: .*NoSuchOperator"),
        (
            {"attrs": {"act_type": "nope"}},
            "MXNet cannot load f.json: Invalid Input: 'nope', valid values are",
        ),
        ({"attrs": {"unknown": "1"}}, "MXNet cannot load f.json: Cannot find argument 'unknown'"),
        (
            {"op": "Custom", "attrs": {"op_type": "mine"}},
            "cannot load f.json: .*custom operator mine",
        ),
    ],
)
def test_what_mxnet_refuses(mx, fields, message):
    document = current()
    document["nodes"][3].update(fields)
    with pytest.raises(ParseError, match=message) as caught:
        parse_symbol(json.dumps(document), "f.json")
    assert "\n" not in str(caught.value)


def test_numbers_that_python_does_not_read():
    text = '{"nodes": [' + "1" * 5000 + '], "heads": [[0, 0]]}'
    with pytest.raises(ParseError, match=r"^f.json is malformed: a number in it has too many"):
        parse_symbol(text, "f.json")


def test_operators_with_missing_inputs_are_named(mx):
    document = current()
    document["nodes"][5]["inputs"] = [[4, 0, 0]]
    with pytest.raises(ParseError, match=r"node 'sum' \(elemwise_add\) has 1 of 2 inputs"):
        lifted(document)


@pytest.mark.parametrize(
    ("op", "attrs", "needed"),
    [
        ("Embedding", {"input_dim": "10", "output_dim": "4"}, 2),
        ("FullyConnected", {"num_hidden": "3"}, 3),
        ("FullyConnected", {"num_hidden": "3", "no_bias": "True"}, 2),
        ("RNN", {"mode": "lstm", "num_layers": "1", "state_size": "4"}, 4),
        ("Concat", {"num_args": "3"}, 3),
    ],
)
def test_inputs_behind_which_mxnet_reads_are_counted(mx, op, attrs, needed):
    document = current()
    document["nodes"][3].update(op=op, attrs=attrs)
    match = rf"node 'act' \({op}\) has 1 of {needed} inputs"
    with pytest.raises(ParseError, match=match):
        parse_symbol(json.dumps(document), "f.json")


def test_shapes_that_do_not_fit_are_named(mx):
    with pytest.raises(InputError, match=r"inputs of node 'conv' \(Convolution\) do not fit"):
        lifted(current(), {"data": (1, 3, 8, 8), "w": (4, 5, 3, 3)})


def test_names_that_are_no_inputs_get_a_suggestion(mx):
    with pytest.raises(InputError, match=r"^the graph has no input 'dta'; did you mean 'data'\?$"):
        lifted(current(), {"dta": (1, 3, 8, 8)})


def test_two_variables_of_one_name_are_one_input(mx):
    x = [mx.sym.var("x"), mx.sym.var("x")]  # as a SymbolBlock that is called twice has them
    graph = lift(x[0] * 2 - x[1], {"x": (2, 3)})
    verify(graph)
    assert [node.name for node in graph.inputs] == ["x"]


def test_files_that_cannot_be_read_are_named(mx, tmp_path):
    with pytest.raises(ParseError, match=r"^cannot read '.*none.json': No such file or directory$"):
        read_symbol(tmp_path / "none.json")
    (tmp_path / "latin.json").write_bytes(b'{"nodes": "\xe9"}')
    with pytest.raises(ParseError, match=r"latin.json': it is no UTF-8 text$"):
        read_symbol(tmp_path / "latin.json")
    with pytest.raises(ParseError, match=r"^cannot read"):
        read_symbol(tmp_path)


def test_graphs_are_named_after_their_file(mx, tmp_path):
    path = tmp_path / "net-symbol.json"
    path.write_text(json.dumps(current()))
    assert str(lift(path, SHAPES)) == CURRENT


# -- size ---------------------------------------------------------------------------------------


def test_deep_graphs(mx):
    graph = lift_symbol(parse_symbol(chain(2_000)), {"data": (1,)})
    assert len(graph) == 2_001
    assert graph.type_of(graph.outputs[0]).shape == (1,)


def test_checking_a_large_document_takes_few_steps():
    """Counted, not timed: twice the nodes, twice the calls."""
    documents = [json.loads(chain(length)) for length in (2_000, 4_000)]
    for document in documents:
        document["nodes"].append(document["nodes"].pop(0))  # so that it has to be sorted
        last = len(document["nodes"]) - 1
        for node in document["nodes"]:
            node["inputs"] = [[(source - 1) % (last + 1), 0, 0] for source, *_ in node["inputs"]]
        document["heads"] = [[last - 1, 0, 0]]
    small, large = (calls(lambda d=document: check_document(d, "f")) for document in documents)
    assert large < 2.1 * small


def calls(function):
    """How many Python functions a call enters."""
    count = 0

    def count_calls(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(count_calls)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


NASTY = {
    "deep": "chain(7_500)",
    "backwards": "backwards(2_000)",
    "output out of range": "edited(lambda d: d['nodes'][5].update(inputs=[[4, 2**31 - 1, 0]] * 2))",
    "group of none": "edited(lambda d: d['nodes'][2]['attrs'].update(num_group='0'))",
    "pointer": "edited(lambda d: d['nodes'][3].update(op='_Native', attrs={'info': '0x1'}))",
    "array": "edited(lambda d: d['nodes'][3].update(op='_NDArray', attrs={'info': '1'}))",
    "many outputs": "edited(lambda d: d['nodes'][4]['attrs'].update(num_outputs='2000000000'))",
    "types": "edited(lambda d: d['nodes'][0].update(attrs={'__dtype__': '99'}))",
    "no states": "edited(lambda d: d['nodes'][1].update(op='BatchNorm', attrs={}))",
    "loop": "edited(lambda d: d['nodes'][3].update(op='_foreach', subgraphs=[current()]))",
}

SCRIPT = """
import json, sys
from graphopt.errors import GraphoptError
from graphopt.frontend.symbol import lift_symbol
from graphopt.frontend.symbol_json import parse_symbol
from tests.frontend.documents import chain, current

def edited(edit):
    document = current()
    edit(document)
    return json.dumps(document)

def backwards(length):
    document = json.loads(chain(length))
    last = len(document["nodes"]) - 1
    for node in document["nodes"]:
        node["inputs"] = [[last - source, 0, 0] for source, *_ in node["inputs"]]
    return json.dumps(document | {"nodes": document["nodes"][::-1], "heads": [[0, 0, 0]]})

for name, text in json.loads(sys.argv[1]).items():
    try:
        graph = lift_symbol(parse_symbol(eval(text), name), {"data": (1, 3, 8, 8)})
        print(name, "->", len(graph), flush=True)
    except GraphoptError as error:
        print(name, "->", type(error).__name__, flush=True)
"""


def test_the_process_survives():
    """Each of these once ended, or would end, the process by a signal or by all of its memory."""
    # On a fourth of the usual stack, a fourth of the depth is enough to overflow it.
    found = subprocess.run(
        [
            "sh",
            "-c",
            'ulimit -s 2048; exec "$@"',
            "sh",
            sys.executable,
            "-c",
            SCRIPT,
            json.dumps(NASTY),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=REPOSITORY,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout.splitlines() == [
        "deep -> 7501",
        "backwards -> 2001",
        "output out of range -> ParseError",
        "group of none -> ParseError",
        "pointer -> ParseError",
        "array -> ParseError",
        "many outputs -> ParseError",
        "types -> RefusedError",
        "no states -> ParseError",
        "loop -> ParseError",
    ]


# -- random damage ------------------------------------------------------------------------------


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.floats()
    | st.sampled_from(["", "relu", "(1, 2)"])
)
JUNK = (
    SCALARS
    | st.lists(SCALARS, max_size=3)
    | st.dictionaries(st.sampled_from("ab"), SCALARS, max_size=1)
)


def places(document):
    """Every (container, key) in a document."""
    stack, found = [document], []
    while stack:
        item = stack.pop()
        keys = item.keys() if isinstance(item, dict) else range(len(item))
        for key in keys:
            found.append((item, key))
            if isinstance(item[key], (dict, list)):
                stack.append(item[key])
    return found


def damage(document, data):
    for _ in range(data.draw(st.integers(1, 3))):
        options = places(document)
        container, key = options[data.draw(st.integers(0, len(options) - 1))]
        match data.draw(st.sampled_from(["replace", "delete", "copy"])):
            case "replace":
                container[key] = data.draw(JUNK)
            case "delete":
                del container[key]
            case "copy":
                source, other = options[data.draw(st.integers(0, len(options) - 1))]
                if other in source if isinstance(source, dict) else other < len(source):
                    container[key] = copy.deepcopy(source[other])


@settings(max_examples=250, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_documents_are_refused_or_sound(mx, data):
    document = data.draw(st.sampled_from([current, middle, oldest]))()
    damage(document, data)
    try:
        symbol = parse_symbol(json.dumps(document), "f.json")
        graph = lift_symbol(symbol, {n: (2, 3, 8, 8) for n in symbol.list_inputs() if n == "data"})
        verify(graph, "captured")
    except (ParseError, InputError, GraphError):
        return
    assert parse(str(graph)) == graph


def test_nodes_share_equal_attributes_and_types(mx):
    x = mx.sym.var("x")
    for number in range(3):
        x = mx.sym.clip(x, a_min=0.0, a_max=6.0, name=f"clip{number}")
    nodes = [node for node in lift_symbol(parse_symbol(x.tojson()), {"x": (2, 3)}) if node.inputs]
    assert len(nodes) == 3
    assert len({id(node.attrs) for node in nodes}) == 1
    assert len({id(node.type) for node in nodes}) == 1
