"""What several runs, weights and dataflow show of nodes that the values of one run leave undecided."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from tests.support.building import model, node, provenance, tree
from tests.support.proof_stories import Story, numbers

from modelexport.graph.index import index_model
from modelexport.graph.sample import sample
from modelexport.record.results.verification import Fault, NodeProof, ShownBy, Verdict
from modelexport.verify.attribution import AttributionProver
from modelexport.verify.enclosure import ProofCompletion
from modelexport.verify.evidence import SeenValues
from modelexport.verify.series import RunSeries, SeenRun

NET = tree(
    {"": "Net", "a": "Block", "a.fc": "Linear", "b": "Block", "c": "Block"}, *("", "a", "a.fc", "b", "c", "a", "a.fc")
)
X, H, Y, Z = (numbers(seed) for seed in range(4))


def seen_run(story: Story, graph_values: Mapping[str, np.ndarray]) -> SeenRun:
    return SeenRun(story.run, story.samples, {name: sample(array) for name, array in graph_values.items()})


def completed(
    proto: onnx.ModelProto,
    tags: Mapping[str, str],
    *runs: tuple[Story, Mapping[str, np.ndarray]],
    weights: Mapping[str, np.ndarray] = {},
) -> dict[str, NodeProof]:
    """By node. tags: the owners of each node, `.` for the root, blanks between several."""
    graph = index_model(proto)
    record = provenance(proto, NET, {key: text.replace(".", "", text == ".").split(" ") for key, text in tags.items()})
    series = [seen_run(*run) for run in runs]
    proof = AttributionProver(SeenValues(graph, series[0].seen), record, runs[0][0].sources).prove()
    held = {name: sample(array) for name, array in weights.items()}
    whole = ProofCompletion(graph, record.hierarchy.stack, proof).complete(RunSeries(series, held))
    return {found.key: found for found in whole.nodes}


def shown_by(found: NodeProof) -> tuple[Verdict, ShownBy | None]:
    return found.verdict, found.shown_by


# several runs: a mask of truth values

MASKED = model(node("Less", "x k", "m", name="mask"), node("Where", "m x x", "y"), weights={"k": (1,)})


def masked_run(seed: int, size: int, call: str) -> tuple[Story, dict[str, np.ndarray]]:
    x = numbers(seed, 2, size)
    mask, y = x < 0, np.where(x < 0, x, -x)
    story = Story(x=x).op(call, "x", m=mask).op("b", "m x", y=y)
    return story, {"x": x, "m": mask, "y": y}


def test_truth_values_that_agree_in_two_runs_are_proved() -> None:
    runs = [masked_run(seed, size, "a") for seed, size in ((1, 12), (2, 7))]
    assert shown_by(completed(MASKED, {"m": "a", "y": "b"}, *runs)["m"]) == (Verdict.PROVED, ShownBy.SERIES)


def test_one_run_proves_no_truth_values() -> None:
    assert completed(MASKED, {"m": "a", "y": "b"}, masked_run(1, 12, "a"))["m"].verdict is Verdict.NOT_PROVABLE


def test_what_differs_in_one_of_the_runs_is_not_shown() -> None:
    (first, seen), (second, other) = masked_run(1, 12, "a"), masked_run(2, 7, "a")
    found = completed(MASKED, {"m": "a", "y": "b"}, (first, seen), (second, other | {"m": ~other["m"]}))
    assert found["m"].verdict is Verdict.NOT_PROVABLE


def test_a_module_that_did_not_issue_them_is_contradicted_though_it_alone_reads_them() -> None:
    runs = [masked_run(seed, size, "a") for seed, size in ((1, 12), (2, 7))]
    found = completed(MASKED, {"m": "b", "y": "b"}, *runs)["m"]
    assert (found.verdict, found.fault, found.shown_by) == (Verdict.CONTRADICTED, Fault.ANOTHER_MODULE, None)


def test_a_module_too_many_is_not_shown() -> None:
    runs = [masked_run(seed, size, "a") for seed, size in ((1, 12), (2, 7))]
    assert completed(MASKED, {"m": "a c", "y": "b"}, *runs)["m"].shown_by is None


def test_work_that_a_run_leaves_out_is_proved_by_those_that_do_it() -> None:
    (first, seen), *others = (masked_run(seed, size, "a") for seed, size in ((1, 12), (2, 7), (3, 9)))
    lazy = Story(x=first.arrays["x"]).op("b", "x", y=first.arrays["y"])
    found = completed(MASKED, {"m": "a", "y": "b"}, (lazy, seen), *others)
    assert shown_by(found["m"]) == (Verdict.PROVED, ShownBy.SERIES)


# equal work of several modules, told apart by what reads it

EQUAL_WORK = model(
    node("Sin", "k", "s"), node("Add", "x s", "y"), node("Cos", "k", "t"), node("Mul", "y t", "z"), outputs="z"
)
SINES = numbers(9)


def equal_work_run(seed: int) -> tuple[Story, dict[str, np.ndarray]]:
    """`a` and `c` make the same table from nothing; `b` adds that of `a`, the root multiplies by that of `c`."""
    x = numbers(seed)
    values = {"x": x, "s": SINES, "t": SINES, "y": x + SINES, "z": (x + SINES) * SINES}
    story = Story(x=x).op("a", "", s=SINES).view("b", "s", r=SINES).op("b", "x r", y=values["y"])
    return story.op("c", "", t=SINES).op("", "y t", z=values["z"]), values


def test_equal_work_is_told_apart_by_what_reads_it() -> None:
    found = completed(EQUAL_WORK, {"s": "a", "y": "b", "t": "c", "z": "."}, equal_work_run(1), equal_work_run(2))
    assert {key: found[key].shown_by for key in "st"} == {"s": ShownBy.BESIDE, "t": ShownBy.BESIDE}


def test_equal_work_is_not_that_of_the_module_whose_value_others_read() -> None:
    found = completed(EQUAL_WORK, {"s": "c", "y": "b", "t": "a", "z": "."}, equal_work_run(1), equal_work_run(2))
    assert {found[key].shown_by for key in "st"} == {None}


# several runs: a table of distances that `c` makes and hands to `a`

TABLE = model(
    node("Shape", "x", "s"),
    node("Range", "zero s one", "p"),
    node("Sub", "p turned", "d"),
    node("Mul", "x d", "y"),
    node("Sub", "s s", "t"),
    weights={"zero": (1,), "one": (1,), "turned": (1,)},
)


def table_run(size: int) -> tuple[Story, dict[str, np.ndarray]]:
    x, p = numbers(size, size, size), np.arange(size)
    d = p[:, None] - p[None, :]
    story = Story(x=x).op("c", "", p=p).op("c", "p", d=d).op("a", "x d", y=x * d)
    return story, {"x": x, "s": np.array(size), "p": p, "d": d, "y": x * d}


def test_nothing_is_enclosed_across_what_others_issued() -> None:
    """All that reads the table is `a`'s, and still its sizes are not: they are needed by whoever makes it."""
    tags = dict.fromkeys("spdt", "a") | {"y": "a"}
    found = completed(TABLE, tags, table_run(9), table_run(5))
    assert [shown_by(found[key]) for key in "spd"] == [(Verdict.NOT_PROVABLE, None)] * 3
    right = completed(TABLE, {**tags, "s": "c", "p": "c", "d": "c"}, table_run(9), table_run(5))
    assert [right[key].verdict for key in "spd"] == [Verdict.ENCLOSED, Verdict.PROVED, Verdict.PROVED]


# weights

WEIGHED = model(node("MatMul", "x w", "h"), node("Add", "h v", "y"), outputs="y", weights={"w": (12, 12), "v": (12,)})
W, V = numbers(7, 12, 12), numbers(8, 12)


def weighed(tags: Mapping[str, str], reader: str = "a.fc") -> dict[str, NodeProof]:
    """A run whose numbers are others than the file's: only weights tell."""
    story = Story(x=X).holds(w=W, v=V).op(reader, "x w v", z=Z)
    return completed(WEIGHED, tags, (story, {"x": X, "h": H, "y": Y}), weights={"w": W, "v": V})


def test_a_weight_that_one_module_reads_shows_whose_node_it_is() -> None:
    found = weighed({"h": "a.fc", "y": "a.fc"})
    assert {shown_by(item) for item in found.values()} == {(Verdict.PROVED, ShownBy.WEIGHTS)}


def test_a_weight_that_another_module_reads_shows_nothing() -> None:
    assert weighed({"h": "b", "y": "b"})["h"].shown_by is None
    assert weighed({"h": "a.fc b", "y": "a.fc"})["h"].shown_by is None


def small_product(owner: str, *calls: str) -> NodeProof:
    """A product of two numbers, between nodes of b, by a weight that `calls` read."""
    proto = model(
        *(node("Sin", "x", "h"), node("MatMul", "h w", "few"), node("Mul", "h few", "y")),
        weights={"w": (12, 1)},
    )
    w, few = numbers(7, 12, 1), numbers(9, 2, 1)
    story = Story(x=X).holds(w=w).op("b", "x", h=H)
    for call in calls:
        story.op(call, "h w", **{f"made_{call.replace('#', '_')}": few})
    story.op("b", "h", y=Y)
    tags = {"h": "b", "few": owner, "y": "b"}
    return completed(proto, tags, (story, {"x": X, "h": H, "few": few, "y": Y}), weights={"w": w})["few"]


def test_the_only_reader_of_a_weight_is_whose_node_it_is_whatever_is_around() -> None:
    assert shown_by(small_product("a.fc", "a.fc")) == (Verdict.PROVED, ShownBy.WEIGHTS)
    found = small_product("b", "a.fc")
    assert (found.verdict, found.fault, str(found.issued[0])) == (Verdict.CONTRADICTED, Fault.ANOTHER_MODULE, "a.fc")
    assert small_product("a", "a.fc").fault is Fault.TOO_SHALLOW


def test_a_weight_does_not_tell_which_of_several_calls_it_is() -> None:
    for owner in ("a.fc", "a.fc#1", "a.fc a.fc#1"):
        assert small_product(owner, "a.fc", "a.fc#1").shown_by is None


def test_a_weight_that_several_modules_read_contradicts_nobody() -> None:
    assert small_product("b", "a.fc", "c").shown_by is ShownBy.BETWEEN


# a few numbers that agree in several runs


def summary_run(seed: int, call: str) -> tuple[Story, dict[str, np.ndarray]]:
    """`few` is made of `p`, which the run does not have: both lie inside the work of `call`, between others'."""
    x = numbers(seed)
    h, p = np.sin(x), np.abs(x)
    few = p.mean(1, keepdims=True)
    y = h * few
    story = Story(x=x).op("b", "x", h=h).op(call, "h", few=few).op("b", "h few", y=y)
    return story, {"x": x, "h": h, "p": p, "few": few, "y": y}


def summarized(owner: str, *, runs: int = 2) -> list[tuple[Verdict, ShownBy | None]]:
    proto = model(node("Sin", "x", "h"), node("Abs", "h", "p"), node("Sum", "p", "few"), node("Mul", "h few", "y"))
    series = [summary_run(seed, "a") for seed in range(1, 1 + runs)]
    found = completed(proto, {"h": "b", "p": owner, "few": owner, "y": "b"}, *series)
    return [shown_by(found[key]) for key in ("p", "few")]


def test_a_few_numbers_that_others_made_are_not_enclosed_and_what_they_are_made_of_is_not_either() -> None:
    assert summarized("b", runs=1) == [(Verdict.ENCLOSED, ShownBy.BETWEEN)] * 2
    assert summarized("b")[1] == (Verdict.NOT_PROVABLE, None)
    assert summarized("a") == [(Verdict.ENCLOSED, ShownBy.READERS), (Verdict.PROVED, ShownBy.SERIES)]


def test_what_is_proved_later_ends_the_ways_of_what_was_enclosed_before() -> None:
    proto = model(node("Sin", "x", "h"), node("Abs", "h", "p"), node("Sum", "p", "few"), node("Mul", "h few", "y"))
    series = [summary_run(seed, "a") for seed in (1, 2)]
    found = completed(proto, {"h": "b", "p": "b", "few": "a", "y": "b"}, *series)
    assert [shown_by(found[key]) for key in ("p", "few")] == [
        (Verdict.NOT_PROVABLE, None),
        (Verdict.PROVED, ShownBy.SERIES),
    ]


# dataflow

SIZES = model(
    node("Shape", "x", "s"),
    node("Gather", "s i", "n"),
    node("Expand", "x n", "h"),
    node("Tile", "h n", "y"),
    weights={"i": (1,)},
)


def sized(tags: Mapping[str, str]) -> dict[str, NodeProof]:
    story = Story(x=X).op("a", "x", h=H).op("b", "h", y=Y)
    values = {"x": X, "s": np.array([2, 12]), "n": np.array([12]), "h": H, "y": Y}
    return completed(SIZES, {"h": "a", "y": "b", **tags}, (story, values))


def test_a_size_that_several_read_belongs_to_the_first_of_them() -> None:
    found = sized({"s": "a", "n": "a"})
    assert shown_by(found["n"]) == (Verdict.ENCLOSED, ShownBy.FIRST_READER)
    assert shown_by(found["s"]) == (Verdict.ENCLOSED, ShownBy.READERS)  # in turn


def test_a_later_reader_of_a_size_is_not_shown() -> None:
    assert sized({"s": "b", "n": "b"})["n"].shown_by is None


def test_a_size_that_several_read_may_belong_to_the_module_that_calls_them() -> None:
    assert shown_by(sized({"s": ".", "n": "."})["n"]) == (Verdict.ENCLOSED, ShownBy.CALLED)


def test_a_size_may_belong_to_all_of_its_readers_and_to_nobody_else() -> None:
    assert shown_by(sized({"s": "a b", "n": "a b"})["n"]) == (Verdict.ENCLOSED, ShownBy.BETWEEN)
    assert sized({"s": "a c", "n": "a c"})["n"].shown_by is None


def test_a_module_that_does_not_read_a_constant_is_not_shown() -> None:
    assert sized({"s": "c", "n": "c"})["n"].shown_by is None
