"""The verdict on each node, on small graphs beside the run that they should be of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.building import body, model, node, provenance, tree
from tests.support.proof_stories import WIDTH, Story, dags, numbers

from modelexport.graph.index import index_model
from modelexport.graph.sample import sample
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.results.verification import Fault, NodeProof, Verdict
from modelexport.verify.attribution import AttributionProver
from modelexport.verify.evidence import SeenValues

PROVED, ENCLOSED, UNATTRIBUTED = Verdict.PROVED, Verdict.ENCLOSED, Verdict.UNATTRIBUTED
NOT_PROVABLE, CONTRADICTED = Verdict.NOT_PROVABLE, Verdict.CONTRADICTED
NET = tree(
    {"": "Net", "a": "Block", "a.fc": "Linear", "b": "Block", "c": "Block"}, *("", "a", "a.fc", "b", "c", "a", "a.fc")
)
X, H, G, Y = (numbers(seed) for seed in range(4))
CHAIN = model(node("Sin", "x", "h"), node("Cos", "h", "g"), node("Tan", "g", "y"))
RUN = Story(x=X).op("a", "x", h=H).op("b", "h", g=G).op("c", "g", y=Y)


def judged(
    proto: onnx.ModelProto,
    tags: Mapping[str, str],
    story: Story,
    trouble: str = "",
    drawing: Collection[str] = (),
    hierarchy: Hierarchy | None = None,
    /,
    **seen: np.ndarray,
) -> dict[str, NodeProof]:
    """By node. Values and constants of the graph are those of the run with the same names, and what is `seen`.

    tags  the owners of each node, `.` for the root, blanks between several
    """
    graph = index_model(proto)
    owners = {key: text.replace(".", "", text == ".").split(" ") for key, text in tags.items()}
    record = provenance(proto, hierarchy or NET, owners)
    names = {*graph.inputs, *graph.producers}
    held = {name: sample(array) for name, array in {**story.arrays, **seen}.items()}
    values = SeenValues(graph, {name: held[name] for name in held if name in names}, drawing=drawing)
    constants = {name: held[name] for name in held if name in graph.consumers and name not in names}
    prover = AttributionProver(values, record, story.sources, trouble, constants)
    return {found.key: found for found in prover.prove().nodes}


class Answer(NamedTuple):
    verdict: Verdict
    reason: str
    issued: str


def answer(found: NodeProof) -> Answer:
    """What is said of one node; the root is `.`"""
    return Answer(found.verdict, found.reason, " ".join(str(call) or "." for call in found.issued))


def verdicts(found: Mapping[str, NodeProof]) -> dict[str, Verdict]:
    return {key: one.verdict for key, one in found.items()}


# proved


def test_a_value_that_its_owner_issued_is_proved() -> None:
    found = judged(CHAIN, {"h": "a", "g": "b", "y": "c"}, RUN)
    assert [answer(one) for one in found.values()] == [(PROVED, "", "a"), (PROVED, "", "b"), (PROVED, "", "c")]


def test_every_node_is_judged_in_the_order_of_the_file() -> None:
    proto = model(node("Sin", "x", "h", name="first"), node("Cos", "h", "y"))
    nodes = list(judged(proto, {"h": "a"}, RUN).values())
    assert [(one.key, one.name, one.op_type) for one in nodes] == [("h", "first", "Sin"), ("y", "", "Cos")]
    assert nodes[0].claimed == (ModuleCall("a"),)
    assert nodes[1].claimed == ()


def test_a_later_call_is_not_the_first_one() -> None:
    story = Story(x=X).op("a", "x", h=H).op("a#1", "h", y=Y)
    proto = model(node("Sin", "x", "h"), node("Sin", "h", "y"))
    assert verdicts(judged(proto, {"h": "a", "y": "a#1"}, story)) == {"h": PROVED, "y": PROVED}
    shifted = judged(proto, {"h": "a#1", "y": "a"}, story)
    assert answer(shifted["h"]) == (CONTRADICTED, "another module issued its value", "a")
    assert answer(shifted["y"]) == (CONTRADICTED, "another module issued its value", "a#1")


def test_a_value_that_two_calls_made_is_not_proved_for_either_and_contradicts_a_third() -> None:
    story = Story(x=X).op("a", "x", h=H).op("b", "x", again=H)
    proto = model(node("Sin", "x", "h"), outputs="h")
    found = {owner: judged(proto, {"h": owner}, story)["h"].verdict for owner in "abc"}
    assert found == {"a": NOT_PROVABLE, "b": NOT_PROVABLE, "c": CONTRADICTED}
    assert answer(judged(proto, {"h": "a"}, story)["h"]).issued == "a b"


def test_modules_that_made_the_same_are_told_apart_by_what_is_around() -> None:
    story = Story(x=X).op("a", "x", h=H).op("b", "x", again=H).op("a", "h", y=Y)
    proto = model(node("Sin", "x", "h"), node("Cos", "h", "y"))
    assert answer(judged(proto, {"h": "a", "y": "a"}, story)["h"]) == (ENCLOSED, "", "a")
    other = judged(proto, {"h": "b", "y": "a"}, story)["h"]
    assert answer(other) == (NOT_PROVABLE, "several modules made the same", "a b")
    both = story.op("b", "again", z=G)
    shared = model(node("Sin", "x", "h"), node("Cos", "h", "y"), node("Tan", "h", "z"), outputs="y z")
    found = judged(shared, {"h": "a", "y": "a", "z": "b"}, both)["h"]
    assert answer(found) == (NOT_PROVABLE, "several modules made the same", "a b")


def test_integers_prove_if_there_are_enough_of_them() -> None:
    ids = np.arange(20) * 3
    story = Story(x=np.arange(20)).op("a", "x", h=ids)
    proto = model(node("Mul", "x three", "h"), outputs="h", weights=["three"])
    assert verdicts(judged(proto, {"h": "a"}, story)) == {"h": PROVED}
    assert verdicts(judged(proto, {"h": "b"}, story)) == {"h": CONTRADICTED}


@given(dags(), st.data())
def test_true_tags_are_proved_and_one_that_is_moved_is_found(proto: onnx.ModelProto, data: st.DataObject) -> None:
    graph = index_model(proto)
    calls = st.sampled_from(["a", "a.fc", "b", "c", "a#1"])
    tags = {one.key: data.draw(calls) for one in graph.nodes}
    story = Story(x=X)
    for place, one in enumerate(graph.nodes):
        story.op(tags[one.key], " ".join(one.inputs), **{one.key: numbers(100 + place)})
    assert set(verdicts(judged(proto, tags, story)).values()) == {PROVED}
    moved = data.draw(st.sampled_from(sorted(tags)))
    elsewhere = data.draw(calls.filter(lambda call: call != tags[moved]))
    found = judged(proto, {**tags, moved: elsewhere}, story)
    assert verdicts(found) == {key: CONTRADICTED if key == moved else PROVED for key in tags}
    assert answer(found[moved]).issued == tags[moved]


# enclosed

BROKEN_DOWN = model(node("MatMul", "x w", "p"), node("Add", "p v", "h"), node("Cos", "h", "g"), outputs="g")
P = numbers(8)


def test_the_inside_of_an_operator_is_enclosed() -> None:
    found = judged(BROKEN_DOWN, {"p": "a", "h": "a", "g": "b"}, RUN, p=P)
    assert answer(found["p"]) == (ENCLOSED, "", "a")
    assert verdicts(found) == {"p": ENCLOSED, "h": PROVED, "g": PROVED}


def test_a_value_that_cannot_be_seen_is_enclosed_too() -> None:
    assert judged(BROKEN_DOWN, {"p": "a", "h": "a", "g": "b"}, RUN)["p"].verdict is ENCLOSED


def test_what_two_modules_read_is_enclosed_if_it_comes_from_one_of_them() -> None:
    proto = model(node("Sin", "x", "h"), node("Neg", "h", "p"), node("Abs", "p", "g"), node("Tan", "p", "y"))
    story = Story(x=X).op("a", "x", h=H).op("a", "h", g=G).op("b", "h", y=Y)
    assert answer(judged(proto, {"h": "a", "p": "a", "g": "a", "y": "b"}, story, p=P)["p"]) == (ENCLOSED, "", "a")


def test_what_two_modules_read_and_none_of_them_made_is_not_provable() -> None:
    proto = model(node("Neg", "x", "p"), node("Abs", "p", "g"), node("Tan", "p", "y"))
    story = Story(x=X).op("a", "x", g=G).op("b", "x", y=Y)
    found = judged(proto, {"p": "a", "g": "a", "y": "b"}, story, p=P)
    assert answer(found["p"])[:2] == (NOT_PROVABLE, "not between proved nodes of one module")


def test_trivial_values_are_enclosed_by_those_that_are_not() -> None:
    proto = model(node("ReduceMax", "x", "p"), node("Sub", "x p", "h"), node("Cos", "h", "g"), outputs="g")
    found = judged(proto, {"p": "a", "h": "a", "g": "b"}, RUN, p=np.array(2.5, np.float32))
    assert answer(found["p"]) == (ENCLOSED, "too few different numbers", "a")


def test_what_only_hands_on_is_enclosed_and_says_so() -> None:
    proto = model(node("Sin", "x", "h"), node("Identity", "h", "i"), node("Cos", "i", "g"), outputs="g")
    assert answer(judged(proto, {"h": "a", "i": "b", "g": "b"}, RUN, i=H)["i"]) == (
        ENCLOSED,
        "hands on what it reads",
        "b",
    )


def test_an_owner_too_many_is_not_enclosed() -> None:
    found = judged(BROKEN_DOWN, {"p": "a c", "h": "a", "g": "b"}, RUN, p=P)
    assert answer(found["p"])[:2] == (CONTRADICTED, "credited to a module that had no part in it")


# contradicted


def test_swapped_modules_are_contradicted() -> None:
    found = judged(CHAIN, {"h": "b", "g": "a", "y": "c"}, RUN)
    assert answer(found["h"]) == (CONTRADICTED, "another module issued its value", "a")
    assert answer(found["g"]) == (CONTRADICTED, "another module issued its value", "b")
    assert found["y"].verdict is PROVED


def test_the_parent_and_the_child_are_not_the_module() -> None:
    story = Story(x=X).op("a", "x", h=H).op("a.fc", "h", y=Y)
    proto = model(node("Sin", "x", "h"), node("Cos", "h", "y"))
    found = judged(proto, {"h": "a.fc", "y": "."}, story)
    assert verdicts(found) == {"h": CONTRADICTED, "y": CONTRADICTED}


def test_the_inside_of_an_operator_is_not_a_strangers() -> None:
    found = judged(BROKEN_DOWN, {"p": "b", "h": "a", "g": "b"}, RUN, p=P)
    assert answer(found["p"]) == (CONTRADICTED, "lies inside the work of another module", "a")


def test_the_inside_of_an_operator_is_not_the_parents() -> None:
    found = judged(BROKEN_DOWN, {"p": ".", "h": "a", "g": "b"}, RUN, p=P)
    assert answer(found["p"]) == (CONTRADICTED, "lies inside the work of another module", "a")


def test_what_a_result_that_says_nothing_was_made_of_is_not_its_readers() -> None:
    proto = model(node("Sin", "x", "p"), node("Sign", "p", "few"), node("Tan", "few", "y"))
    story = Story(x=X).op("", "x", few=np.sign(P)).op("a", "few", y=Y)
    found = judged(proto, {"p": ".", "few": ".", "y": "a"}, story, p=P)
    assert answer(found["p"]) == (NOT_PROVABLE, "all that is made of it says nothing", "a")


def test_what_lies_between_two_modules_is_no_third_ones() -> None:
    proto = model(node("Sin", "x", "h"), node("Neg", "h", "p"), node("Abs", "p", "g"), node("Tan", "p", "y"))
    story = Story(x=X).op("a", "x", h=H).op("a", "h", g=G).op("b", "h", y=Y)
    found = judged(proto, {"h": "a", "p": "c", "g": "a", "y": "b"}, story, p=P)
    assert answer(found["p"]) == (CONTRADICTED, "lies inside the work of another module", "a b")


FEW = np.array([0.5, 1.5], np.float32)
SUMMARY = (node("Sin", "x", "h"), node("Sub", "h k", "p"), node("ReduceMean", "p", "few"))


def inside_of_b(proto: onnx.ModelProto, story: Story, owner: str, **seen: np.ndarray) -> Verdict:
    """The verdict on `p`, which lies inside the work of b, or beside it."""
    tags = {"h": "a", "p": owner, "few": "b", "s": "b", "e": "b", "y": "c"}
    return judged(proto, {key: tags[key] for key in index_model(proto).by_key}, story, p=P, **seen)["p"].verdict


def test_the_inside_of_an_operator_that_makes_a_few_numbers_is_its_modules() -> None:
    """What follows, or nothing, does not tell whose it is; who had no part in what follows did not do it."""
    story = Story(x=X).op("a", "x", h=H).op("b", "h", few=FEW)
    last = model(*SUMMARY, weights=["k"])
    assert inside_of_b(last, story, "b") is NOT_PROVABLE
    before = model(*SUMMARY, node("Tan", "few", "y"), weights=["k"])
    found = {owner: inside_of_b(before, story.op("c", "few", y=Y), owner) for owner in ("b", "a", "a.fc", ".")}
    assert found == {"b": NOT_PROVABLE, "a": CONTRADICTED, "a.fc": CONTRADICTED, ".": CONTRADICTED}


def test_what_two_results_are_made_of_may_be_the_work_of_either() -> None:
    story = Story(x=X).op("a", "x", h=H).op("b", "h", few=FEW).op("c", "h", y=Y)
    proto = model(*SUMMARY, node("Tan", "p", "y"), outputs="few y", weights=["k"])
    assert [inside_of_b(proto, story, owner) for owner in "bc"] == [NOT_PROVABLE, ENCLOSED]


def test_what_asks_for_the_size_of_a_value_does_no_work_on_it() -> None:
    """Something broadcast, of which nothing but the size is read."""
    nodes = (node("Shape", "p", "s"), node("Expand", "h s", "e"), node("Tan", "e", "y"))
    story = Story(x=X).op("a", "x", h=H).op("c", "h", y=Y)
    proto = model(*SUMMARY[:2], *nodes, weights=["k"])
    assert inside_of_b(proto, story, "b", s=np.array([2, 12]), e=H) is NOT_PROVABLE


def test_the_inside_of_an_operator_is_not_a_childs() -> None:
    found = judged(BROKEN_DOWN, {"p": "a.fc", "h": "a", "g": "b"}, RUN, p=P)
    assert answer(found["p"]) == (CONTRADICTED, "lies inside the work of another module", "a")
    small = judged(BROKEN_DOWN, {"p": "a.fc", "h": "a", "g": "b"}, RUN, p=np.array(2.5, np.float32))
    assert answer(small["p"])[:2] == (NOT_PROVABLE, "too few different numbers")


def test_floats_that_say_nothing_are_not_contradicted_between_strangers() -> None:
    found = judged(BROKEN_DOWN, {"p": "c", "h": "a", "g": "b"}, RUN, p=np.array(2.5, np.float32))
    assert answer(found["p"])[:2] == (NOT_PROVABLE, "too few different numbers")


def test_integers_between_strangers_are_not() -> None:
    found = judged(BROKEN_DOWN, {"p": "c", "h": "a", "g": "b"}, RUN, p=np.array(3))
    assert answer(found["p"])[:2] == (NOT_PROVABLE, "integer arithmetic")


# views and copies

TURNED = H.reshape(-1)
RESHAPED = model(node("Sin", "x", "h"), node("Reshape", "h s", "r"), node("Cos", "r", "g"), outputs="g", weights=["s"])
TURNING = Story(x=X).op("a", "x", h=H).view("b", "h", r=TURNED).op("c", "r", g=G)


def test_a_view_belongs_to_whoever_asked_for_it() -> None:
    found = judged(RESHAPED, {"h": "a", "r": "b", "g": "c"}, TURNING)
    assert verdicts(found) == {"h": PROVED, "r": PROVED, "g": PROVED}


def test_a_view_is_not_that_of_whoever_made_what_it_shows() -> None:
    found = judged(RESHAPED, {"h": "a", "r": "a", "g": "c"}, TURNING)
    assert answer(found["r"]) == (CONTRADICTED, "another module issued its value in this shape", "b")
    stranger = judged(RESHAPED, {"h": "a", "r": "a#1", "g": "c"}, TURNING)
    assert stranger["r"].verdict is CONTRADICTED


def test_a_view_that_the_run_does_not_have_is_told_by_its_surroundings() -> None:
    for owner, verdict in (("c", ENCLOSED), ("b", CONTRADICTED), ("a", NOT_PROVABLE)):
        story = Story(x=X).op("a", "x", h=H).op("c", "h", g=G)
        assert judged(RESHAPED, {"h": "a", "r": owner, "g": "c"}, story, r=TURNED)["r"].verdict is verdict


def test_a_module_that_only_copies_cannot_be_proved_and_is_not_contradicted() -> None:
    """Of what a made, b returned a copy; the file has one node for both."""
    story = Story(x=X).op("a", "x", h=H).op("b", "h", copy=H).op("c", "copy", y=Y)
    proto = model(node("Sin", "x", "h"), node("Cos", "h", "y"))
    found = judged(proto, {"h": "b", "y": "c"}, story)
    assert answer(found["h"]) == (NOT_PROVABLE, "hands on what another module made", "a")
    assert judged(proto, {"h": "a", "y": "c"}, story)["h"].verdict is PROVED


IDLE = model(node("Sin", "x", "h"), node("Identity", "h", "i"), node("Cos", "i", "g"), node("Tan", "i", "y"))
IDLING = Story(x=X).op("a", "x", h=H).op("b", "h", g=G).op("a", "h", y=Y)


def test_a_module_that_returns_what_it_is_given_is_not_contradicted() -> None:
    """It issues nothing, so nobody can tell whose the node is: not even that it is none of those around it."""
    found = judged(IDLE, {"h": "a", "i": "c", "g": "b", "y": "a"}, IDLING, i=H)
    assert answer(found["i"])[:2] == (NOT_PROVABLE, "not between proved nodes of one module")
    assert judged(IDLE, {"h": "a", "i": "a", "g": "b", "y": "a"}, IDLING, i=H)["i"].verdict is PROVED


def test_who_changes_the_shape_is_not_idle() -> None:
    found = judged(IDLE, {"h": "a", "i": "c", "g": "b", "y": "a"}, IDLING, i=TURNED)
    assert answer(found["i"])[:2] == (CONTRADICTED, "lies inside the work of another module")


def test_a_module_that_has_no_effect_is_proved_by_what_it_hands_on() -> None:
    """A norm that was never trained: what it issued is what it read. The exporter left one node for both."""
    story = Story(x=X).op("a", "x", h=X).op("a", "h", p=P).op("b", "p", g=P).op("c", "g", y=Y)
    proto = model(node("Sin", "x", "p"), node("Identity", "p", "g"), node("Tan", "g", "y"))
    found = judged(proto, {"p": "a", "g": "b", "y": "c"}, story)
    assert verdicts(found) == {"p": PROVED, "g": PROVED, "y": PROVED}


# hooks

HOOKED = model(node("Sin", "x", "h"), node("Cos", "h", "y"))


def hooked(owner: str, issuer: str, hook: str) -> Verdict:
    """The verdict on a node of `owner` that was issued by another module, with a hook somewhere."""
    story = Story(x=X).op("b", "x", h=H).op(issuer, "h", y=Y).hooks(hook)
    return judged(HOOKED, {"h": "b", "y": owner}, story)["y"].verdict


def test_the_work_of_a_hook_may_be_its_modules_or_its_callers() -> None:
    assert hooked("a.fc", issuer="a", hook="a.fc") is NOT_PROVABLE
    assert hooked("a", issuer="a.fc", hook="a.fc") is NOT_PROVABLE
    assert hooked("a.fc", issuer="a.fc", hook="a.fc") is PROVED


def test_a_hook_elsewhere_excuses_nothing() -> None:
    assert hooked("a.fc", issuer="a", hook="a") is CONTRADICTED
    assert hooked("c", issuer="a", hook="a.fc") is CONTRADICTED
    assert hooked("a.fc#1", issuer="a", hook="a.fc") is CONTRADICTED
    assert hooked("a.fc#1", issuer="a#1", hook="a.fc") is NOT_PROVABLE


# several owners

FUSED = model(node("FusedConv", "x", "g"), node("Tan", "g", "y"))


def test_a_fused_node_is_proved_by_all_its_owners() -> None:
    found = judged(FUSED, {"g": "a b", "y": "c"}, RUN)
    assert answer(found["g"]) == (PROVED, "", "b")
    assert verdicts(found) == {"g": PROVED, "y": PROVED}


def test_a_dropped_owner_of_a_fused_node_is_missed() -> None:
    last = judged(FUSED, {"g": "b", "y": "c"}, RUN)
    assert answer(last["g"]) == (CONTRADICTED, "does the work of a module that is not named", "a b")
    first = judged(FUSED, {"g": "a", "y": "c"}, RUN)
    assert answer(first["g"]) == (CONTRADICTED, "does the work of a module that is not named", "a b")
    assert first["g"].fault is last["g"].fault is Fault.TOO_NARROW


def test_who_did_the_work_before_a_node_is_not_one_of_its_owners() -> None:
    """The node before holds nothing that the run has, and is the convolution's: only the norm is left."""
    proto = model(node("Conv", "x", "p"), node("Mul", "p w", "g"), node("Tan", "g", "y"))
    found = judged(proto, {"p": "a", "g": "a", "y": "c"}, RUN, p=P)["g"]
    assert answer(found) == (CONTRADICTED, "another module issued its value", "b")
    assert found.fault is Fault.ANOTHER_MODULE


def test_an_owner_that_is_named_above_is_not_missed() -> None:
    """The node before holds nothing that the run has, as when a norm is folded into a convolution."""
    proto = model(node("Conv", "x", "p"), node("Mul", "p w", "g"), node("Tan", "g", "y"))
    found = judged(proto, {"p": "a", "g": "b", "y": "c"}, RUN, p=P)
    assert verdicts(found)["g"] is PROVED
    found = judged(proto, {"p": "b", "g": "b", "y": "c"}, RUN, p=P)
    assert answer(found["g"])[:2] == (CONTRADICTED, "does the work of a module that is not named")


def test_an_owner_that_is_named_farther_above_is_not_missed() -> None:
    proto = model(node("Conv", "x", "p"), node("Mul", "p w", "q"), node("Add", "q v", "g"), node("Tan", "g", "y"))
    found = judged(proto, {"p": "a", "q": "b", "g": "b", "y": "c"}, RUN, p=P, q=numbers(9))
    assert verdicts(found)["g"] is PROVED


def test_who_is_named_beyond_what_is_known_does_not_help() -> None:
    proto = model(node("Neg", "x", "f"), node("FusedConv", "f", "g"), node("Tan", "g", "y"))
    story = Story(x=X).op("a", "x", f=P).op("a", "f", h=H).op("b", "h", g=G).op("c", "g", y=Y)
    found = judged(proto, {"f": "a", "g": "b", "y": "c"}, story)
    assert answer(found["g"]) == (CONTRADICTED, "does the work of a module that is not named", "a b")


def test_who_computed_what_was_folded_into_a_constant_is_not_missed() -> None:
    """A mask made of sizes: whoever multiplies by it does not do the work of the module that made the mask."""
    story = Story(x=X).op("a", "x", h=H).op("b", "x h", g=G).op("c", "g", y=Y)
    proto = model(node("Mul", "x w", "g"), node("Tan", "g", "y"))
    assert judged(proto, {"g": "b", "y": "c"}, story, w=H)["g"].verdict is PROVED
    found = judged(proto, {"g": "b", "y": "c"}, story, w=P)
    assert answer(found["g"]) == (CONTRADICTED, "does the work of a module that is not named", "a b")


def test_who_only_reshaped_is_not_missed() -> None:
    proto = model(node("Sin", "x", "h"), node("Cos", "h", "g"), outputs="g")
    assert verdicts(judged(proto, {"h": "a", "g": "c"}, TURNING)) == {"h": PROVED, "g": PROVED}


@pytest.mark.parametrize("view", [H[:1], np.repeat(H[None], 3, axis=0)], ids=["a part", "repeated"])
def test_who_only_took_a_part_or_repeated_is_not_missed(view: np.ndarray) -> None:
    """The file's operator broadcasts by itself, or has the taking of a part inside of it."""
    story = Story(x=X).op("a", "x", h=H).view("b", "h", view=view).op("c", "view", g=G)
    proto = model(node("Sin", "x", "h"), node("Cos", "h", "g"), outputs="g")
    assert verdicts(judged(proto, {"h": "a", "g": "c"}, story)) == {"h": PROVED, "g": PROVED}


SPLIT = model(node("Split", "x", "g y", num_outputs=2), outputs="g y")
HALVES = Story(x=X).op("a", "x", g=G).op("b", "x", y=Y)


def test_a_node_with_several_results_is_proved_by_all_who_issued_them() -> None:
    assert judged(SPLIT, {"g": "a b"}, HALVES)["g"].verdict is PROVED
    assert judged(SPLIT, {"g": "c"}, HALVES)["g"].verdict is CONTRADICTED


@pytest.mark.parametrize("owner", ["a", "b"])
def test_an_owner_of_one_of_several_results_is_missed(owner: str) -> None:
    found = judged(SPLIT, {"g": owner}, HALVES)["g"]
    assert answer(found) == (CONTRADICTED, "does the work of a module that is not named", "a b")


def test_a_result_that_the_run_does_not_have_misses_nobody() -> None:
    assert judged(SPLIT, {"g": "a"}, Story(x=X).op("a", "x", g=G), y=P)["g"].verdict is PROVED


def test_an_owner_that_had_no_part_in_it_is_contradicted() -> None:
    found = judged(CHAIN, {"h": "a c", "g": "b", "y": "c"}, RUN)["h"]
    assert answer(found) == (CONTRADICTED, "credited to a module that had no part in it", "a")


@pytest.mark.parametrize(("owners", "verdict"), [("a b", NOT_PROVABLE), ("b", PROVED), ("b c", CONTRADICTED)])
def test_a_view_that_the_node_took_in_is_its_issuers_part_of_it(owners: str, verdict: Verdict) -> None:
    """A transpose of a picture of one element: the numbers before it are those behind it, in another shape."""
    h = H.reshape(1, WIDTH, -1)
    story = Story(x=X).op("c", "x", h=h).view("a", "h", turned=h.reshape(1, -1, WIDTH)).op("b", "turned", g=G)
    proto = model(node("Sin", "x", "h"), node("FusedMatMul", "h", "g"), outputs="g")
    assert judged(proto, {"h": "c", "g": owners}, story)["g"].verdict is verdict


def test_an_owner_too_many_that_works_beside_it_had_no_part_in_it() -> None:
    found = judged(CHAIN, {"h": "a b", "g": "b", "y": "c"}, RUN)["h"]
    assert answer(found) == (CONTRADICTED, "credited to a module that had no part in it", "a")
    assert found.fault is Fault.TOO_WIDE


def test_what_a_zero_bias_left_over_is_its_modules_part() -> None:
    """The product alone has the module's value already, since the bias adds nothing; the fused node adds it."""
    weight, bias = numbers(7), np.zeros(WIDTH, np.float32)
    story = Story(x=X).holds(w=weight, bias=bias).op("a", "x w bias", h=H).op("b", "h", g=G).op("c", "g", y=Y)
    proto = model(node("MatMul", "x w", "h"), node("BiasGelu", "h bias", "g"), node("Tan", "g", "y"))
    verdict = judged(proto, {"h": "a", "g": "a b", "y": "c"}, story)["g"].verdict
    assert verdict is PROVED
    whole = model(node("Gemm", "x w bias", "h"), node("BiasGelu", "h bias", "g"), node("Tan", "g", "y"))
    found = judged(whole, {"h": "a", "g": "a b", "y": "c"}, story)["g"]
    assert answer(found) == (CONTRADICTED, "credited to a module that had no part in it", "b")


@pytest.mark.parametrize(("owners", "verdict"), [("a b", PROVED), ("b", PROVED), ("b c", CONTRADICTED)])
def test_an_operator_that_changes_nothing_is_its_issuers_part_of_the_node_that_took_it_in(
    owners: str, verdict: Verdict
) -> None:
    """An optimizer puts padding into the convolution behind it, padding by nothing too."""
    proto = model(node("Sin", "x", "h"), node("Conv", "h w", "g"), node("Tan", "g", "y"))
    story = Story(x=X).op("a", "x", h=H).op("a", "h", padded=H).op("b", "padded", g=G).op("c", "g", y=Y)
    assert judged(proto, {"h": "a", "g": owners, "y": "c"}, story)["g"].verdict is verdict


def test_an_operator_that_changes_nothing_and_has_a_node_is_no_part_of_the_next() -> None:
    proto = model(node("Sin", "x", "h"), node("Pad", "h", "p"), node("Conv", "p w", "g"), node("Tan", "g", "y"))
    story = Story(x=X).op("a", "x", h=H).op("a", "h", p=H).op("b", "p", g=G).op("c", "g", y=Y)
    found = judged(proto, {"h": "a", "p": "a", "g": "a b", "y": "c"}, story)["g"]
    assert found.verdict is CONTRADICTED
    assert found.fault is Fault.TOO_WIDE


def test_an_owner_too_many_of_a_view_is_not_proved() -> None:
    assert judged(RESHAPED, {"h": "a", "r": "b a#1", "g": "c"}, TURNING)["r"].verdict is not PROVED


def test_who_hands_on_what_others_made_had_no_part_in_it() -> None:
    proto = model(node("Sin", "x", "h"), node("Cos", "h", "y"))
    story = Story(x=X).op("a", "x", h=H).op("b", "h", same=H.copy()).op("c", "same", y=Y)
    assert judged(proto, {"h": "a", "y": "c"}, story)["h"].verdict is PROVED
    assert judged(proto, {"h": "a b", "y": "c"}, story)["h"].verdict is NOT_PROVABLE


def test_two_that_issued_the_same_are_not_too_many() -> None:
    story = Story(x=X).op("a", "x", h=H).op("b", "x", again=H).op("c", "h", copy=H)
    proto = model(node("Sin", "x", "h"), outputs="h")
    assert {owners: judged(proto, {"h": owners}, story)["h"].verdict for owners in ("a b", "a c", "a a.fc")} == {
        "a b": PROVED,
        "a c": NOT_PROVABLE,
        "a a.fc": CONTRADICTED,
    }


# what proves nothing

TRIVIAL = {
    "a scalar": (np.array(2.5, np.float32), "too few different numbers"),
    "all equal": (np.full((2, 12), 0.25, np.float32), "too few different numbers"),
    "few different numbers": (np.tile(np.arange(4, dtype=np.float32), 6), "too few different numbers"),
    "few numbers": (numbers(9, 7), "too few different numbers"),
    "truth values": (numbers(9) > 0, "truth values"),
    "a size": (np.array([2, 12]), "integer arithmetic"),
    "an input": (X.copy(), "hands on an input of the model"),
    "an input in another shape": (X.reshape(-1), "hands on an input of the model"),
}


@pytest.mark.parametrize("name", TRIVIAL)
def test_trivial_values_prove_nothing_and_contradict_nothing(name: str) -> None:
    value, reason = TRIVIAL[name]
    story = Story(x=X).op("a", "x", h=value)
    proto = model(node("Sin", "x", "h"), outputs="h")
    for owner in ("a", "b"):
        assert answer(judged(proto, {"h": owner}, story)["h"]) == (NOT_PROVABLE, reason, "")


@pytest.mark.parametrize("name", TRIVIAL)
def test_trivial_values_enclose_nothing(name: str) -> None:
    value, _ = TRIVIAL[name]
    story = Story(x=X).op("a", "x", h=value)
    proto = model(node("Neg", "x", "p"), node("Sin", "p", "h"), outputs="h")
    found = judged(proto, {"p": "a", "h": "a"}, story, p=P)
    assert answer(found["p"]) == (NOT_PROVABLE, "not between proved nodes of one module", "")


def test_integers_with_truth_values_are_arithmetic() -> None:
    proto = model(node("Split", "x", "h g", num_outputs=2), outputs="h g")
    story = Story(x=X).op("a", "x", h=np.array([2, 12]), g=G > 0)
    assert answer(judged(proto, {"h": "a"}, story)["h"]).reason == "integer arithmetic"


def test_an_input_beside_something_small_is_still_an_input() -> None:
    proto = model(node("Split", "x", "h g", num_outputs=2), outputs="h g")
    story = Story(x=X).op("a", "x", h=X, g=np.array(0.5, np.float32))
    assert answer(judged(proto, {"h": "a"}, story)["h"]).reason == "hands on an input of the model"


def test_constants_prove_nothing() -> None:
    story = Story(x=X).holds(w=P).op("a", "w", h=H).op("b", "x h", y=Y)
    proto = model(node("Sin", "w", "h"), node("Add", "x h", "y"), weights=["w"])
    found = judged(proto, {"h": "c", "y": "b"}, story)
    assert answer(found["h"]) == (NOT_PROVABLE, "does not depend on the inputs", "")
    assert judged(proto, {"h": "b", "y": "b"}, story)["h"].verdict is ENCLOSED


def test_a_constant_of_the_run_proves_nothing() -> None:
    story = Story(x=X).holds(w=P).op("a", "w", h=H)
    found = judged(model(node("Sin", "x", "h"), outputs="h"), {"h": "a"}, story)
    assert found["h"].verdict is NOT_PROVABLE


VIEWS = {"a part": X[:, :8], "turned around": np.ascontiguousarray(X.T)}


@pytest.mark.parametrize("name", VIEWS)
def test_other_views_of_an_input_prove_nothing(name: str) -> None:
    story = Story(x=X).view("a", "x", h=VIEWS[name])
    proto = model(node("Slice", "x", "h"), outputs="h")
    for owner in ("a", "b"):
        found = judged(proto, {"h": owner}, story)["h"]
        assert answer(found) == (NOT_PROVABLE, "hands on an input of the model", "")


# the other answers


def test_a_node_of_nobodys_is_unattributed_and_says_why() -> None:
    found = judged(CHAIN, {"h": "a", "y": "c"}, RUN)
    assert answer(found["g"]) == (UNATTRIBUTED, "nobody knows", "")
    assert verdicts(found) == {"h": PROVED, "g": UNATTRIBUTED, "y": PROVED}


def test_a_value_that_nobody_saw() -> None:
    story = Story(x=X).op("a", "x", h=H)
    found = judged(model(node("Sin", "x", "p"), outputs="p"), {"p": "a"}, story)
    assert answer(found["p"]) == (NOT_PROVABLE, "its value could not be seen", "")


# bodies

INSIDE = body(node("Sin", "h", "s"), node("Cos", "s", "t"), outputs="t")
CHOSEN = model(
    node("If", "yes", "z", then_branch=INSIDE, else_branch=body(node("Tan", "h", "u"), outputs="u")),
    *(node("Neg", "z", "y"),),
    inputs="h yes",
)
CHOICE = Story(h=H, yes=np.array(True)).op("a.fc", "h", s=P).op("a", "s", t=G).op("b", "t", y=Y)
TAKEN = {"z|then_branch|s": P, "z|then_branch|t": G}
TAGS = {"z": "a", "z|then_branch|s": "a.fc", "z|then_branch|t": "a", "z|else_branch|u": "a", "y": "b"}


def test_a_node_in_the_branch_that_was_taken_is_proved_by_its_value() -> None:
    found = judged(CHOSEN, TAGS, CHOICE, "", (), z=G, **TAKEN)
    assert verdicts(found) == {**dict.fromkeys(TAGS, PROVED), "z|else_branch|u": NOT_PROVABLE}
    assert answer(found["z|else_branch|u"]).reason == "did not run"


def test_a_node_in_a_body_that_is_credited_elsewhere_is_contradicted() -> None:
    found = judged(CHOSEN, {**TAGS, "z|then_branch|s": "b", "z|then_branch|t": "a.fc"}, CHOICE, "", (), z=G, **TAKEN)
    assert answer(found["z|then_branch|s"]) == (CONTRADICTED, "another module issued its value", "a.fc")
    assert answer(found["z|then_branch|t"]) == (CONTRADICTED, "another module issued its value", "a")


@pytest.mark.parametrize(("owner", "fault"), [("b", Fault.ANOTHER_MODULE), (".", Fault.TOO_SHALLOW)])
def test_what_is_in_a_body_belongs_to_the_module_that_runs_it_or_to_one_inside(owner: str, fault: Fault) -> None:
    """Also in a branch that did not run."""
    found = judged(CHOSEN, {**TAGS, "z|else_branch|u": owner}, CHOICE, "", (), z=G, **TAKEN)["z|else_branch|u"]
    assert answer(found) == (CONTRADICTED, "inside a body that another module runs", "a")
    assert found.fault is fault
    inner = judged(CHOSEN, {**TAGS, "z|else_branch|u": "a.fc"}, CHOICE, "", (), z=G, **TAKEN)["z|else_branch|u"]
    assert inner.verdict is NOT_PROVABLE


def test_a_module_that_never_ran_is_inside_by_its_path() -> None:
    """What the other branch calls, of a body that the second call of its module runs."""
    twice = tree(
        {"": "Net", "a": "Block", "a.fc": "Linear", "a.never": "Linear", "b": "Block"}, "", "a", "a", "a.fc", "b"
    )
    story = Story(h=H, yes=np.array(True)).op("a.fc", "h", s=P).op("a#1", "s", t=G).op("b", "t", y=Y)
    tags = {**TAGS, "z": "a#1", "z|then_branch|t": "a#1", "z|else_branch|u": "a.never"}
    found = judged(CHOSEN, tags, story, "", (), twice, z=G, **TAKEN)
    assert found["z|else_branch|u"].verdict is NOT_PROVABLE


def test_a_module_that_ran_in_another_call_alone_is_inside_by_its_path() -> None:
    """Of two calls of a, each takes another branch: a.fc ran in the second, and its operator is in the first, too."""
    twice = tree({"": "Net", "a": "Block", "a.fc": "Linear", "b": "Block"}, "", "a", "b", "a", "a.fc")
    story = Story(h=H, yes=np.array(True)).op("a", "h", s=P).op("a", "s", t=G).op("b", "t", y=Y).op("a#1", "y", z=X)
    tags = {**TAGS, "z|then_branch|s": "a", "z|else_branch|u": "a.fc"}
    for owner, verdict in (("a.fc", NOT_PROVABLE), ("b", CONTRADICTED)):
        found = judged(CHOSEN, {**tags, "z|else_branch|u": owner}, story, "", (), twice, z=G, **TAKEN)
        assert found["z|else_branch|u"].verdict is verdict
    few = {**TAKEN, "z|then_branch|s": np.array(2.5, np.float32)}
    taken = judged(CHOSEN, {**tags, "z|then_branch|s": "a.fc"}, story, "", (), twice, z=G, **few)["z|then_branch|s"]
    assert answer(taken) == (CONTRADICTED, "inside a body that another module runs", "a")


NESTED = model(
    node("If", "yes", "z", then_branch=body(node("If", "yes", "i", then_branch=INSIDE), outputs="i")),
    *(node("Neg", "z", "y"),),
    inputs="h yes",
)


def test_a_body_inside_of_a_body_is_nobodys_who_calls_the_module_that_runs_the_outer_one() -> None:
    inner, inside = "z|then_branch|i", "z|then_branch|i|then_branch|"
    seen = {"z": G, inner: G, f"{inside}s": P, f"{inside}t": G}
    tags = {"z": "a", inner: "a", f"{inside}s": "a.fc", f"{inside}t": "a", "y": "b"}
    assert judged(NESTED, tags, CHOICE, "", (), None, **seen)[inner].verdict is PROVED
    for owners in (".", "a .", "b"):
        assert judged(NESTED, {**tags, inner: owners}, CHOICE, "", (), None, **seen)[inner].verdict is CONTRADICTED


BUSY = model(
    node("Abs", "x", "h"),
    node("If", "yes", "z", then_branch=INSIDE, else_branch=body(node("Tan", "h", "u"), outputs="u")),
    node("Neg", "z", "y"),
    inputs="x yes",
)


def run_by(owners: str, does_more: str) -> Answer:
    """The verdict on an If. In its branch a.fc and a issue something; `does_more` does so before it."""
    story = Story(x=X, yes=np.array(True)).op(does_more, "x", h=H).op("a.fc", "h", s=P).op("a", "s", t=G)
    tags = {"h": does_more, **TAGS, "z": owners}
    return answer(judged(BUSY, tags, story.op("b", "t", y=Y), "", (), None, z=G, **TAKEN)["z"])


def test_who_runs_a_body_called_all_that_was_issued_inside() -> None:
    assert run_by("a", "a") == (PROVED, "", "a")
    for owners in (".", "b", "a.fc", ". b"):
        assert run_by(owners, "a") == (CONTRADICTED, "another module runs its body", "a")
    assert run_by("a .", "a") == run_by("a a.fc", "a") == (CONTRADICTED, "another module runs its body", "a")


def test_a_module_all_of_whose_work_is_inside_of_a_body_may_be_called_there_or_run_it() -> None:
    """cond(…, lambda h: self.a(h)) of the root, or an If in the code of a."""
    assert (run_by("a", "b").verdict, run_by(".", "b").verdict) == (PROVED, ENCLOSED)
    assert run_by("a .", "b") == (CONTRADICTED, "another module runs its body", "a")
    assert run_by("b", "b").verdict is run_by("a.fc", "b").verdict is CONTRADICTED


def test_who_broke_an_operator_down_into_a_body_issued_it() -> None:
    """Nothing inside has a counterpart: the Loop of an embedding bag makes what one operator made."""
    story = Story(h=H, yes=np.array(True)).op("a.fc", "h", z=G).op("b", "z", y=Y)
    found = {
        owner: judged(CHOSEN, {**TAGS, "z": owner}, story, "", (), None, z=G)["z"].verdict for owner in ("a.fc", "a")
    }
    assert found == {"a.fc": PROVED, "a": CONTRADICTED}


STEP = body(node("Sin", "state", "s"), node("Identity", "go", "again"), inputs="i go state", outputs="again s")
LOOPED = model(node("Loop", "n yes x", "y", body=STEP), inputs="x n yes")
ROUNDS = [numbers(seed) for seed in range(20, 23)]


def looped(owners: str) -> NodeProof:
    """The verdict on a node that ran three times, each time in another call of a module."""
    story = Story(x=X, n=np.array(3), yes=np.array(True)).op("a", "x", r0=ROUNDS[0])
    story.op("a#1", "r0", r1=ROUNDS[1]).op("b", "r1", r2=ROUNDS[2])
    first, *others = ({"y|body|s": sample(made)} for made in ROUNDS)
    samples = {name: sample(array) for name, array in (("x", X), ("y", ROUNDS[-1]))}
    record = provenance(LOOPED, NET, {"y": [""], "y|body|s": owners.split(), "y|body|again": [""]})
    values = SeenValues(index_model(LOOPED), {**samples, **first}, others)
    nodes = AttributionProver(values, record, story.sources).prove().nodes
    return next(found for found in nodes if found.key == "y|body|s")


def test_a_node_that_runs_several_times_belongs_to_all_who_made_its_values() -> None:
    assert looped("a a#1 b").verdict is PROVED
    assert looped("a a#1").fault is Fault.TOO_NARROW
    assert looped("a a#1 b c").fault is Fault.TOO_WIDE


# the rest


def test_a_value_that_the_run_does_not_have_and_nothing_around_it() -> None:
    found = judged(model(node("Sin", "x", "p"), outputs="p"), {"p": "a"}, RUN, p=P)
    assert answer(found["p"]) == (NOT_PROVABLE, "not between proved nodes of one module", "")


def test_where_numbers_are_wrong_surroundings_do_not_contradict() -> None:
    found = judged(BROKEN_DOWN, {"p": "c", "h": "a", "g": "b"}, RUN, "numbers differ", p=P)
    # Nor does anything enclose it: they say whose it would be.
    assert answer(found["p"]) == (NOT_PROVABLE, "numbers differ", "a")
    assert verdicts(found) == {"p": NOT_PROVABLE, "h": PROVED, "g": PROVED}


def test_where_numbers_are_wrong_right_ones_still_contradict() -> None:
    found = judged(CHAIN, {"h": "b", "g": "b", "y": "c"}, RUN, "numbers differ")
    assert found["h"].verdict is CONTRADICTED


def test_what_is_made_from_random_numbers_is_not_provable() -> None:
    """Whatever it holds this time."""
    proto = model(node("Sin", "x", "h"), node("RandomNormalLike", "h", "g"), node("Add", "g x", "y"))
    for tags in ({"h": "a", "g": "b", "y": "c"}, {"h": "a", "g": "c", "y": "b"}):
        found = judged(proto, tags, RUN, "", {"g"})
        assert verdicts(found) == {"h": PROVED, "g": NOT_PROVABLE, "y": NOT_PROVABLE}
        assert answer(found["y"]).reason == "depends on random numbers"


# which nodes count as float compute


@pytest.mark.parametrize(
    ("value", "compute"),
    [(H, True), (np.array(2.5, np.float32), True), (np.arange(24), False), (H > 0, False), (H[:0], False)],
)
def test_floats_made_from_the_inputs_are_compute(value: np.ndarray, compute: bool) -> None:
    proto = model(node("Sin", "x", "h"), node("Cos", "w", "c"), outputs="h c", weights=["w"])
    found = judged(proto, {"h": "a", "c": "a"}, Story(x=X).op("a", "x", h=value), c=P)
    assert (found["h"].compute, found["c"].compute) == (compute, False)


def test_what_nobody_saw_is_not_counted() -> None:
    assert not judged(model(node("Sin", "x", "p"), outputs="p"), {"p": "a"}, RUN)["p"].compute


def test_what_several_modules_made_side_by_side_is_proved_for_all_of_them() -> None:
    """Packed weights: one product makes what several modules made, in any order."""
    parts = {name: np.random.default_rng(seed).standard_normal((2, 12)) for seed, name in enumerate("qkv", 50)}
    story = Story(x=X).op("a", "x", q=parts["q"]).op("b", "x", k=parts["k"]).op("c", "x", v=parts["v"])
    story.op("d", "q k v", y=Y)
    proto = model(node("MatMul", "x w", "h"), node("Tan", "h", "y"), weights=["w"])
    packed = np.concatenate([parts["k"], parts["q"], parts["v"]], axis=-1)
    assert answer(judged(proto, {"h": "a b c", "y": "d"}, story, h=packed)["h"]) == (PROVED, "", "a b c")
    assert judged(proto, {"h": "a b", "y": "d"}, story, h=packed)["h"].verdict is CONTRADICTED
    assert judged(proto, {"h": "a b c", "y": "d"}, story, h=packed + 1)["h"].verdict is CONTRADICTED
