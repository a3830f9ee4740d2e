"""Size limits: configurations that ask for too much are refused before anything is built, by any of their numbers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from torch import nn
from torch.nn.modules import module as registration

from modelexport.capture.loading import size_limits
from modelexport.capture.loading.models import load_model
from modelexport.capture.loading.size_limits import ensure_buildable, limit_construction
from modelexport.errors import ModelUnloadable
from modelexport.record.model_source import ModelSource


def _build(configuration: Mapping[str, object]) -> nn.Module:
    """Names that no library uses: what counts modules is found out."""
    inner = configuration["inner"]
    assert isinstance(inner, dict)
    width, depth, rows = int(inner["breadth"]), int(inner["storeys"]), int(str(configuration["rows"]))
    return nn.Sequential(nn.Embedding(rows, width), *(nn.Sequential(nn.Linear(width, width)) for _ in range(depth)))


def _configuration(rows: int = 10, breadth: int = 8, storeys: int = 2) -> dict[str, object]:
    return {"rows": rows, "inner": {"breadth": breadth, "storeys": storeys}, "is_small": True}


def test_a_model_that_fits_is_not_refused() -> None:
    ensure_buildable(_configuration(), _build, "m")


@pytest.mark.parametrize(
    ("configuration", "said"),
    [
        (_configuration(storeys=10**6), "2,000,002 modules and 288 MB of weights (inner.storeys is 1000000)"),
        (_configuration(storeys=10**6, rows=10**9), "(inner.storeys is 1000000)"),
        (_configuration(rows=10**15), "6 modules and 32 PB of weights"),
        (_configuration(breadth=10**8), "6 modules and 80 PB of weights"),
    ],
)
def test_absurd_numbers_are_refused_with_the_size(configuration: dict[str, object], said: str) -> None:
    started = time.monotonic()
    with pytest.raises(ModelUnloadable) as refused:
        ensure_buildable(configuration, _build, "m")
    assert said in refused.value.message
    assert time.monotonic() - started < 60


def test_a_number_in_a_list_is_found() -> None:
    def build(configuration: Mapping[str, object]) -> nn.Module:
        depths = configuration["depths"]
        assert isinstance(depths, list)
        return nn.Sequential(*(nn.Identity() for depth in depths for _ in range(depth)))

    with pytest.raises(ModelUnloadable, match=r"1,000,004 modules .*\(depths.1 is 1000000\)"):
        ensure_buildable({"depths": [2, 10**6, 1]}, build, "m")


def test_two_numbers_that_multiply_are_stopped_while_building(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_limits, "_QUICKLY_BUILT", 100)
    monkeypatch.setattr(size_limits, "_MOST_MODULES", 500)

    def build(configuration: Mapping[str, object]) -> nn.Module:
        rows, columns = int(str(configuration["rows"])), int(str(configuration["columns"]))
        return nn.Sequential(*(nn.Sequential(*(nn.Identity() for _ in range(columns))) for _ in range(rows)))

    configuration = {"rows": 10**6, "columns": 10**6}
    ensure_buildable(configuration, build, "m")  # no number alone explains it
    with pytest.raises(ModelUnloadable, match="more than 501 modules"), limit_construction("m"):
        build(configuration)


def test_weights_are_counted_while_any_model_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_limits, "available_memory", lambda: 1_000)
    with pytest.raises(ModelUnloadable, match=r"and 4 KB of weights"), limit_construction("nets.py:build"):
        nn.Linear(1000, 1, bias=False)
    with limit_construction("m"):
        layer = nn.Linear(10, 15, bias=False)  # 600 bytes: too many if they counted twice
        nn.Linear(10, 15, device="meta").weight = layer.weight
        nn.LazyLinear(4)
        nn.Linear(10**6, 10**6, device="meta")


def test_other_threads_and_later_models_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_limits, "_MOST_MODULES", 3)
    built: list[nn.Module] = []
    before = len(registration._global_parameter_registration_hooks), nn.Module.__init__
    with limit_construction("m"):
        thread = threading.Thread(target=lambda: built.append(nn.Sequential(*(nn.ReLU() for _ in range(9)))))
        thread.start()
        thread.join()
    assert len(built) == 1
    assert (len(registration._global_parameter_registration_hooks), nn.Module.__init__) == before


def test_a_configuration_of_a_million_layers_is_refused(tmp_path: Path) -> None:
    raw = {"model_type": "gpt2", "architectures": ["GPT2Model"], "n_embd": 64, "n_head": 2, "n_layer": 10**6}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ModelUnloadable, match=r"13,000,006 modules and .* of weights \(n_layer is 1000000"):
        load_model(str(tmp_path), ModelSource(str(tmp_path)))
