"""What others find in the files that `convert` writes: networkx, and Model Explorer itself in a browser."""

from __future__ import annotations

import ast
import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure.bench.plain_graph import Edge, Held, PlainGraph, PlainNode

_ATTRIBUTE, _METADATA = "onnx.", "metadata."
_TEXTS = ("name", "op_type", "domain", "overload", "doc_string")
_KNOWN = ("module", "tag", "confidence", "evidence", "role", "layer")
_TENSOR = re.compile(r"(\w+\[[\d, ]*\]) (\[.*\]|sha256:\w+)", re.DOTALL)
_NUMBERS = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}
_CHROMIUM = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")


def by_networkx(path: Path) -> PlainGraph:
    """GraphML as networkx reads it; modules are nodes as well, and left out."""
    import networkx as nx

    read = nx.read_graphml(path)
    keys: dict[str, str] = {}
    found = PlainGraph()
    for number, data in read.nodes(data=True):
        facts = {unescaped(name): unescaped(fact) if isinstance(fact, str) else fact for name, fact in data.items()}
        if "key" in facts:
            keys[number] = facts["key"]
            outputs = [one.decode() for one in _strings(facts.get("outputs", "[]"))]
            types = facts.get("types", "").split("; ") if "types" in facts else [""] * len(outputs)
            found.nodes[facts["key"]] = _node(facts, outputs, types)
    for source, target, data in read.edges(data=True):
        found.edges.add((keys[source], data["output"], keys[target], data["input"], unescaped(data["value"])))
    return found


def unescaped(text: str) -> str:
    return re.sub("_x([0-9A-F]{4})_", lambda one: chr(int(one[1], 16)), text)


def _node(facts: Mapping[str, Any], outputs: list[str], types: list[str]) -> PlainNode:
    return PlainNode(
        kind=facts["kind"],
        texts={name: facts[name] for name in _TEXTS if facts.get(name)},
        attributes={
            name.removeprefix(_ATTRIBUTE): _held(fact) for name, fact in facts.items() if name.startswith(_ATTRIBUTE)
        },
        metadata={name.removeprefix(_METADATA): fact for name, fact in facts.items() if name.startswith(_METADATA)},
        known={name: str(facts[name]) for name in _KNOWN if name in facts} | _modules(facts),
        outputs=tuple(outputs),
        types=tuple(types),
    )


def _modules(facts: Mapping[str, Any]) -> dict[str, str]:
    return {"modules": json.dumps(ast.literal_eval(facts["modules"]), ensure_ascii=False)} if "modules" in facts else {}


def _held(fact: str | int | float) -> Held:  # noqa: PYI041 - which of both it is matters
    """An attribute from its literal."""
    if not isinstance(fact, str):
        return ("FLOAT", repr(fact)) if isinstance(fact, float) else ("INT", fact)
    if fact.startswith(("'", "b'")):
        return "STRING", _string(fact)
    if fact.startswith("@"):
        name, _, kind = fact[1:].rpartition(" ")
        return "reference", (name, kind.strip("()"))
    if fact.startswith("[") or fact.endswith("s []"):
        return _list(fact)
    tensor = _TENSOR.fullmatch(fact)
    if tensor:
        return "TENSOR", _tensor(*tensor.groups())
    kind, _, digest = fact.partition(" sha256:")
    return (kind, digest) if digest else ("graphs", tuple(fact.split(", ")))


def _string(literal: str) -> bytes:
    value = ast.literal_eval(literal)
    return value.encode() if isinstance(value, str) else value


def _strings(literal: str) -> list[bytes]:
    return [one.encode() if isinstance(one, str) else one for one in ast.literal_eval(literal)]


def _list(fact: str) -> Held:
    kind, _, _ = fact.partition(" []")
    if kind != fact:
        return kind.upper(), ()
    if _TENSOR.search(fact):
        return "TENSORS", tuple(_tensor(*one) for one in re.findall(r"(\w+\[[\d, ]*\]) (\[[^\]]*\]|sha256:\w+)", fact))
    items = [_NUMBERS.get(one, one) for one in fact[1:-1].split(", ")] if "'" not in fact else []
    if not items:
        return "STRINGS", tuple(_strings(fact))
    if all(re.fullmatch(r"-?\d+", str(one)) for one in items):
        return "INTS", tuple(map(int, items))
    return "FLOATS", tuple(repr(float(one)) for one in items)


def _tensor(head: str, content: str) -> tuple[str, str]:
    return (head, repr(_strings(content))) if head.startswith("string[") else (head, content)


@dataclass(frozen=True)
class Explorer:
    """Model Explorer's own server and page, with the worker that turns a graph of a file into what is drawn."""

    address: str
    page: Any

    def graphs(self, path: Path) -> list[dict[str, Any]]:
        """Every graph of a file: its nodes as the page knows them, without its layers."""
        found: list[dict[str, Any]] = json.loads(self.page.evaluate(_PROCESS, str(path)))
        return found

    def read(self, path: Path) -> PlainGraph:
        found = PlainGraph()
        for graph in self.graphs(path):
            nodes = {node["id"]: node for node in graph["nodes"] if node["nodeType"] == 0}
            for node in nodes.values():
                if node["attrs"]["kind"] != "captured":
                    _add_shown(found, node, nodes)
        return found


def _add_shown(found: PlainGraph, node: dict[str, Any], nodes: Mapping[str, dict[str, Any]]) -> None:
    facts: dict[str, Any] = {name: unshown(text) for name, text in node["attrs"].items()}
    attributes = {name: _parsed(text) for name, text in facts.items() if name.startswith(_ATTRIBUTE)}
    # The page says `<empty>` where there is nothing.
    facts = {name: "" if text == "<empty>" else text for name, text in facts.items()} | attributes
    ports = node.get("outputsMetadata", {})
    places = range(max(map(int, ports), default=-1) + 1)
    outputs = [ports.get(str(place), {}).get("tensor_name", "") for place in places]
    types = [
        ports.get(str(place), {}).get("dtype", "") + ports.get(str(place), {}).get("shape", "") for place in places
    ]
    found.nodes[node["id"]] = _node(facts, outputs, types)
    for edge in node.get("incomingEdges", []):
        if edge["targetNodeInputId"].isdecimal():  # others are for what the bodies of a node read
            found.edges.add(_shown_edge(edge, node["id"], nodes))


def _shown_edge(edge: Mapping[str, str], target: str, nodes: Mapping[str, dict[str, Any]]) -> Edge:
    source, output = nodes[edge["sourceNodeId"]], edge["sourceNodeOutputId"]
    value = source["outputsMetadata"][output]["tensor_name"]
    place = int(edge["targetNodeInputId"])
    if source["attrs"]["kind"] == "captured":
        return unshown(source["attrs"]["source"]), int(source["attrs"]["output"]), target, place, value
    return source["id"], int(output), target, place, value


def unshown(text: str) -> str:
    text = text[1:] if text.startswith(" ") and text.lstrip(" ").startswith("dense<") else text
    return re.sub("(\\\\*)＂", lambda one: "\\" * (len(one[1]) // 2) + ("＂" if len(one[1]) % 2 else '"'), text)


def _parsed(text: str) -> str | float:
    """Numbers of a text that has only texts."""
    if text in _NUMBERS:
        return _NUMBERS[text]
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?\d+(\.\d+)?(e[+-]?\d+)?", text) else text


@contextmanager
def model_explorer() -> Iterator[Explorer]:
    """The real server on the loopback, and a page of it in Chromium."""
    from playwright.sync_api import sync_playwright

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--no_open_in_browser"]
    command = [sys.executable, "-m", "model_explorer", *arguments]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{address}/check_health", server)
        with sync_playwright() as playwright:
            chromium = next((one for one in _CHROMIUM if Path(one).exists()), None)
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page()
            page.goto(address)
            yield Explorer(address, page)
            browser.close()
    finally:
        server.terminate()
        server.wait()


def _wait_for(address: str, server: subprocess.Popen[bytes], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while server.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(address, timeout=1):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("Model Explorer's server does not answer")


# The file as the server hands it out, each of its graphs through the page's own worker.
_PROCESS = """async (path) => {
  const source = document.querySelector('script[src^="main"]').src;
  const name = (await (await fetch(source)).text()).match(/worker-[A-Z0-9]+\\.js/)[0];
  const answer = await (await fetch('/api/v1/read_text_file?path=' + encodeURIComponent(path))).json();
  if (answer.error) throw new Error(answer.error);
  const worker = new Worker('/' + name, {type: 'module'});
  const graphs = [];
  for (const graph of JSON.parse(answer.content).graphs) {
    graphs.push(await new Promise((resolve, reject) => {
      worker.onerror = (event) => reject(new Error(event.message));
      worker.onmessage = (event) => event.data.modelGraph && resolve(event.data.modelGraph);
      worker.postMessage({eventType: 0, graph, showOnNodeItemTypes: {}, nodeDataProviderRuns: {}, paneId: 'p',
                          keepLayersWithASingleChild: graph.layoutConfigs.keepLayersWithASingleChild,
                          initialLayout: false});
    }));
  }
  worker.terminate();
  return JSON.stringify(graphs.map((graph) => ({id: graph.id, nodes: graph.nodes,
                                                groupNodeAttributes: graph.groupNodeAttributes})));
}"""
