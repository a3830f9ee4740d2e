"""One file that carries everything, and nothing of the model as markup."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import sys
from dataclasses import replace
from typing import Any

import pytest
from tests.support.called_twice import twice
from tests.support.overlaid_pages import OWN_TIMES
from tests.support.small_file import SmallFile, credited

from modelexport.errors import ExtraMissing
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import unattributed
from modelexport.show.page.data import PageSubject, page_data
from modelexport.show.page.html import page_html


def data_of(small: SmallFile, *, nodes: bool = True) -> dict[str, Any]:
    proto = small.proto()
    file = TaggedFile(proto, {}, believed=small.provenance())
    return page_data(PageSubject("small.onnx", file), nodes=nodes)


def test_what_is_put_in_can_be_taken_out(small: SmallFile) -> None:
    data = data_of(small)
    packed = re.search(r'id="data">([^<]*)<', page_html("t", data))
    assert packed is not None
    assert json.loads(gzip.decompress(base64.b64decode(packed[1]))) == json.loads(json.dumps(data))


def test_the_policy_allows_the_two_scripts_and_no_other(small: SmallFile) -> None:
    page = page_html("t", data_of(small))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = {base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts}
    assert set(re.findall(r"'sha256-([^']*)'", policy[1])) == hashes
    assert len(scripts) == 2
    assert "default-src 'none'" in policy[1]
    assert "unsafe-eval" not in policy[1]


def test_a_title_is_text(small: SmallFile) -> None:
    page = page_html('</title><script>alert("x")</script>', data_of(small))
    assert page.count("<script>") == 2
    assert "&lt;/title&gt;&lt;script&gt;" in page


def test_nothing_is_loaded_from_elsewhere(small: SmallFile) -> None:
    page = page_html("t", data_of(small))
    ours = page[: page.index("<script>")]
    assert re.findall(r'(?:src|href)="([^"#]*)"', ours) == ["data:,"]


def test_a_marker_in_a_name_is_not_filled_in(small: SmallFile) -> None:
    assert "<title>{{plotly}}</title>" in page_html("{{plotly}}", data_of(small))


def test_modules_come_after_the_one_around_them_and_keep_their_sums(small: SmallFile) -> None:
    modules = data_of(small)["modules"]
    assert all(parent < place for place, parent in enumerate(modules["parent"]))
    assert sum(modules["nodes"]) == 6
    assert sum(modules["parameters"]) == 40 + 16 + 16
    assert sum(modules["bytes"]) == 4 * (40 + 16 + 16)
    assert len(modules["parent"]) == len(OWN_TIMES) + 1  # and the module that never runs


def test_what_several_modules_share_is_charged_to_the_one_around_them(small: SmallFile) -> None:
    data = data_of(small.but(r0=credited("layers.0", "layers.1")))
    node = list(small.provenance().nodes).index("r0")
    answer = data["nodes"]["answer"][node]
    assert data["answers"]["module"][answer] == 0
    assert len(data["owners"][data["answers"]["owners"][answer]]) == 2


def test_what_calls_of_one_module_share_is_charged_to_that_module() -> None:
    """As in a profile: no call is around them but the model's, and yet it is inside of the module."""
    once = twice()
    calls = tuple(ModuleCall("layers.0.fc", number) for number in range(2))
    shared = replace(credited("layers.0.fc"), owners=calls, ancestor=ModuleCall(""))
    data = data_of(once.but(h0=shared))
    names = [data["texts"][name] for name in data["modules"]["name"]]
    answer = data["nodes"]["answer"][list(once.provenance().nodes).index("h0")]
    assert names[data["answers"]["module"][answer]] == "fc"
    assert data["answers"]["around"][answer] == 0  # the model draws it


def test_what_is_in_no_module_has_a_place_of_its_own(small: SmallFile) -> None:
    data = data_of(small.but(r0=unattributed("nobody knows")))
    count = len(data["modules"]["parent"])
    assert data["modules"]["nodes"][count] == 1
    assert data["answers"]["module"].count(count) == 1


def test_without_nodes_there_are_modules_and_what_flows_between_them(small: SmallFile) -> None:
    data = data_of(small, nodes=False)
    assert data["nodes"] is None
    root = next(flow for flow in data["flows"] if flow["module"] == 0)
    assert [box[0] for box in root["boxes"]].count(0) == 3  # modules


def test_missing_plotly_is_said(small: SmallFile, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("plotly", "plotly.offline"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ExtraMissing, match=r"modelexport\[view\]"):
        page_html("t", data_of(small))


def test_the_name_of_a_file_need_not_be_text(small: SmallFile) -> None:
    page = page_html("caf\udce9.onnx", data_of(small))
    assert "<title>caf\\udce9.onnx</title>" in page.encode().decode()
