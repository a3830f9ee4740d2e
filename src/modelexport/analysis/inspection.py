"""A file opened for validation: whatever is wrong with its record is still to be found."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from modelexport.analysis.recorded import StoredRecords, belongs, fit, read_records
from modelexport.graph.index import Graph
from modelexport.graph.model_file import ModelFile
from modelexport.record.provenance import Provenance


@dataclass(frozen=True)
class Inspection:
    """What the checks look at. `record` is as stored; there is at least one."""

    path: Path
    model: ModelFile
    graph: Graph
    stored: StoredRecords
    record: Provenance

    @property
    def foreign(self) -> bool:
        """The record speaks of another file, so that nothing else can be asked about it."""
        return not belongs(self.record, self.graph, beside=self._beside)

    @property
    def _beside(self) -> bool:
        return self.stored.embedded is None

    @cached_property
    def fitted(self) -> Provenance:
        """The record for exactly the nodes of the file; a foreign one cannot be fitted."""
        return fit(self.record, self.graph, self.path, beside=self._beside)


def inspect(model: ModelFile, path: Path) -> Inspection:
    stored = read_records(model, path)
    return Inspection(path, model, model.graph, stored, stored.best(path))
