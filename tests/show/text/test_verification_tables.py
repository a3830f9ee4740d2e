from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.verification import EVIL, VERIFICATIONS, difference, node, numbers, verification, wrong_in

from modelexport.record.hierarchy import ModuleCall
from modelexport.record.results.package_verification import PackageVerification, TokenCheck
from modelexport.record.results.verification import (
    NOT_RUN,
    AttributionProof,
    Divergence,
    NotFinite,
    ParameterCheck,
    ParameterDifference,
    SuddenLoss,
    Tolerance,
    Verdict,
    Verification,
)
from modelexport.show.text.console import (
    as_text,
    cosine_text,
    decibels_text,
    difference_text,
    modules_text,
    reasons_text,
)
from modelexport.show.text.package_verification import package_verification_tables
from modelexport.show.text.verification import verification_tables
from modelexport.show.text.verification_rows import Shown


def lines(found: Verification, shown: Shown = Shown()) -> list[str]:  # noqa: B008 - frozen
    return as_text(verification_tables(found, shown)).splitlines()


def row(found: Verification, name: str, shown: Shown = Shown()) -> list[str]:  # noqa: B008 - frozen
    return next(line.split() for line in lines(found, shown) if line.startswith(f"{name} "))


def test_a_file_that_is_as_it_should_be() -> None:
    found = verification(numbers("fc", math.inf, 131), numbers("", math.inf, 131, class_name="Net"))
    assert lines(found) == [
        "a.onnx against ./net · 1 input · as exact as the number formats are",
        "",
        "module   calls  max |Δ|  SQNR dB    cosine  status",
        "fc           1  2.8e-07      131  1.000000  ok",
        "(model)      1  2.8e-07      131  1.000000  ok",
        "",
        "output  max |Δ|  SQNR dB    cosine  status",
        "y       2.8e-07      131  1.000000  ok",
        "",
        "everything agrees",
    ]


@pytest.mark.parametrize(
    ("tolerance", "text"),
    [
        (Tolerance(1e-3, 0.5), "atol 0.001, rtol 0.5"),
        (Tolerance(rtol=1e-4), "atol by number format, rtol 0.0001"),
        (Tolerance(1e-3, 0.5, 40), "at least 40 dB asked for"),
    ],
)
def test_what_is_allowed(tolerance: Tolerance, text: str) -> None:
    assert lines(replace(verification(), tolerance=tolerance))[0].endswith(f" · {text}")


def test_decibels_asked_for() -> None:
    found = replace(verification(), tolerance=Tolerance(min_sqnr=40), samples=3)
    assert lines(found)[0] == "a.onnx against ./net · 3 inputs · at least 40 dB asked for"
    assert "no module could be compared" in lines(found)


def test_equal_tensors_have_no_noise() -> None:
    found = verification(numbers("fc", math.inf, math.inf))
    assert row(found, "fc") == ["fc", "1", "0", "∞", "1.000000", "ok"]


class TestParameters:
    differing = tuple(ParameterDifference(f"m{place}.weight", f"w{place}", 0.5) for place in range(7))

    def test_differing_ones_come_first(self) -> None:
        found = replace(verification(numbers("fc")), parameters=ParameterCheck(9, self.differing))
        shown = lines(found)
        assert shown[1] == "the model's weights are not those of the file: 7 of 9 parameters differ"
        assert shown[2] == "  m0.weight (w0)   max |Δ| 5.0e-01"
        assert shown[7] == "  … and 2 more (--all)"
        assert shown[-1] == "not as ./net: weights differ"
        assert sum("max |Δ| 5.0e-01" in line for line in lines(found, Shown(everything=True))) == 7

    def test_equal_ones_are_no_news(self) -> None:
        found = replace(verification(numbers("fc")), parameters=ParameterCheck(9))
        assert not any("parameter" in line for line in lines(found))
        assert "9 parameters compared, all equal" in lines(found, Shown(verbose=True))


class TestModules:
    def test_calls_of_one_module_share_a_row_with_the_worst_of_them(self) -> None:
        found = verification(numbers("fc"), numbers("fc#1", 131, 40), numbers("fc#2", 40, 30))
        assert row(found, "fc") == [
            *("fc", "3", "3.2e-02", "30", "0.984189"),
            *("diverges", "at", "call", "#1"),
        ]

    def test_some_calls_were_not_compared(self) -> None:
        found = verification(numbers("fc"), numbers("fc#1", None, None))
        assert row(found, "fc")[1:4] == ["1", "of", "2"]

    def test_elements_that_are_not_finite(self) -> None:
        item = replace(numbers("fc"), outputs=difference(unlike=3))
        assert row(verification(item), "fc")[-7:] == ["ok,", "NaN", "or", "Inf", "in", "3", "elements"]

    def test_what_was_not_compared_is_one_line(self) -> None:
        missing = [numbers(f"m{place}", None, None, reason="fused into others") for place in range(3)]
        found = verification(numbers("fc"), *missing)
        assert "not compared: 3 modules (fused into others)" in lines(found)
        other = verification(numbers("drop", None, None, reason="nothing to do"), *missing)
        assert "not compared: 4 modules (fused into others: 3, nothing to do: 1)" in lines(other)

    def test_what_was_not_compared_has_rows_if_everything_is_asked_for(self) -> None:
        found = verification(numbers("fc"), numbers("drop", None, None, reason="nothing to do", class_name="Dropout"))
        shown = lines(found, Shown(everything=True))
        assert [line.split() for line in shown if line.startswith("drop")] == [
            ["drop", "1", "not", "compared:", "nothing", "to", "do"]
        ]
        assert not any(line.startswith("not compared") for line in shown)

    def test_what_was_fused_says_with_whom(self) -> None:
        partners = (ModuleCall("fc"), ModuleCall("act", 1))
        lost = [
            replace(numbers(f"m{place}", None, None, reason="fused with others"), fused_with=partners)
            for place in range(7)
        ]
        found = replace(verification(numbers("fc"), *lost), deployed=True)
        shown = lines(found)
        assert "as ONNX Runtime runs it" in shown[0]
        assert [line for line in shown if "fused with" in line] == [
            "not compared: 7 modules (fused with others)",
            *(f"  m{place}: fused with fc + act#1" for place in range(5)),
        ]
        assert "  … and 2 more (--all)" in shown
        assert sum("fused with fc + act#1" in line for line in lines(found, Shown(everything=True))) == 7
        plain = lines(replace(found, deployed=False))
        assert "as ONNX Runtime runs it" not in plain[0]
        assert not [line for line in plain if line.startswith("  m0")]

    def test_a_long_table_is_cut(self) -> None:
        calls = [numbers(f"m{place}") for place in range(100)]
        assert "… 60 ok" in lines(verification(*calls))
        assert len(lines(verification(*calls), Shown(everything=True))) == 108


class TestRanking:
    def test_what_loses_most_comes_first(self) -> None:
        calls = numbers("a", math.inf, 119.96), numbers("b", 119.96, 50.5), numbers("c", None, 50.5)
        shown = lines(verification(*calls), Shown(by_loss=True))
        assert shown[2].split() == [
            *("module", "calls", "in", "dB", "out", "dB", "lost", "dB", "max", "|Δ|", "cosine", "status")
        ]
        assert [line.split()[:5] for line in shown[3:6]] == [
            ["b", "1", "120.0", "50.5", "69.5"],
            ["a", "1", "∞", "120.0", "20.0"],
            ["c", "1", "50.5", "?", "3.0e-03"],  # not ranked: what goes in was not compared
        ]

    def test_the_row_adds_up_for_the_call_that_loses_most(self) -> None:
        found = verification(numbers("a", 120, 90), numbers("a#1", 40, 30))
        assert row(found, "a", Shown(by_loss=True))[:5] == ["a", "2", "120.0", "90.0", "30.0"]

    def test_what_is_left_out_is_counted(self) -> None:
        calls = numbers("", 120, 60), numbers("a", 120, 60), numbers("b", 60, 60), numbers("c", 60, 60)
        shown = lines(verification(*calls), Shown(by_loss=True))
        left_out = "2 modules that lose less, or nothing, 1 around others that loses no more than what is inside"
        assert f"not shown: {left_out} (--all)" in shown
        assert not any(line.startswith("not shown") for line in lines(verification(*calls), Shown(True, None, True)))
        shown = lines(verification(*calls[:3]), Shown(by_loss=True))
        assert any(line.startswith("not shown: 1 module that loses less, or nothing, ") for line in shown)

    def test_nothing_is_lost(self) -> None:
        assert "no module loses anything" in lines(verification(numbers("a", 120, 120)), Shown(by_loss=True))


class TestOrigins:
    def test_the_first_divergence(self) -> None:
        shown = lines(wrong_in("fc", numbers("fc", 118, 21)))
        start = shown.index("first divergence: fc (Linear)   SQNR 21 dB   (inputs still agree to 118 dB)")
        assert shown[start + 1] == "  at node h3"
        assert shown[-1] == "not as ./net: numbers differ"

    def test_a_node_that_does_the_work_of_several(self) -> None:
        calls = ModuleCall("conv"), ModuleCall("bn", 2)
        found = Divergence(calls, ("Conv2d", "BatchNorm2d"), "h3", difference(math.inf), difference(21))
        shown = lines(replace(verification(), divergence=found))
        start = shown.index("first divergence: conv (Conv2d) + bn#2 (BatchNorm2d)   SQNR 21 dB   (inputs are equal)")
        assert shown[start + 1] == "  at node h3; it does the work of all 2"

    def test_modules_of_which_any_may_be_the_cause(self) -> None:
        calls = ModuleCall("conv"), ModuleCall("bn", 2)
        found = Divergence(calls, ("Conv2d", "BatchNorm2d"), "h3", None, difference(21))
        line = "  at node h3; any of the 2 may be the cause: what passes between them could not be compared"
        assert line in lines(replace(verification(), divergence=found))

    def test_a_node_has_a_name_and_a_result(self) -> None:
        found = Divergence((ModuleCall("fc"),), ("Linear",), "h3", None, difference(21), "node_7")
        assert "  at node node_7, which makes h3" in lines(replace(verification(), divergence=found))

    def test_parameters_without_a_copy_are_named_where_something_is_wrong(self) -> None:
        fine = replace(verification(), parameters=ParameterCheck(2, (), ("fc.bias",)))
        line = "no copy in the file, not compared: fc.bias"
        assert line not in lines(fine)
        found = Divergence((ModuleCall("fc"),), ("Linear",), "h3", None, difference(21))
        assert line in lines(replace(fine, divergence=found))

    def test_a_node_that_nobody_is_known_for(self) -> None:
        found = replace(verification(), divergence=Divergence((), (), "h3", None, difference(21)))
        message = "first divergence: a node without a module   SQNR 21 dB   (none of its inputs could be compared)"
        assert message in lines(found)

    def test_outputs_that_differ_without_a_culprit(self) -> None:
        shown = lines(verification(numbers("fc"), output=difference(20)))
        assert any(line.startswith("the outputs differ, and there is no module") for line in shown)
        assert next(line.split()[-1] for line in shown if line.startswith("y ")) == "differs"

    @pytest.mark.parametrize(
        ("both", "message", "end"),
        [
            (
                False,
                "NaN comes up first in fc, at node h3, and goes no further; ./net does not have it there",
                "everything agrees",
            ),
            (True, "NaN comes up first in fc, at node h3; ./net has it there too", "everything agrees"),
        ],
    )
    def test_what_is_not_finite(self, both: bool, message: str, end: str) -> None:
        found = replace(verification(), not_finite=(NotFinite("NaN", "h3", (ModuleCall("fc"),), both),))
        assert message in lines(found)
        assert lines(found)[-1].endswith(end)


class TestProof:
    def proof(self, *more: Verdict) -> AttributionProof:
        shapes = [
            node(f"s{place}", Verdict.NOT_PROVABLE, reason="integer shape arithmetic", compute=False)
            for place in range(2)
        ]
        proved = [node(f"p{place}", Verdict.PROVED) for place in range(1200)]
        rest = [node(f"x{place}", verdict, issued="other", reason="so") for place, verdict in enumerate(more)]
        return AttributionProof((*shapes, *proved, node("e", Verdict.ENCLOSED), *rest))

    def test_one_line_where_all_is_well(self) -> None:
        shown = lines(replace(verification(), proof=self.proof()))
        start = shown.index(
            "attribution: 1,203 nodes · 1,200 proved by value · 1 enclosed · "
            "2 not provable (integer shape arithmetic) · 0 contradicted"
        )
        assert shown[start + 1 :] == [
            (
                "  of 1,201 nodes that compute floats from the inputs, 1,201 are proved or enclosed (100.0 %); "
                "of all nodes, 99.8 %"
            ),
            "everything agrees",
        ]

    def test_contradicted_nodes_are_listed(self) -> None:
        shown = lines(replace(verification(), proof=self.proof(Verdict.CONTRADICTED)))
        start = shown.index("Contradicted")
        assert shown[start + 1].split() == ["node", "operator", "credited", "to", "values", "say", "why"]
        assert shown[start + 2].split() == ["node_x0", "MatMul", "fc", "other", "another", "module:", "so"]
        assert shown[-1] == "not as ./net: 1 attribution contradicted"
        assert any(line.endswith(" · 1 contradicted (another module)") for line in shown)

    def test_many_contradicted_nodes_are_cut(self) -> None:
        found = replace(verification(), proof=self.proof(*[Verdict.CONTRADICTED] * 30))
        assert sum(line.startswith("node_x") for line in lines(found)) == 20
        assert "… and 10 more (--all)" in lines(found)
        assert sum(line.startswith("node_x") for line in lines(found, Shown(everything=True))) == 30

    def test_nodes_that_nobody_is_credited_with(self) -> None:
        shown = lines(replace(verification(), proof=self.proof(Verdict.UNATTRIBUTED)))
        assert any(" · 1 unattributed · 0 contradicted" in line for line in shown)

    def test_several_reasons_are_counted(self) -> None:
        constant = node("c", Verdict.NOT_PROVABLE, reason="constant", compute=False)
        found = replace(verification(), proof=AttributionProof((constant, *self.proof().nodes)))
        assert any("3 not provable (integer shape arithmetic: 2, constant: 1)" in line for line in lines(found))


def test_notes_come_last_and_times_if_asked_for() -> None:
    found = replace(verification(), notes=("two runs differ",), seconds={"load": 1.25})
    assert lines(found)[-2:] == ["everything agrees", "note: two runs differ"]
    assert lines(found, Shown(verbose=True))[-1] == "load 1.2 s"


def test_a_number_that_leaves_its_neighbours_no_room() -> None:
    wide = replace(difference(131), sqnr=1e174)
    assert lines(verification(numbers("fc"), output=wide))[-1] == "everything agrees"


@given(VERIFICATIONS, st.builds(Shown, st.booleans(), st.none() | st.integers(1, 3), st.booleans(), st.booleans()))
def test_whatever_was_found_can_be_shown(found: Verification, shown: Shown) -> None:
    text = as_text(verification_tables(found, shown))
    assert all(line.isprintable() for line in text.split("\n"))
    flat = " ".join(text.split())
    proved = found.proof is None or found.proof.compute_shown or not found.proof.compute
    left_out = found.skipped or found.sudden_losses or not proved
    unseen = any(call.outputs is None for call in found.calls) or bool(found.proof and NOT_RUN in found.proof.reasons)
    assert ("everything agrees" in text.splitlines()) == bool(found.ok and not left_out and not unseen)
    assert ("everything that was compared agrees; " in flat) == bool(found.ok and not left_out and unseen)
    assert (" what was compared agrees, but " in f" {flat}") == bool(found.ok and left_out)


def test_names_from_strangers_reach_no_terminal() -> None:
    call = replace(numbers("x"), call=ModuleCall(EVIL), class_name=EVIL, reason=EVIL)
    parameters = ParameterCheck(1, (ParameterDifference(EVIL, EVIL, 1.0),))
    contradicted = replace(node(EVIL, Verdict.CONTRADICTED, EVIL, EVIL, EVIL), name=EVIL, op_type=EVIL)
    found = replace(
        verification(call, replace(call, call=ModuleCall(f"b{EVIL}"), outputs=None)),
        file=EVIL,
        reference=EVIL,
        outputs={EVIL: difference()},
        divergence=Divergence((ModuleCall(EVIL),), (EVIL,), EVIL, None, difference()),
        not_finite=(NotFinite("NaN", EVIL, (ModuleCall(EVIL),), False),),
        parameters=parameters,
        proof=AttributionProof((contradicted,)),
        notes=(EVIL,),
        seconds={EVIL: 1.0},
    )
    for shown in (Shown(), Shown(by_loss=True), Shown(everything=True, verbose=True)):
        text = as_text(verification_tables(found, shown))
        assert all(line.isprintable() for line in text.split("\n"))
        assert text.count("[bold]") > 10


def test_numbers_for_people() -> None:
    assert [decibels_text(number) for number in (21.4, -0.2, math.inf, -math.inf, math.nan)] == [
        *("21", "0", "∞", "-∞", "NaN"),
    ]
    assert [decibels_text(number, 1) for number in (21.44, -0.04, 0.05)] == ["21.4", "0.0", "0.1"]
    assert [difference_text(number) for number in (0, 1.94e-7, math.inf)] == ["0", "1.9e-07", "∞"]
    assert [cosine_text(number) for number in (1, -0.5, math.nan)] == ["1.000000", "-0.500000", "NaN"]
    assert reasons_text({"few": 1, "many": 2}) == "many: 2, few: 1"
    assert modules_text([ModuleCall(""), ModuleCall("a", 1)]) == "(model) + a#1"


def test_outputs_that_were_not_compared_are_named_in_the_verdict() -> None:
    found = replace(verification(numbers("fc", 120, 120)), skipped=("logits", "state"))
    assert lines(found)[-1] == "what was compared agrees, but output logits, state could not be compared"


def test_a_sudden_loss_is_remarked_with_what_to_compare() -> None:
    loss = SuddenLoss(ModuleCall("a b.norm", 1), "LayerNorm", difference(145), difference(106))
    found = replace(verification(numbers("fc", 120, 120)), sudden_losses=(loss,), parameters=ParameterCheck(1))
    flat = " ".join(" ".join(lines(found)).split())
    assert "sudden loss: a b.norm#1 (LayerNorm) in 145 dB, out 106 dB" in flat
    assert "export the model anew and compare: modelexport diff NEW.onnx a.onnx --left-module 'a b.norm'" in flat
    assert flat.endswith("what was compared agrees, but 1 module loses more than rounding explains")
    flat = " ".join(" ".join(lines(replace(found, parameters=None, reference="b.onnx"))).split())
    assert "compare the files: modelexport diff b.onnx a.onnx --left-module 'a b.norm'" in flat
    several = " ".join(lines(replace(found, sudden_losses=(loss,) * 7)))
    assert "… and 2 more (--all)" in several
    assert several.endswith("7 modules lose more than rounding explains")


def test_numbers_that_nobody_could_compare_do_not_agree() -> None:
    nothing = replace(difference(math.inf), cosine=math.nan, nothing_finite=True)
    call = replace(numbers("fc"), outputs=nothing)
    shown = lines(replace(verification(call), outputs={"y": nothing}))
    assert [line.split() for line in shown if line.startswith(("fc ", "y "))] == [
        ["fc", "1", "NaN", "or", "infinite", "everywhere"],
        ["y", "NaN", "or", "infinite", "everywhere"],
    ]
    said = "output y is NaN or infinite everywhere in both: no numbers could be compared on these inputs"
    assert " ".join(" ".join(shown).split()).endswith(f"what was compared agrees, but {said}")


def test_where_only_numbers_inside_differ_it_is_said() -> None:
    found = wrong_in("fc", numbers("fc", 130, 20))
    inside = replace(found, outputs={"y": difference(130)})
    assert lines(inside)[-1] == "not as ./net: numbers differ inside of the model, and its outputs agree"
    assert lines(replace(found, outputs={"y": difference(20)}))[-1] == "not as ./net: numbers differ"
    small = replace(difference(3), agrees=True, excess=1e-7)
    told = "not as ./net: numbers differ inside of the model, and output y is too small to tell"
    assert lines(replace(found, outputs={"y": small}))[-1] == told


def test_the_last_line_is_not_stronger_than_those_above() -> None:
    fine = verification(numbers("fc", 120, 120), numbers("b", None, None))
    assert lines(fine)[-1] == "everything that was compared agrees; b was not compared"
    again = numbers("fc#1", None, None)
    assert lines(verification(numbers("fc", 120, 120), again))[-1].endswith("agrees; fc not in every call")
    passed = (node("a", Verdict.PROVED), node("b", Verdict.NOT_PROVABLE, reason=NOT_RUN, compute=False))
    proved = replace(verification(numbers("fc", 120, 120)), proof=AttributionProof(passed))
    assert lines(proved)[-1] == "everything that was compared agrees; 1 node did not run"


def test_an_output_that_is_called_so_is_not_called_so_twice() -> None:
    found = verification(numbers("fc", 120, 120))
    for name, told in (("y", "output y is missing"), ("output", "the output is missing")):
        assert lines(replace(found, missing=(name,)))[-1] == f"not as ./net: {told}"


def test_where_nothing_is_proved_not_everything_agrees() -> None:
    found = replace(
        verification(numbers("fc", 120, 120)),
        parameters=ParameterCheck(0, (), ("fc.weight",)),
        proof=AttributionProof((node("a", Verdict.NOT_PROVABLE), node("b", Verdict.NOT_PROVABLE))),
    )
    assert found.ok
    said = "what was compared agrees, but none of the attributions could be proved by values"
    assert lines(found)[-1] == f"{said}, and no weight has a copy in the file"
    assert lines(replace(found, parameters=ParameterCheck(1)))[-1] == said
    one = AttributionProof((node("a", Verdict.NOT_PROVABLE), node("b", Verdict.PROVED)))
    assert lines(replace(found, proof=one))[-1] == "everything agrees"
    # Shapes and integers alone are nothing that values could prove.
    none = AttributionProof((node("a", Verdict.NOT_PROVABLE, compute=False),))
    assert lines(replace(found, proof=none))[-1] == "everything agrees"


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        (((7, 8), (5, 6)), "2 new ones in 2 rows, equal to those of generate"),
        (((7,), (5,)), "1 were made before the chain diverged, equal to those of generate"),
        (((), ()), "2 new ones in 2 rows by generate, none by the files: the chain diverged in its first step"),
    ],
)
def test_tokens_are_equal_only_where_there_are_some(chosen: tuple[tuple[int, ...], ...], text: str) -> None:
    found = PackageVerification("a", "b", {}, tokens=TokenCheck(((7, 8), (5, 6)), chosen))
    assert text in as_text(package_verification_tables(found, Shown()))
