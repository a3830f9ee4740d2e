"""Seeded branches: whether `export` and `verify` notice that a file follows the path of its sample.

30 networks decide by sign, size, sparsity or length of their inputs (`value_networks.py`, `length_networks.py`). Each
is exported by TorchScript, which follows the path of the sample without a word; dynamo refuses such networks or keeps
the decision. A branch counts as found if both verbs end with exit code 1 on the file. Beside them a spread of rows of
the corpus with both exporters: whatever ends with exit code 1 on a file that is right is a false alarm.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
from torch import nn

import modelexport as mx
from measure.catalogue import NotRunnable, Options
from measure.corpus.models import build, inputs_of, rows_by_name
from measure.corpus.rows import EXPORTERS, Outcome, Row
from measure.pages import MEASURED, Table, compose_page, list_versions, write_page, written_by
from measure.results import installed_versions

PAGE = MEASURED / "branches.md"
KINDS = ("value_networks", "length_networks")
NEEDED = 27
# Every so many rows of the corpus, by name.
SPREAD = 16
# Rows whose files of TorchScript are really right only for their sample, and why.
FROZEN = {
    "value-dependent": "it branches on its values",
    "recurrent-gemma": "a Python loop over the tokens",
    "qwen2-vl": "positions of images are computed in Python",
}
_FILE = "model.onnx"


@dataclass(frozen=True)
class Answer:
    """What became of one file. `message` is what was said about inputs that are not like the sample.

    refused  torch did not export the network: nobody has a wrong file
    """

    export: bool
    verify: bool
    message: str = ""
    refused: bool = False

    @property
    def found(self) -> bool:
        return self.export and self.verify

    @property
    def word(self) -> str:
        if self.refused:
            return "refused"
        verbs = [verb for verb, noticed in (("export", self.export), ("verify", self.verify)) if noticed]
        return "found" if len(verbs) == 2 else f"{verbs[0]} alone" if verbs else "not found"


def run_measure(options: Options) -> int:
    networks = _networks()
    rows = sorted(rows_by_name())
    if unknown := sorted(set(options.rows) - {*networks, *rows}):
        raise NotRunnable(f"no such network or row: {', '.join(unknown)}")
    chosen = [name for name in networks if not options.rows or name in options.rows]
    spread = [name for name in rows if name in options.rows] if options.rows else rows[::SPREAD]
    seeded, alarms = _seeded_table(chosen, networks), _alarms_table(spread)
    if options.rows:
        sys.stdout.write(f"{seeded.markdown()}\n{alarms.markdown()}")
    else:
        head = written_by("branches", f"with {list_versions(installed_versions())}")
        write_page(PAGE, compose_page("Seeded branches", head, [seeded, alarms]))
    return 0 if seeded.holds and alarms.holds else 1


def _networks() -> dict[str, type[nn.Module]]:
    modules = [import_module(f"measure.branches.{kind}") for kind in KINDS]
    return {
        name: item
        for module in modules
        for name, item in vars(module).items()
        if isinstance(item, type) and issubclass(item, nn.Module) and hasattr(item, "example")
    }


def _seeded_table(names: list[str], networks: dict[str, type[nn.Module]]) -> Table:
    rows: list[tuple[str, ...]] = []
    found = 0
    for name in names:
        answer = _ask_network(networks[name])
        found += answer.found
        rows.append((name, (networks[name].__doc__ or "").strip(), answer.word))
        _tell(rows[-1])
    text = (
        "Networks whose path depends on their inputs, exported by TorchScript. Found: `export` and `verify` both exit\n"
        f"with 1. {found} of {len(names)} are found; at least {NEEDED} of 30 must be."
    )
    return Table(
        "Networks", text, ("network", "its path depends on", ""), tuple(rows), found >= min(NEEDED, len(names))
    )


def _ask_network(kind: type[nn.Module]) -> Answer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = kind().eval()
    inputs: object = network.example()  # type: ignore[operator]
    return ask(network, inputs, "torchscript")


def ask(model: nn.Module, inputs: object, exporter: str) -> Answer:
    """Export and verify a model: whether either of them says that the file is right only for its sample."""
    with _scratch(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exported = mx.export(model, _FILE, inputs=inputs, exporter=exporter)
        except mx.UserError as error:
            return Answer(False, False, str(error).partition("\n")[0], refused=True)
        check = exported.check
        try:
            verified = mx.verify(_FILE, model, inputs=inputs, proof=False)
        except mx.UserError:  # a file that cannot be run, or a model that is random, has no other branch to look for
            return Answer(check is not None and not check.ok, False, "" if check is None else check.message)
        said = [*([] if check is None else [check.message]), *verified.frozen]
        noticed = check is not None and not check.ok
        return Answer(noticed, not verified.ok, next((message for message in said if message), ""))


def _alarms_table(names: list[str]) -> Table:
    rows: list[tuple[str, ...]] = []
    alarms = 0
    for name in names:
        row = rows_by_name()[name]
        for exporter in EXPORTERS:
            model = build(row)
            answer = ask(model, inputs_of(row, model), exporter)
            alarms += _is_alarm(answer, row, exporter)
            rows.append((name, exporter, _describe_alarm(answer, row, exporter)))
            _tell(rows[-1])
    text = (
        f"{len(names)} models of the corpus with both exporters. `export` and `verify` must both exit with 0 where\n"
        f"the corpus expects a right file: {alarms} false alarms."
    )
    return Table("False alarms", text, ("model", "exporter", "exit code 1 because"), tuple(rows), not alarms)


def _is_alarm(answer: Answer, row: Row, exporter: str) -> bool:
    """Anything that is held against a file that is right, whether on its sample or on other inputs."""
    right = row.expected[exporter].outcome is Outcome.OK and row.name not in FROZEN
    return right and not answer.refused and (answer.export or answer.verify)


def _describe_alarm(answer: Answer, row: Row, exporter: str) -> str:
    if answer.refused:
        return "– (refused by torch)"
    if not (answer.export or answer.verify):
        return "–"
    if _is_alarm(answer, row, exporter):
        return f"**{answer.message or 'numbers differ'}**"
    return f"{answer.message or 'numbers differ'} ({FROZEN.get(row.name, row.expected[exporter].outcome)})"


def _tell(row: tuple[str, ...]) -> None:
    sys.stderr.write(" · ".join(row) + "\n")


@contextmanager
def _scratch() -> Iterator[None]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
