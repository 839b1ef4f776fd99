"""The artifacts of the MLflow run that Composer's MLFlowLogger writes to, through MLflow's own client.

Composer's logger itself takes no files for MLflow.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path, PurePosixPath
from typing import Any, Optional

from composer_memprof.artifacts.naming.numbering import before_suffix, counted
from composer_memprof.artifacts.uploading.destinations import Sent
from composer_memprof.artifacts.uploading.sent import Comparison


class MLflowDestination:
    """The run of an MLFlowLogger.

    Args:
        logger (MLFlowLogger): Composer's. Its run begins at INIT, and exists on rank 0 only unless it is made with
            ``rank_zero_only=False``.
        overwrite (bool): replace an artifact of the same name; otherwise a new one gets ``.2``, ``.3``, …
    """

    def __init__(self, logger: Any, overwrite: bool = False) -> None:
        self._logger = logger
        self.overwrite = overwrite
        self._lock = threading.Lock()  # held from the search for a free name until the name is used

    def accepts_files(self) -> bool:
        return self._client is not None and self._run_id is not None

    @property
    def is_on_rank_zero_only(self) -> bool:
        return bool(getattr(self._logger, '_rank_zero_only', False))

    def upload(self, path: Path, name: str) -> Sent:
        folder = str(PurePosixPath(name.strip('/')).parent)
        folder = '' if folder == '.' else folder
        with self._lock:
            file = self._free_name(folder, name)
            # The client has no parameter for an artifact's name; it uses the name of the file.
            with tempfile.TemporaryDirectory(prefix='memprof-mlflow-') as temporary:
                link = Path(temporary, file)
                link.symlink_to(path.absolute())
                self._client.log_artifact(self._run_id, str(link), folder or None)
        return Sent(f'{folder}/{file}' if folder else file)

    def address_of(self, name: str) -> str:
        return name

    known_address = address_of

    def has(self, name: str, size: int) -> Optional[bool]:
        """None, because no file is handed over to a logger."""
        del name, size  # unused
        return None

    def compare(self, path: Path, name: str) -> Comparison:
        at = PurePosixPath(name)
        size, stored = path.stat().st_size, self._files_in('' if str(at.parent) == '.' else str(at.parent))
        if at.name not in stored:
            return Comparison(False, 'MLflow does not have it')
        found = stored[at.name]
        return Comparison(found in (None, size), f'MLflow has {found} bytes, and the file {size}')

    def _free_name(self, folder: str, name: str) -> str:
        used = {} if self.overwrite else self._files_in(folder)
        number = 1
        while (file := PurePosixPath(before_suffix(name, counted(number))).name) in used:
            number += 1
        return file

    def _files_in(self, folder: str) -> dict[str, Optional[int]]:
        """The names of the artifacts in a folder, with their bytes."""
        found = self._client.list_artifacts(self._run_id, folder or None)
        return {PurePosixPath(artifact.path).name: artifact.file_size for artifact in found}

    @property
    def _client(self) -> Any:
        return getattr(self._logger, '_mlflow_client', None)

    @property
    def _run_id(self) -> Optional[str]:
        return getattr(self._logger, '_run_id', None)
