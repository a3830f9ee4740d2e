from __future__ import annotations

from tests.support.building import attribution, tree

from modelexport.attribute.roles.assign import Layers
from modelexport.record.hierarchy import Hierarchy


def numbers(hierarchy: Hierarchy) -> dict[str, int]:
    """The layer of every recorded call that is in one."""
    layers = Layers(hierarchy)
    found = {str(site.call): layers.number_of(attribution(hierarchy, str(site.call))) for site in hierarchy.calls}
    return {call: number for call, number in found.items() if number is not None}


def blocks(container: str, *names: str, class_name: str = "Block") -> dict[str, str]:
    """Modules of blocks that hold a Linear each."""
    found: dict[str, str] = {}
    for name in names:
        found |= {f"{container}.{name}": class_name, f"{container}.{name}.fc": "Linear"}
    return found


def test_blocks_of_a_list_are_numbered_in_the_order_of_their_calls() -> None:
    net = tree(
        {"": "Net", "emb": "Embedding", "h": "ModuleList", **blocks("h", "0", "1"), "head": "Linear"},
        *("", "emb", "h.1", "h.1.fc", "h.0", "h.0.fc", "head"),
    )
    assert numbers(net) == {"h.1": 0, "h.1.fc": 0, "h.0": 1, "h.0.fc": 1}


def test_a_list_may_hold_blocks_of_several_classes() -> None:
    classes = {"": "Net", "h": "ModuleList", **blocks("h", "0", "2"), **blocks("h", "1", class_name="Other")}
    net = tree(classes, *("", "h.0", "h.1", "h.2"))
    assert numbers(net) == {"h.0": 0, "h.1": 1, "h.2": 2}


def test_a_sequential_numbers_only_what_repeats() -> None:
    classes = {"": "Net", "s": "Sequential", **blocks("s", "0", class_name="Stem"), **blocks("s", "1", "2")}
    net = tree(classes, *("", "s", "s.0", "s.1", "s.2"))
    assert numbers(net) == {"s.1": 0, "s.2": 1}


def test_layers_of_torch_and_modules_without_parameters_are_no_blocks() -> None:
    classes = {"": "Net", "s": "Sequential", "s.0": "Linear", "s.1": "Linear", "a": "ModuleList", "a.0": "Act"}
    assert numbers(tree(classes, "", "s", "s.0", "s.1", "a.0")) == {}


def test_one_block_called_several_times() -> None:
    net = tree({"": "Net", "h": "ModuleList", **blocks("h", "0")}, *("", *("h.0", "h.0.fc") * 3))
    assert numbers(net) == {"h.0": 0, "h.0.fc": 0, "h.0#1": 1, "h.0.fc#1": 1, "h.0#2": 2, "h.0.fc#2": 2}


def test_an_encoder_called_twice_has_the_same_layers_twice() -> None:
    classes = {"": "Net", "enc": "Encoder", "enc.h": "ModuleList", **blocks("enc.h", "0", "1")}
    net = tree(classes, *("", *("enc", "enc.h.0", "enc.h.1") * 2))
    assert numbers(net) == {"enc.h.0": 0, "enc.h.1": 1, "enc.h.0#1": 0, "enc.h.1#1": 1}


def test_of_layers_in_layers_the_outermost_counts() -> None:
    inner = {f"h.{stage}.b": "ModuleList" for stage in (0, 1)} | blocks("h.0.b", "0", "1") | blocks("h.1.b", "0", "1")
    classes = {"": "Net", "h": "ModuleList", "h.0": "Stage", "h.1": "Stage", **inner}
    net = tree(classes, *("", "h.0", "h.0.b.0", "h.0.b.1", "h.1", "h.1.b.0", "h.1.b.1"))
    assert numbers(net) == {"h.0": 0, "h.0.b.0": 0, "h.0.b.1": 0, "h.1": 1, "h.1.b.0": 1, "h.1.b.1": 1}


def test_lists_in_a_list_are_one() -> None:
    classes = {"": "Net", "h": "ModuleList", "h.0": "ModuleList", "h.1": "ModuleList"}
    net = tree(classes | blocks("h.0", "0", "1") | blocks("h.1", "0"), *("", "h.0.0", "h.0.1", "h.1.0"))
    assert numbers(net) == {"h.0.0": 0, "h.0.1": 1, "h.1.0": 2}


def test_a_block_whose_forward_is_run_without_calling_it() -> None:
    net = tree({"": "Net", "h": "ModuleList", **blocks("h", "0", "1")}, *("", "h.0.fc", "h.1.fc"))
    assert numbers(net) == {"h.0.fc": 0, "h.1.fc": 1}


def test_what_several_layers_share_is_in_none() -> None:
    net = tree({"": "Net", "h": "ModuleList", **blocks("h", "0", "1")}, *("", "h.0", "h.1"))
    layers = Layers(net)
    assert layers.number_of(attribution(net, "h.0", "h.1")) is None
    assert layers.number_of(attribution(net)) is None


def test_of_several_owners_those_in_a_layer_decide() -> None:
    """A fused node may do the work of one layer and of a module that all layers use."""
    net = tree(
        {"": "Net", "rotary": "Rotary", "h": "ModuleList", **blocks("h", "0", "1")},
        *("", "rotary", "h.0", "h.0.fc", "h.1", "h.1.fc"),
    )
    layers = Layers(net)
    assert layers.number_of(attribution(net, "h.1.fc", "rotary")) == 1
    assert layers.number_of(attribution(net, "h.0.fc", "h.1.fc")) is None
    assert layers.number_of(attribution(net, "rotary")) is None
