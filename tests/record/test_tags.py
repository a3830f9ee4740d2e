from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.support.building import attribution, hierarchies, model, module, node, policies, provenance, tree

from modelexport.record.hierarchy import Hierarchy, lineage_of
from modelexport.record.provenance import Provenance
from modelexport.record.tags import TORCH_NN_EXCEPTIONS, Scope, TagPolicy, Tags, TorchNN

BERT = Hierarchy.of(
    [
        module("", "BertModel", "transformers.models.bert"),
        module("embeddings", "BertEmbeddings", "transformers.models.bert"),
        module("embeddings.word", "Embedding"),
        module("embeddings.position", "Embedding"),
        module("embeddings.norm", "LayerNorm"),
        module("encoder", "BertEncoder", "transformers.models.bert"),
        module("encoder.layer", "ModuleList"),
        module("encoder.layer.0", "BertLayer", "transformers.models.bert"),
        module("encoder.layer.0.self", "BertSelfAttention", "transformers.models.bert"),
        module("encoder.layer.0.self.query", "Linear"),
        module("encoder.layer.0.self.key", "Linear"),
        module("encoder.layer.0.self.drop", "Dropout"),
        module("encoder.layer.1", "BertLayer", "transformers.models.bert"),
    ]
)
PLAIN = tree({"": "Net", "fc1": "Linear", "act": "ReLU", "fc2": "Linear"})


def test_a_kept_module_contributes_its_class() -> None:
    tags = Tags(BERT)
    assert tags.tag("") == "/BertModel"
    assert tags.tag("encoder") == "/BertModel/BertEncoder"
    assert tags.tag("encoder.layer.0.self") == "/BertModel/BertEncoder/BertLayer.0/BertSelfAttention"
    assert tags.tag("embeddings.norm") == "/BertModel/BertEmbeddings/LayerNorm"


def test_what_is_not_kept_has_the_tag_of_what_is_above_it() -> None:
    tags = Tags(BERT)
    assert tags.tag("encoder.layer.0.self.query") == tags.tag("encoder.layer.0.self")
    assert tags.tag("encoder.layer") == "/BertModel/BertEncoder"
    assert tags.tag("no.such.module") == "/BertModel"


def test_siblings_of_one_class_get_their_names() -> None:
    assert Tags(BERT).tag("embeddings.word") == "/BertModel/BertEmbeddings/Embedding.word"
    every = Tags(BERT, TagPolicy(torch_nn=TorchNN.ALL))
    assert every.tag("encoder.layer.0.self.query").endswith("/BertSelfAttention/Linear.query")
    assert every.tag("encoder.layer.0.self.drop").endswith("/BertSelfAttention/Dropout")


def test_a_module_in_a_container_gets_its_name_even_alone() -> None:
    alone = tree({"": "Net", "layers": "ModuleList", "layers.0": "Layer", "net": "Sequential", "net.0": "Other"})
    assert Tags(alone).by_path == {"": "/Net", "layers.0": "/Net/Layer.0", "net.0": "/Net/Other.0"}


def test_a_name_that_is_not_enough_gets_the_names_above_it() -> None:
    twins = tree({"": "Net", "a": "ModuleList", "a.0": "Layer", "b": "ModuleList", "b.0": "Layer", "b.1": "Layer"})
    assert Tags(twins).by_path == {
        "": "/Net",
        "a.0": "/Net/Layer.a.0",
        "b.0": "/Net/Layer.b.0",
        "b.1": "/Net/Layer.b.1",
    }


def test_characters_that_mean_something_are_escaped() -> None:
    odd = tree({"": "Net", "d": "ModuleDict", "d.a/b": "Part", "d.a%2Fb": "Part", "d.c#1": "Part"})
    tags = Tags(odd)
    assert tags.tag("d.a/b") == "/Net/Part.a%2Fb"
    assert tags.tag("d.a%2Fb") == "/Net/Part.a%252Fb"
    assert tags.tag("d.c#1") == "/Net/Part.c#1"
    assert tags.path("/Net/Part.a%2Fb") == "d.a/b"


def test_an_alias_has_the_tag_of_its_module() -> None:
    shared = Hierarchy.of([module("", "Net"), module("a", "Part", aliases=("b",)), module("c", "Part")])
    assert Tags(shared).tag("b") == Tags(shared).tag("a") == "/Net/Part.a"


def test_an_unknown_tag_names_nothing() -> None:
    assert Tags(BERT).path("/BertModel/BertPooler") is None
    assert Tags(BERT).path("") is None


def test_the_default_keeps_norms_and_embeddings_of_torch() -> None:
    kept = Tags(BERT).by_path
    assert "embeddings.norm" in kept
    assert "embeddings.word" in kept
    assert "encoder.layer.0.self.query" not in kept
    assert set(Tags(PLAIN).by_path) == {""}


def test_only_hugging_face_classes_leave_a_plain_net_without_tags() -> None:
    policy = TagPolicy(Scope.HF)
    assert Tags(PLAIN, policy).by_path == {}
    assert Tags(PLAIN, policy).tag("fc1") == ""
    assert Tags(tree({"": "Sequential", "0": "Linear"}), policy).by_path == {}
    assert Tags(BERT, policy).by_path == Tags(BERT).by_path


def test_code_from_a_model_folder_counts_as_hugging_face() -> None:
    remote = Hierarchy.of([module("", "Phi", "transformers_modules.phi"), module("a", "Fake", "transformers_like")])
    assert Tags(remote, TagPolicy(Scope.HF)).by_path == {"": "/Phi"}


def test_all_of_torch_but_lists_can_be_kept() -> None:
    kept = Tags(BERT, TagPolicy(torch_nn=TorchNN.ALL)).by_path
    assert set(BERT.modules) - set(kept) == {"encoder.layer"}
    called = tree({"": "Net", "net": "Sequential", "net.0": "Linear"})
    assert Tags(called, TagPolicy(torch_nn=TorchNN.ALL)).tag("net.0") == "/Net/Sequential/Linear.0"


def test_nothing_of_torch_can_be_kept() -> None:
    kept = Tags(BERT, TagPolicy(torch_nn=TorchNN.NONE)).by_path
    assert not [path for path in kept if BERT.modules[path].package.startswith("torch")]
    assert "encoder.layer.0.self" in kept


def test_a_root_of_torch_still_has_a_tag() -> None:
    bare = tree({"": "Sequential", "0": "Linear"})
    assert Tags(bare, TagPolicy(torch_nn=TorchNN.NONE)).by_path == {"": "/Sequential"}


def test_exceptions_are_replaced_not_added_to() -> None:
    kept = Tags(BERT, TagPolicy(torch_nn_exceptions=("Linear",))).by_path
    assert "encoder.layer.0.self.query" in kept
    assert "embeddings.norm" not in kept
    assert len(TORCH_NN_EXCEPTIONS) == 9


def test_drop_goes_before_keep_and_keep_before_the_rest() -> None:
    keep = TagPolicy(keep=("*.self.*",), torch_nn=TorchNN.NONE)
    assert "encoder.layer.0.self.query" in Tags(BERT, keep).by_path
    drop = replace(keep, drop=("Linear", "encoder.layer.0"))
    kept = Tags(BERT, drop).by_path
    assert "encoder.layer.0.self.query" not in kept
    assert "encoder.layer.0.self.drop" in kept
    assert "encoder.layer.0" not in kept
    assert "encoder.layer.1" in kept


def test_rules_match_case_and_the_whole_name() -> None:
    kept = Tags(PLAIN, TagPolicy(keep=("linear", "fc", "Re"))).by_path
    assert set(kept) == {""}


@given(hierarchies(), policies)
def test_no_two_modules_share_a_tag_and_every_tag_reads_back(hierarchy: Hierarchy, policy: TagPolicy) -> None:
    tags = Tags(hierarchy, policy)
    assert len(set(tags.by_path.values())) == len(tags.by_path)
    assert all(tags.path(tags.tag(path)) == path for path in tags.by_path)
    assert set(tags.by_path) == {path for path, item in hierarchy.modules.items() if policy.keeps(item)}


@given(hierarchies(), policies, st.data())
def test_every_module_has_the_tag_of_the_nearest_kept_one(
    hierarchy: Hierarchy, policy: TagPolicy, data: st.DataObject
) -> None:
    tags = Tags(hierarchy, policy)
    path = data.draw(st.sampled_from(sorted(hierarchy.modules)))
    kept = [above for above in lineage_of(path) if above in tags.by_path]
    assert tags.path(tags.tag(path)) == (kept[-1] if kept else None)


@given(hierarchies(), policies)
def test_a_tag_has_one_part_for_each_kept_module(hierarchy: Hierarchy, policy: TagPolicy) -> None:
    tags = Tags(hierarchy, policy)
    for path, tag in tags.by_path.items():
        assert tag.count("/") == sum(above in tags.by_path for above in lineage_of(path))


def test_changing_the_policy_changes_tags_and_no_attribution() -> None:
    proto = model(node("Relu", "x", "y"))
    found = provenance(proto, BERT, {"y": ["encoder.layer.0.self.query"]})
    plain = replace(found, policy=TagPolicy(Scope.HF, drop=("BertSelfAttention",)))
    assert isinstance(plain, Provenance)
    assert plain.attribution("y") == found.attribution("y") == attribution(BERT, "encoder.layer.0.self.query")
    assert found.tag(found.attribution("y")) == "/BertModel/BertEncoder/BertLayer.0/BertSelfAttention"
    assert plain.tag(plain.attribution("y")) == "/BertModel/BertEncoder/BertLayer.0"
