"""``graphopt view``."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest


def embedded(page: str) -> dict:
    (found,) = re.findall(
        r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL
    )
    return json.loads(found)


class Outside(HTMLParser):
    """Collects what a page loads from elsewhere."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found += [value for key, value in attrs if key in ("src", "href")]


def test_page(graphopt, net, tmp_path):
    path = tmp_path / "report.html"
    ran = graphopt("view", net, "-p", "dce,dce,cse", "--no-run", "-o", path)
    assert ran == (0, "", f"wrote {path}\n")
    page = path.read_text()
    assert "<title>graphopt: net</title>" in page
    outside = Outside()
    outside.feed(page)
    assert outside.found == []
    first, dce, again, cse = embedded(page)["pages"]
    assert first["text"] + "\n" == net.read_text()
    assert "-  %unused = exp(%sum) : f32[2,3]" in dce["diff"]
    assert (again["status"], again["text"], again["diff"]) == ("unchanged", None, [])
    assert cse["remarks"][0]["pass"] == "eliminate-common-subexpressions"


def test_numbers_of_a_run(graphopt, net, tmp_path):
    ran = graphopt("view", net, "-p", "dce", "-o", tmp_path / "a.html", "--json")
    assert ran.code == 0
    assert json.loads(ran.out)["pages"][1]["run_ms"] > 0


def test_names_cannot_break_the_page(graphopt, tmp_path):
    model, path = tmp_path / "a.gir", tmp_path / "a.html"
    model.write_text(
        'graph "</script><b>"(%x: f32[2]) {\n  %"<!--</script>" = relu(%x) : f32[2]\n'
        '  return %"<!--</script>"\n}\n'
    )
    assert graphopt("view", model, "-p", "none", "--no-run", "-o", path).code == 0
    page = path.read_text()
    assert "</script><b>" in embedded(page)["graph"]
    assert page.count("</script>") == 2
    assert "<title>graphopt: &lt;/script&gt;" in page


def test_the_input_is_never_overwritten(graphopt, net):
    before = net.read_text()
    ran = graphopt("view", net, "-p", "none", "--no-run", "-o", net)
    assert ran.code == 2
    assert net.read_text() == before


@pytest.mark.usefixtures("wrong_passes")
def test_a_pass_that_fails_is_1(graphopt, net, tmp_path):
    path = tmp_path / "a.html"
    assert graphopt("view", net, "-p", "crash", "--no-run", "-o", path).code == 1
    assert embedded(path.read_text())["pages"][1]["reason"] == "ValueError: on purpose"


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_memory_over_time(graphopt, net, tmp_path, mode):
    path = tmp_path / "a.html"
    assert graphopt("view", net, "-p", "cse", "--mode", mode, "--no-run", "-o", path).code == 0
    before, after = embedded(path.read_text())["memory"]
    assert (before["title"], after["title"]) == ("original", "after the passes")
    for run in (before, after):
        assert len(run["live"]) == len(run["steps"])
        assert run["live"][run["peak_step"]] == run["peak"] == max(run["live"])
        assert (run["backward"] is None) == (mode == "inference")
        rows = {row["name"]: row for row in run["rows"]}
        assert ("forward only" in rows) == (mode == "training")
        assert rows["both"]["nbytes"] >= rows["both"]["lower_bound"] >= 0
        assert rows["both"]["reported"] is not None
        assert sum(layer["bytes"] for layer in run["layers"]) <= run["peak"]
        assert all(one["layer"] for one in run["residents"])
        assert run["given"]


def test_a_graph_without_types_has_no_timeline(graphopt, net_json, tmp_path):
    path = tmp_path / "a.html"
    assert graphopt("view", net_json, "-p", "none", "--no-run", "-o", path).code == 0
    assert embedded(path.read_text())["memory"] == []
