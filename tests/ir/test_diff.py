"""What a structural difference reports."""

from graphopt.ir.diff import diff
from graphopt.ir.parser import parse

TEXT = """
graph g(%x: f32[2]) {
  %a = relu(%x) : f32[2]
  %b = tanh(%a) : f32[2]
  %c = exp(%b) : f32[2]
  return %c
}"""


def between(old, new):
    return diff(parse(old), parse(new))


def test_equal_graphs():
    found = between(TEXT, TEXT.replace("%a", "%renamed"))
    assert found.is_empty
    assert str(found) == ""


def test_changed_node_only_not_what_lies_behind():
    found = between(TEXT, TEXT.replace("tanh(%a)", "sigmoid(%a)"))
    assert str(found) == "~ %b = tanh(%a) : f32[2]\n  %b = sigmoid(%a) : f32[2]"
    assert not found.removed
    assert not found.added


def test_removed_and_added():
    shorter = TEXT.replace("  %b = tanh(%a) : f32[2]\n", "").replace("exp(%b)", "exp(%a)")
    found = between(TEXT, shorter)
    assert found.removed == ("%b = tanh(%a) : f32[2]",)
    assert found.changed == (("%c = exp(%b) : f32[2]", "%c = exp(%a) : f32[2]"),)
    back = between(shorter, TEXT)
    assert back.added == found.removed
    assert str(back).startswith("+ %b = tanh(%a) : f32[2]\n~ ")


def test_attributes_types_and_outputs():
    old = "graph g(%x: f32[4]) { %s = SliceChannel(%x) {num_outputs=2} : (?, ?)\n return %s#1 }"
    found = between(old, old.replace("num_outputs=2", "axis=0, num_outputs=2"))
    assert str(found) == (
        "~ %s = SliceChannel(%x) {num_outputs=2} : ?, ?\n"
        "  %s = SliceChannel(%x) {axis=0, num_outputs=2} : ?, ?"
    )


def test_inputs():
    found = between(TEXT, TEXT.replace("%x: f32[2]", "%x: f32[3]"))
    assert found.changed == (("data %x: f32[2]", "data %x: f32[3]"),)


def test_one_of_two_equal_nodes_is_removed():
    twice = "graph g(%x: ?) { %a = relu(%x) %b = relu(%x) %c = add_n(%a, %b) return %c }"
    once = "graph g(%x: ?) { %a = relu(%x) %c = add_n(%a, %a) return %c }"
    assert str(between(twice, once)) == "- %b = relu(%x) : ?"


def test_what_the_graph_returns():
    found = between(TEXT, TEXT.replace("return %c", "return %b, %c"))
    assert str(found) == "~ return %c\n  return %b, %c"


def test_order_of_inputs():
    text = "graph g(%x: ?, %y: ?) { %z = dot(%x, %y) return %z }"
    found = between(text, text.replace("%x: ?, %y: ?", "%y: ?, %x: ?"))
    assert str(found) == "~ inputs %x, %y\n  inputs %y, %x"
