"""Which value of the model takes the place of a wrong one, on small graphs beside the run that they should be of."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import onnx
from tests.support.building import model, node
from tests.support.proof_stories import Story, numbers

from modelexport.graph.index import index_model
from modelexport.graph.sample import Sample, sample
from modelexport.verify.evidence import SeenValues
from modelexport.verify.resynchronization import Exchange, ModelDataflow, Resynchronizer

X, H, G, Y = (numbers(seed) for seed in range(4))
OFF, WORSE, OTHER = (numbers(seed) for seed in range(10, 13))
CHAIN = model(node("Sin", "x", "h"), node("Cos", "h", "g"), node("Tan", "g", "y"))
RUN = Story(x=X).op("a", "x", h=H).op("b", "h", g=G).op("c", "g", y=Y)


class FileRun:
    """A run of a graph beside that of the model."""

    def __init__(self, proto: onnx.ModelProto, story: Story, rejected: Collection[Exchange] = ()) -> None:
        graph = index_model(proto)
        dataflow = ModelDataflow(story.run, story.samples, story.sources)
        computed = SeenValues(graph, {}).computed
        self.story = story
        self.resynchronizer = Resynchronizer(graph, computed, dataflow, (), lambda _: True, rejected)

    def see(self, **arrays: np.ndarray) -> FileRun:
        for name, array in arrays.items():
            self.resynchronizer.see(name, sample(array))
        return self

    def exchange(self, name: str, wanted: str) -> FileRun:
        exchange = Exchange(name, self.story.number(wanted))
        self.resynchronizer.exchanged[name] = exchange
        return self.see(**{name: self.story.arrays[wanted]})

    def choose(self, *, is_last: bool = True, **arrays: np.ndarray) -> str:
        """The value of the file and that of the model, as in `h: g`; no second one if it is to be decided later."""
        chosen = self.resynchronizer.choose(_samples(arrays.items()), is_last=is_last)
        if chosen is None:
            return ""
        names = list(self.story.arrays)
        return f"{chosen.name}: " + ("" if chosen.number is None else names[chosen.number])

    @property
    def confirmed(self) -> set[str]:
        return {exchange.name for exchange in self.resynchronizer.confirmed}

    @property
    def ambiguous(self) -> list[str]:
        names = list(self.story.arrays)
        return sorted(f"{item.name}: {names[item.number or 0]}" for item in self.resynchronizer.ambiguous)

    @property
    def unconfirmed(self) -> list[str]:
        return [exchange.name for exchange in self.resynchronizer.unconfirmed]


def _samples(arrays: Iterable[tuple[str, np.ndarray]]) -> dict[str, Sample]:
    return {name: sample(array) for name, array in arrays}


def test_a_right_file_is_left_alone() -> None:
    assert FileRun(CHAIN, RUN).see(x=X).choose(h=H, g=G, y=Y) == ""


def test_the_first_wrong_value_is_what_the_model_made_of_the_same() -> None:
    assert FileRun(CHAIN, RUN).see(x=X).choose(h=OFF, g=WORSE, y=OTHER) == "h: h"
    assert FileRun(CHAIN, RUN).see(x=X, h=H).choose(g=OFF, y=WORSE) == "g: g"
    assert FileRun(CHAIN, RUN).see(x=X, h=H, g=G).choose(y=OFF) == "y: y"


def test_more_is_looked_at_before_it_is_decided() -> None:
    run = FileRun(CHAIN, RUN).see(x=X)
    assert run.choose(h=H, g=OFF, y=WORSE, is_last=False) == "g: "
    assert run.see(h=H).choose(g=OFF, y=WORSE, is_last=False) == "g: g"


def test_what_is_inside_of_an_operator_leads_to_its_result() -> None:
    story = Story(x=X).op("a", "x", y=Y)
    assert FileRun(CHAIN, story).see(x=X).choose(h=OFF, g=WORSE, y=Y) == ""


def test_a_result_that_looks_like_the_right_one_is_taken_before_what_is_inside() -> None:
    story = Story(x=X).op("a", "x", y=Y).op("b", "y", z=G)
    proto = model(node("Sin", "x", "h"), node("Cos", "h", "y"), node("Tan", "y", "z"))
    near = Y + numbers(20) * np.float32(0.01)
    assert FileRun(proto, story).see(x=X).choose(h=OFF, y=near, z=WORSE) == "y: y"
    assert FileRun(proto, story).see(x=X).choose(h=OFF, y=OTHER, z=WORSE) == "h: y"


def test_a_wrong_value_that_the_next_operator_makes_good_is_known_by_its_looks() -> None:
    near = H + numbers(20) * np.float32(0.01)
    assert FileRun(CHAIN, RUN).see(x=X).choose(h=near, g=G, y=Y) == "h: h"
    assert FileRun(CHAIN, RUN).see(x=X).choose(h=OFF, g=G, y=Y) == ""


def test_another_shape_is_another_value() -> None:
    assert FileRun(CHAIN, RUN).see(x=X).choose(h=OFF.reshape(4, 6), g=WORSE.reshape(4, 6), y=OTHER.reshape(4, 6)) == ""


def test_what_is_made_of_other_values_is_another_value() -> None:
    """Nothing is missing that the model made of x alone."""
    story = Story(x=X, z=OTHER).op("a", "z", h=H).op("b", "h", g=G)
    proto = model(node("Sin", "x", "h"), node("Cos", "h", "g"), inputs="x z")
    assert FileRun(proto, story).see(x=X, z=OTHER).choose(h=OFF, g=WORSE) == ""


def test_what_an_operator_made_beside_a_value_may_be_what_it_is_made_from() -> None:
    story = Story(x=X).op("a", "x", y=Y, h=H)
    proto = model(node("Sin", "x", "h"), node("Cos", "x h", "y"))
    assert FileRun(proto, story).see(x=X, h=H).choose(y=OFF) == "y: y"


def test_what_looks_at_a_known_value_in_another_shape_may_be_missing() -> None:
    story = Story(x=X).op("a", "x", h=H).view("a", "h", v=H.reshape(4, 6)).op("b", "v", y=Y.reshape(4, 6))
    proto = model(node("Sin", "x", "h"), node("Reshape", "h", "v"), node("Tan", "v", "y"))
    run = FileRun(proto, story).see(x=X, h=H)
    assert run.choose(v=OFF.reshape(4, 6), y=WORSE.reshape(4, 6)) == "v: v"
    assert run.exchange("v", "v").see(y=Y.reshape(4, 6)).confirmed == {"v"}


def test_a_rejected_exchange_is_not_made_again() -> None:
    run = FileRun(CHAIN, RUN, [Exchange("h", RUN.number("h"))]).see(x=X)
    assert run.choose(h=OFF) == "h: g"
    assert run.choose(h=OFF, g=G + numbers(20) * np.float32(0.01), y=OTHER) == "g: g"


def test_what_is_computed_from_it_confirms_an_exchange() -> None:
    run = FileRun(CHAIN, RUN).see(x=X).exchange("h", "h")
    assert run.unconfirmed == ["h"]
    assert run.see(g=G).confirmed == {"h"}
    assert run.unconfirmed == []


def test_what_the_model_computes_from_something_else_confirms_nothing() -> None:
    """y is made from x, and h is but one of many that lead to it in the file."""
    story = Story(x=X).op("a", "x", h=H).op("b", "x", y=Y)
    proto = model(node("Sin", "x", "h"), node("Max", "x h", "y"))
    run = FileRun(proto, story).see(x=X).exchange("h", "h").see(y=Y)
    assert run.confirmed == set()
    assert run.unconfirmed == ["h"]


def test_what_only_looks_at_it_confirms_nothing_and_hands_it_on() -> None:
    turned = np.ascontiguousarray(H.T)
    story = Story(x=X).op("a", "x", h=H).view("a", "h", t=turned).op("b", "t", y=Y)
    proto = model(node("Sin", "x", "h"), node("Transpose", "h", "t"), node("Tan", "t", "y"))
    run = FileRun(proto, story).see(x=X).exchange("h", "h").see(t=turned)
    assert run.confirmed == set()
    assert run.see(y=Y).confirmed == {"h"}


def test_an_operator_on_two_wrong_values_confirms_both() -> None:
    story = Story(x=X).op("a", "x", h=H).op("b", "x", g=G).op("c", "h g", y=Y)
    proto = model(node("Sin", "x", "h"), node("Cos", "x", "g"), node("Mul", "h g", "y"))
    run = FileRun(proto, story).see(x=X)
    assert run.choose(h=OFF, g=WORSE, y=OTHER) == "h: h"
    assert run.exchange("h", "h").choose(g=WORSE, y=OTHER) == "g: g"
    assert run.exchange("g", "g").see(y=Y).confirmed == {"h", "g"}


def test_what_is_behind_a_guess_holds_what_was_guessed() -> None:
    proto = model(node("Cos", "x", "h"), node("Relu", "h", "g"), node("Tan", "g", "y"))
    positive = np.abs(H)
    story = Story(x=X).op("a", "x", h=positive).op("b", "h", y=Y)
    run = FileRun(proto, story).see(x=X).exchange("h", "h").see(g=positive, y=OTHER)
    assert run.resynchronizer.doubtful == {"h", "g", "y"}
    assert run.resynchronizer.known == 1
    assert run.see(y=Y).resynchronizer.doubtful == set()
    assert run.resynchronizer.known == 4


BRANCHES = model(
    node("Sin", "x", "h"), node("Cos", "x", "g"), node("Relu", "h", "rh"), node("Relu", "g", "rg"), outputs="rh rg"
)
BRANCHED = Story(x=X).op("a", "x", h=H).op("b", "x", g=G)


def test_two_missing_values_that_fit_both_may_be_exchanged() -> None:
    run = FileRun(BRANCHES, BRANCHED).see(x=X)
    first = run.choose(h=OFF, g=WORSE, rh=OTHER, rg=OTHER)
    run.exchange("h", first.removeprefix("h: "))
    assert run.ambiguous == ["h: g", "h: h"]
    second = run.choose(g=WORSE, rh=OTHER, rg=OTHER)
    run.exchange("g", second.removeprefix("g: "))
    assert {first, second} == {"h: h", "g: g"}
    assert run.ambiguous == ["h: g", "h: h"]  # g would be the only one left for the other


def test_missing_values_that_are_known_by_their_looks_cannot_be_exchanged() -> None:
    run = FileRun(BRANCHES, BRANCHED).see(x=X)
    near_h, near_g = (value * np.float32(1.02) for value in (H, G))
    assert run.choose(h=near_h, g=near_g) == "h: h"
    assert run.exchange("h", "h").choose(g=near_g) == "g: g"
    run.exchange("g", "g")
    assert run.ambiguous == []


def test_missing_values_in_a_row_cannot_be_exchanged() -> None:
    run = FileRun(CHAIN, RUN).see(x=X)
    assert run.choose(h=OFF, g=WORSE, y=OTHER) == "h: h"
    run.exchange("h", "h")
    assert run.choose(g=WORSE, y=OTHER) == "g: g"
    assert run.exchange("g", "g").see(y=Y).ambiguous == []


def test_what_the_file_makes_after_all_was_not_missing() -> None:
    run = FileRun(CHAIN, RUN).see(x=X)
    assert run.choose(h=OFF, g=WORSE, y=OTHER) == "h: h"
    assert run.exchange("h", "h").ambiguous == ["h: g", "h: h", "h: y"]
    assert run.see(g=G, y=Y).ambiguous == []


def test_an_exchange_behind_which_nothing_is_cannot_be_confirmed_and_is_not_rejected() -> None:
    run = FileRun(CHAIN, RUN).see(x=X, h=H, g=G).exchange("y", "y")
    assert (run.confirmed, run.unconfirmed) == (set(), [])
