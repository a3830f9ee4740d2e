"""The time, the calls and the noise of modules."""

from __future__ import annotations

import pytest
from tests.support.building import tree
from tests.support.profiles import credited

from modelexport.inspect.profile import Timeline, spread
from modelexport.record.hierarchy import CallSite, Hierarchy, ModuleCall
from modelexport.record.provenance import Attribution, Confidence, Evidence, EvidenceKind, NodeEntry, Origin, Provenance
from modelexport.record.results.profile import KernelEvent, ModuleTime


def timed(
    hierarchy: Hierarchy, owners: dict[str, Attribution], events: list[KernelEvent], runs: int
) -> dict[str | None, ModuleTime]:
    entries = {key: NodeEntry(key, key, "MatMul", owner) for key, owner in owners.items()}
    timeline = Timeline.of(events, Provenance(hierarchy, entries, {}, Origin("test", "test")), runs)
    return {module.path: module for module in timeline.modules(timeline.nodes())}


def test_how_far_runs_are_apart() -> None:
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0], 3.0) == pytest.approx(2 / 3)
    assert spread([7.0] * 9, 7.0) == 0
    assert spread([0.0] * 5, 0.0) == 0


@pytest.mark.parametrize("numbers", [[5.0], [5.0] * 4, [0.0, 0.0, 0.0, 4.0, 8.0]])
def test_what_says_nothing_about_how_far_they_are_apart(numbers: list[float]) -> None:
    assert spread(numbers, 0.0) is None


class TestNoise:
    NET = tree({"": "Net", "a": "Linear", "b": "Linear", "c": "Linear"})

    def modules(self, times: dict[str, list[float]]) -> dict[str | None, ModuleTime]:
        runs = len(next(iter(times.values())))
        events = [KernelEvent((key,), run, 0, series[run]) for key, series in times.items() for run in range(runs)]
        return timed(self.NET, {key: credited(self.NET, key) for key in times}, events, runs)

    def test_siblings_that_differ_by_less_than_their_runs_are_alike(self) -> None:
        found = self.modules({"a": [8, 9, 10, 11, 12], "b": [11.5] * 5, "c": [90, 99, 100, 101, 110]})
        assert found["a"].alike == ("b",)
        assert found["b"].alike == ("a",)
        assert found["c"].alike == ()

    def test_siblings_that_differ_by_more_are_not(self) -> None:
        found = self.modules({"a": [8, 9, 10, 11, 12], "b": [12.5] * 5, "c": [20] * 5})
        assert not any(module.alike for module in found.values())

    def test_what_is_noisy(self) -> None:
        found = self.modules({"a": [10, 10, 10, 10, 90], "b": [6, 8, 10, 12, 14]})
        assert (found["a"].noisy, found["b"].noisy) == (False, True)
        assert found["b"].time == 10
        assert found["b"].spread == pytest.approx(0.4)
        assert all(module.noisy and module.spread is None for module in self.modules({"a": [10.0] * 4}).values())


class TestCalls:
    """Of modules, not of kernels."""

    @staticmethod
    def hierarchy() -> Hierarchy:
        modules = tree({"": "Net", "block": "Block", "block.fc": "Linear"}).modules.values()
        root, first, second = ModuleCall(""), ModuleCall("block"), ModuleCall("block", 1)
        sites = [CallSite(root, None), CallSite(first, root), CallSite(ModuleCall("block.fc"), first)]
        sites += [CallSite(second, root), CallSite(ModuleCall("block.fc", 1), second)]
        return Hierarchy.of(modules, sites)

    @staticmethod
    def owned(*calls: ModuleCall) -> Attribution:
        ancestor = TestCalls.hierarchy().common_ancestor(calls)
        return Attribution(calls, ancestor, Confidence.EXACT, (Evidence(EvidenceKind.SCOPE, "hand"),))

    def test_a_module_that_is_called_twice(self) -> None:
        one, other = ModuleCall("block.fc"), ModuleCall("block.fc", 1)
        owners = {"a": self.owned(one), "b": self.owned(one), "c": self.owned(other), "d": self.owned(other)}
        events = [KernelEvent((key,), run, 0, 1) for run in range(2) for key in owners]
        found = timed(self.hierarchy(), owners, events, 2)
        assert [(module.calls, module.kernels) for module in found.values()] == [(1, 4), (2, 4), (2, 4)]

    def test_one_call_of_two_where_the_other_did_not_run(self) -> None:
        owners = {"a": self.owned(ModuleCall("block.fc")), "c": self.owned(ModuleCall("block.fc", 1))}
        found = timed(self.hierarchy(), owners, [KernelEvent(("c",), 0, 0, 1)], 1)
        assert found["block.fc"].calls == found["block"].calls == 1

    def test_a_module_in_a_loop_is_called_each_time_and_the_one_around_the_loop_once(self) -> None:
        owners = {"loop": self.owned(ModuleCall("block")), "in": self.owned(ModuleCall("block.fc"))}
        found = timed(self.hierarchy(), owners, self.looping(3), 1)
        assert [(module.calls, module.kernels) for module in found.values()] == [(1, 4), (1, 4), (3, 3)]

    @pytest.mark.parametrize("times", [1, 2, 3])
    def test_as_often_as_the_loop_runs_and_not_as_it_did_when_calls_were_recorded(self, times: int) -> None:
        inside = self.owned(ModuleCall("block.fc"), ModuleCall("block.fc", 1))
        found = timed(self.hierarchy(), {"loop": self.owned(ModuleCall("")), "in": inside}, self.looping(times), 1)
        assert [module.calls for module in found.values()] == [1, times, times]

    @staticmethod
    def looping(times: int) -> list[KernelEvent]:
        body = [KernelEvent(("in",), 0, at, 1, depth=1, repeated=True) for at in range(times)]
        return [KernelEvent(("loop",), 0, 0, 9, 3), *body]

    def test_a_kernel_of_two_calls_is_one_of_each_and_inside_of_their_module(self) -> None:
        owners = {"a": self.owned(ModuleCall("block.fc"), ModuleCall("block.fc", 1)), "b": self.owned(ModuleCall(""))}
        found = timed(self.hierarchy(), owners, [KernelEvent((key,), 0, 0, 1) for key in owners], 1)
        assert [(module.calls, module.kernels, module.own) for module in found.values()] == [
            *((1, 2, 1), (2, 1, 0), (2, 1, 1))
        ]
        assert not any(module.shared for module in found.values())


class TestUnclear:
    NET = tree({"": "Net", "yes": "Linear", "no": "Linear", "yes.fc": "Linear"})

    def test_time_of_one_of_several_modules_is_charged_to_none(self) -> None:
        owners = {"a": credited(self.NET, "yes.fc"), "b": credited(self.NET, "no"), "c": credited(self.NET, "yes")}
        events = [KernelEvent(("a", "b"), 0, 0, 5), KernelEvent(("c",), 0, 5, 1)]
        found = timed(self.NET, owners, events, 1)
        assert {path: module.own for path, module in found.items()} == {"": 5, "yes": 1}
        (shared,) = found[""].shared
        assert (shared.modules, shared.time, shared.nodes, shared.unclear) == (("yes.fc", "no"), 5, 1, True)
        assert sum(module.charged for module in found.values()) == 6

    def test_nodes_of_one_module_need_not_be_told_apart(self) -> None:
        owners = {"a": credited(self.NET, "no"), "b": credited(self.NET, "no")}
        found = timed(self.NET, owners, [KernelEvent(("a", "b"), 0, 0, 5)], 1)
        assert found["no"].own == 5
        assert not found["no"].shared

    def test_of_a_module_or_of_nobody(self) -> None:
        owners = {"a": credited(self.NET, "no"), "b": credited(self.NET)}
        found = timed(self.NET, owners, [KernelEvent(("a", "b"), 0, 0, 5)], 1)
        assert found[None].own == 5
        assert set(found) == {None}
