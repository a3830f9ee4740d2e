"""Models that do not fit into memory: the structure of Llama 3 70B without a weight, and weights put into a file.

`export --no-weights` of the configuration is held against the bare `torch.onnx.export(optimize=False)` of the same
model on `meta`, which tags nothing and optimizes nothing; both run once, one after the other, each in a process of its
own. Times are CPU time and memory is the most that a process held. The narrow model has the same 80 layers and a width
of 64; without the optimizer both have the same nodes and edges.

`fill` puts 2 GB of float32 weights into a file of a graph that takes them as they are, and into one that takes them
transposed. It is held against the copy of a file of that size, which is read and written in pieces of 1 MB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from measure.pages import Table

LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 80,
    "vocab_size": 128256,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "use_cache": False,
    "dtype": "float32",
}
NARROW = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
# One layer of this width is 2 GB in float32.
TWO_GB = {"num_hidden_layers": 1, "vocab_size": 8192, "hidden_size": 6144, "intermediate_size": 16384}
COLUMNS = ("what", "measured", "limit")
_CHUNK = 1 << 20
_MB, _GB = 1e6, 1e9


def measure_structures(layers: int = 80) -> Table:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        large = _write_config(home / "large", num_hidden_layers=layers)
        narrow = _write_config(home / "narrow", num_hidden_layers=layers, **NARROW)
        bare = _run("bare", large)
        ours = _run("structure", large, home / "large.onnx")
        _run("unoptimized", large, home / "large-plain.onnx")
        _run("unoptimized", narrow, home / "narrow-plain.onnx")
        reading = [_run(verb, home / "large.onnx") for verb in ("analyze", "query")]
        same = _run("compare", home / "large-plain.onnx", home / "narrow-plain.onnx")
        rows = [
            _row(
                f"CPU time / bare export ({ours['cpu']:.0f} s / {bare['cpu']:.0f} s)", ours["cpu"] / bare["cpu"], 1.25
            ),
            _row("memory of the export, GB", ours["memory"] / _GB, 1.5),
            _row(f"nodes without a module, of {ours['nodes']:,.0f}", ours["untagged"], 0),
            _row("nodes and edges that the narrow model has otherwise", same["different"], 0),
            _row("`analyze`, CPU seconds", reading[0]["cpu"], 2),
            _row("`query`, CPU seconds", reading[1]["cpu"], 2),
            *_measure_fill(home),
        ]
    holds = all(measured <= limit for _, measured, limit in rows)
    text = tuple((what, f"{measured:.2f}", f"{limit:g}") for what, measured, limit in rows)
    return Table("Models without weights", (__doc__ or "").strip(), COLUMNS, text, holds)


def _row(what: str, measured: float, limit: float) -> tuple[str, float, float]:
    return what, measured, limit


def _measure_fill(home: Path) -> list[tuple[str, float, float]]:
    config = _write_config(home / "two-gb", **TWO_GB)
    _run("save", config)
    rows = []
    for name, step in (("as they are", "unoptimized"), ("transposed", "structure")):
        structure = home / f"{step}.onnx"
        _run(step, config.parent, structure)
        copied = _run("copy", config.parent / "model.safetensors", home / "copy")
        filled = _run("fill", structure, config.parent, home / "filled" / "filled.onnx")
        ratio = filled["seconds"] / copied["seconds"]
        rows.append(_row(f"`fill` / copy, weights {name} ({filled['seconds']:.1f} s)", ratio, 1.5))
        rows.append(_row("memory of that, MB", filled["memory"] / _MB, 500))
    return rows


def _write_config(folder: Path, **changed: object) -> Path:
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(json.dumps(LLAMA_70B | changed), encoding="utf-8")
    return path


def _run(step: str, *paths: Path) -> Mapping[str, float]:
    """A step in a process of its own; beside what it returns, the CPU time that it says and the memory that it took."""
    sys.stderr.write(f"structures: {step} {paths[0].name}\n")
    command = [sys.executable, "-W", "ignore", "-m", "measure.bench.structures", step, *map(str, paths)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        said = process.stdout.read() if process.stdout else ""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed")
    return {"memory": usage.ru_maxrss * 1024, **json.loads(said.splitlines()[-1])}


def _bare(config: str) -> None:
    import torch
    import transformers

    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.AutoConfig.from_pretrained(config)).eval()
        inputs = {
            "input_ids": torch.ones(2, 8, dtype=torch.int64),
            "attention_mask": torch.ones(2, 8, dtype=torch.int64),
        }
    axes = dict.fromkeys((0, 1), torch.export.Dim.AUTO)
    start = time.process_time()
    torch.onnx.export(
        model, (), kwargs=inputs, dynamo=True, optimize=False, verbose=False, dynamic_shapes=dict.fromkeys(inputs, axes)
    )
    _say(cpu=time.process_time() - start)


def _export(config: str, output: str, **options: Any) -> None:
    import modelexport as mx

    # What a plain export needs as well is loaded before: both are asked for the work alone.
    import_module("transformers.models.llama.modeling_llama")
    start = time.process_time()
    result = mx.export(config, output, no_weights=True, **options)
    nodes = result.provenance.nodes.values()
    untagged = sum(1 for entry in nodes if not entry.attribution.owners)
    _say(cpu=time.process_time() - start, nodes=len(nodes), untagged=untagged)


def _save(config: str) -> None:
    """A checkpoint of random numbers: what they are makes no difference."""
    import torch
    import transformers

    model = transformers.LlamaForCausalLM(transformers.AutoConfig.from_pretrained(config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-1, 1)
    model.save_pretrained(Path(config).parent, max_shard_size="4GB")
    _say()


def _compare(left: str, right: str) -> None:
    from modelexport.graph.file.tagged_file import open_tagged

    def edges(path: str) -> list[tuple[object, ...]]:
        return [(node.op_type, node.inputs, node.outputs) for node in open_tagged(Path(path)).graph.nodes]

    first, second = edges(left), edges(right)
    different = sum(one != other for one, other in zip(first, second, strict=False)) + abs(len(first) - len(second))
    _say(different=different)


def _copy(source: str, target: str) -> None:
    start = time.process_time()
    with Path(source).open("rb") as file, Path(target).open("wb") as copy:
        while chunk := file.read(_CHUNK):
            copy.write(chunk)
    _say(seconds=time.process_time() - start)
    Path(target).unlink()


def _fill(structure: str, checkpoint: str, output: str) -> None:
    import modelexport as mx

    Path(output).parent.mkdir(exist_ok=True)
    start = time.process_time()
    result = mx.fill(structure, output, model=checkpoint, external_data=True)
    _say(seconds=time.process_time() - start)
    for path in result.files:
        path.unlink()


def _read(verb: str, path: str) -> None:
    command = {"analyze": ["analyze", path], "query": ["query", path, "role=attention.query & op=MatMul"]}[verb]
    subprocess.run([sys.executable, "-m", "modelexport", *command], check=True, stdout=subprocess.DEVNULL)
    spent = os.times()
    _say(cpu=spent.children_user + spent.children_system)


def _say(**figures: float) -> None:
    sys.stdout.write(json.dumps(figures) + "\n")


_STEPS: Mapping[str, Callable[..., None]] = {
    "bare": _bare,
    "structure": _export,
    "unoptimized": lambda config, output: _export(config, output, no_optimize=True),
    "save": _save,
    "compare": _compare,
    "copy": _copy,
    "fill": _fill,
    "analyze": lambda path: _read("analyze", path),
    "query": lambda path: _read("query", path),
}

if __name__ == "__main__":
    _STEPS[sys.argv[1]](*sys.argv[2:])
