"""The page: rows of what was measured and of nothing else; what is wrong is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from measure.catalogue import NotRunnable, load_function
from measure.corpus.rows import Proof
from measure.generation.families import read_families
from measure.generation.family_result import PACKAGE, TASKS, VERIFY, ComponentFigures, FamilyResult
from measure.generation.generation_page import compose_generation
from measure.generation.generation_run import Places, keep_others, make_measurement
from measure.generation.parts import PARTS, PartResult
from measure.generation.targets import Target, list_targets
from measure.generation.witness import GenerationWitness, GridPoint
from measure.job import Breakdown, Job
from measure.pages import Table
from measure.results import Results, installed_versions, read_results, write_results

_GRID = tuple(GridPoint(batch, 3, 1, 1e-7) for batch in range(12))
_GOOD = FamilyResult(
    "llama",
    "decoder",
    components=(ComponentFigures("decoder", 206, {"exact": 200, "inferred": 6}),),
    generation=GenerationWitness(32, equal=True, worst=1e-6),
    grid=_GRID,
    genai="equal",
)


def test_a_good_result_has_no_faults() -> None:
    assert _GOOD.list_faults() == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"failure": "killed by SIGSEGV"}, "killed by SIGSEGV"),
        ({"absent": ("model.vision_tower",)}, "in no file: model.vision_tower"),
        ({"two_tags": ("model.embed",)}, "two tags: model.embed"),
        ({"genai": "prompt 1, token 3 is another"}, "genai: prompt 1, token 3 is another"),
        ({"components": (ComponentFigures("decoder", 9, {"none": 2}),)}, "2 nodes without a module"),
        ({"components": (ComponentFigures("decoder", 9, {}, "logits differ"),)}, "decoder: logits differ"),
        ({"grid": (GridPoint(3, 12, 4, 0.5, "logits differs by 0.5"),)}, "grid: batch 3, past 12, query 4: logits"),
        ({"generation": GenerationWitness(4, equal=False, fault="step 3: another token")}, "step 3: another token"),
        (
            {"generation": GenerationWitness(32, equal=True, worst=1, fault="step 2: 0.key differs by 1")},
            "step 2: 0.key",
        ),
    ],
)
def test_every_fault_is_named(change: dict[str, object], fault: str) -> None:
    (said,) = replace(_GOOD, **change).list_faults()  # type: ignore[arg-type]
    assert said.startswith(fault)


def test_what_genai_does_not_take_is_no_fault() -> None:
    assert replace(_GOOD, genai="refused: it hands on keys and values").list_faults() == []


def test_the_page_has_rows_of_what_was_measured_alone() -> None:
    failed = FamilyResult("t5", "encoder-decoder", failure="ExportFailed: torch refuses")
    results = Results({"torch": "2"}, {result.key: result for result in (_GOOD, failed)})
    page = compose_generation(read_families(), results)
    assert "0 of 0" not in page
    assert "| llama | full | decoder | 206 | 0 | equal | 1.0e-06 | 12 of 12 | equal |" in page
    assert "- t5: ExportFailed: torch refuses" in page
    assert "| qwen3 " not in page
    assert "Vision and language" not in page
    assert f"2 of {len(read_families())} families" in page


def test_a_target_counts_what_holds() -> None:
    other = replace(_GOOD, family="qwen3", genai="refused: no", grid=_GRID[:11])
    measured = {target.what: (target.measured, target.holds) for target in list_targets([_GOOD, other])}
    assert measured["families that agree at 12 sizes of (batch, past, query)"] == ("1 of 2", False)
    assert measured["decoders whose tokens in onnxruntime-genai are those of `generate`"][0] == "1 of 1 that it takes"
    assert measured["packages whose modules have one tag in all files"] == ("2 of 2", True)


def test_results_go_through_a_file(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_results(Results({}, {_GOOD.key: _GOOD}), path)
    assert read_results(path, FamilyResult).by_key == {("llama", PACKAGE): _GOOD}
    assert json.loads(path.read_text())["results"][0]["family"] == "llama"
    assert Places(results=path).results.exists()


def test_a_worker_that_breaks_down_is_the_result_of_its_family() -> None:
    lost = make_measurement(read_families()).lost(Job(("t5",), TASKS), VERIFY, Breakdown("took too long"))
    assert (lost.kind, lost.task, lost.failure) == ("encoder-decoder", VERIFY, "took too long")


def test_a_part_is_not_mixed_with_results_of_other_versions() -> None:
    names, jobs = ("llama", "qwen3"), [Job(("qwen3",), TASKS)]
    versions = installed_versions("onnxruntime-genai")
    known = {_GOOD.key: _GOOD}
    assert keep_others(Results(versions, known), names, jobs).by_key == known
    assert not keep_others(Results(versions, known), ("qwen3",), jobs).by_key
    with pytest.raises(NotRunnable, match="run everything"):
        keep_others(Results({"torch": "1"}, known), names, jobs)
    assert not keep_others(Results({"torch": "1"}, known), names, [Job(("llama",), TASKS)]).by_key


def test_parts_have_tables_and_targets() -> None:
    target = Target("seeded faults", "all", "11 of 12", holds=False)
    part = PartResult("faults", Table("Seeded faults", "", ("fault",), (("stale",),), holds=False), (target,))
    page = compose_generation(read_families(), Results(), Results({}, {part.key: part}))
    assert "| seeded faults | all | 11 of 12 | no |" in page
    assert "## Seeded faults" in page
    assert part.list_faults() == ["seeded faults: 11 of 12"]
    assert PartResult.from_json(json.loads(json.dumps(part.to_json()))) == part


def test_code_of_every_part_is_there() -> None:
    assert all(callable(load_function(name)) for name in PARTS.values())


def test_verdicts_of_verify_have_a_table_and_a_share() -> None:
    proof = Proof(nodes=206, proved=190, enclosed=10, compute=100, compute_shown=98, open={"none": 2})
    verified = FamilyResult("llama", "decoder", VERIFY, proof=proof)
    page = compose_generation(read_families(), Results({}, {item.key: item for item in (_GOOD, verified)}))
    assert "| llama | 206 | 190 | 10 | 0 | 100 | 98.0 |" in page
    assert "| at least 97.0 % | 98.0 % | yes |" in page
    assert replace(verified, proof=replace(proof, contradicted=1)).list_faults() == ["verify: 1 nodes are contradicted"]


def test_every_file_of_networks_has_to_be_run() -> None:
    components = (ComponentFigures("unet", 9, {"exact": 9}), ComponentFigures("vae_decoder", 5, {"exact": 5}))
    result = FamilyResult("diffusers-unet", "networks", components=components, differences={"unet": 0.5})
    assert result.list_faults() == ["unet differs by 0.5", "vae_decoder was not run"]
    page = compose_generation(read_families(), Results({}, {result.key: result}))
    assert "| diffusers-unet | unet | 9 | 0 | 5.0e-01 |" in page
