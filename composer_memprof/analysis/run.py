"""What a run left behind, from its manifests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from composer_memprof.artifacts.manifest import Entry, find_manifests, read_manifest


@dataclass(frozen=True)
class Artifact:
    """A file that the run's manifests list, with the folder of its manifest."""

    folder: Path
    entry: Entry

    @property
    def path(self) -> Path:
        return self.folder / self.entry.path


@dataclass(frozen=True)
class RunResult:
    """What a run came to. Losses are in the model's own unit; None where no batch was trained."""

    run_name: str
    batches: int
    first_loss: Optional[float]
    last_loss: Optional[float]
    artifacts: list[Artifact]


def list_artifacts(folders: set[Path]) -> list[Artifact]:
    """What the manifests directly in ``folders`` list and is still there, in order of batch."""
    artifacts = [
        Artifact(folder, entry)
        for folder in sorted(folders)
        for manifest in find_manifests(folder)
        if manifest.parent == folder
        for entry in read_manifest(manifest)
        if entry.status != 'removed'
    ]
    return sorted(artifacts, key=lambda artifact: (artifact.entry.batch, artifact.entry.rank))
