"""Where a callback's files are uploaded in a run, and what is found to be wrong with that before the first batch."""

from __future__ import annotations

import weakref
from typing import Optional

from composer.core import State
from composer.loggers import Logger, MLFlowLogger
from composer.utils import dist

from composer_memprof.artifacts.naming.addresses import scheme_of
from composer_memprof.artifacts.naming.names import Stamp
from composer_memprof.artifacts.uploading.destinations import Destination, FsspecDestination, LoggerDestination
from composer_memprof.artifacts.uploading.mlflow import MLflowDestination
from composer_memprof.artifacts.uploading.probe import place_of, start_probe
from composer_memprof.callbacks.framework.options import Output
from composer_memprof.callbacks.framework.run_names import run_name_of
from composer_memprof.messages import warn

#: The stores of each run that were asked: callbacks with the same one share an answer.
_asked: weakref.WeakKeyDictionary[State, list[object]] = weakref.WeakKeyDictionary()


def destination_for(output: Output, logger: Logger) -> Optional[Destination]:
    """A store if ``remote_file_name`` is an address, else the loggers that take files, else MLflow's run."""
    remote = output.naming.remote
    if remote is None:
        return None
    if scheme_of(remote) is not None:
        return FsspecDestination(output.storage_options, output.overwrite)
    mlflow = next((each for each in logger.destinations if isinstance(each, MLFlowLogger)), None)
    if mlflow is not None and not logger.has_file_upload_destination():
        return MLflowDestination(mlflow, output.overwrite)
    return LoggerDestination(logger)


def check_uploads(callback: str, output: Output, destination: Optional[Destination], *, is_default: bool) -> None:
    """At INIT: warn if no logger takes the files. ``is_default``: the user did not ask for uploads."""
    if destination is None or is_default or dist.get_global_rank() != 0:
        return
    if not destination.accepts_files():
        warn(
            f'{callback} uploads nothing: remote_file_name={output.naming.remote!r} is not the address of a store, and no '
            'logger of this Trainer takes files. Give an address, as s3://bucket/folder, or add a logger that takes them: '
            'RemoteUploaderDownloader, WandBLogger(log_artifacts=True) or MLFlowLogger'
        )
    elif isinstance(destination, MLflowDestination) and destination.is_on_rank_zero_only and dist.get_world_size() > 1:
        warn(
            f'{callback} uploads the files of rank 0 only, because the MLFlowLogger has a run there only. For the others '
            'give the address of a store as remote_file_name, or make the logger with rank_zero_only=False'
        )


def ask_store(output: Output, state: State) -> None:
    """At INIT: on the first rank of each node, ask the store, once for all callbacks that upload there."""
    if not output.probe or dist.get_local_rank() != 0:
        return
    naming = output.naming
    address = naming.in_store(Stamp(run_name_of(state), state.timestamp), naming.suffix, 1, 'probe') or ''
    if scheme_of(address) is None:
        return
    asked = _asked.setdefault(state, [])
    store = (place_of(address), output.storage_options)
    if store not in asked:
        asked.append(store)
        start_probe(address, output.storage_options)
