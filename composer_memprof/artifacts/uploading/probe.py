"""One cheap request to a store before the first batch, so that problems with the store are reported at once.

The request runs on a thread of its own: training neither waits for it nor sees its errors. It leaves nothing in the
store. On S3 it begins an upload and aborts it; on other stores it only reads, so that a missing right to write shows at
the first upload.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import fsspec.asyn
import fsspec.implementations.local
import fsspec.implementations.memory

from composer_memprof.artifacts.naming.addresses import has_bucket, scheme_of
from composer_memprof.artifacts.uploading.composer_stores import ComposerStoreFileSystem
from composer_memprof.artifacts.uploading.errors import NO_ANSWER, NO_BUCKET, explain
from composer_memprof.artifacts.uploading.filesystems import filesystem_of
from composer_memprof.artifacts.writing.failures import only_exceptions
from composer_memprof.messages import errors_logged, log_error, warn

#: Seconds to wait for an answer.
_PATIENCE_S = 20.0
#: Timeouts of the one attempt. Uploads have longer timeouts and more attempts.
_S3_CONFIG = {'connect_timeout': 5, 'read_timeout': 10, 'retries': {'max_attempts': 0}}


def start_probe(address: str, storage_options: Optional[Mapping[str, Any]] = None) -> threading.Thread:
    """Ask the store of ``address`` on another thread, and warn if uploads to it will not work."""

    def probe() -> None:
        problem = find_problem(address, storage_options)
        if problem is not None:
            warn(
                f'nothing can be uploaded to {place_of(address)}: {problem}. Training continues; the files are kept, and '
                'composer-memprof push uploads them later'
            )

    thread = threading.Thread(target=probe, name='memprof-probe', daemon=True)
    with errors_logged('the store could not be asked'):  # a limit on threads
        thread.start()
    return thread


def find_problem(
    address: str, storage_options: Optional[Mapping[str, Any]] = None, patience: float = _PATIENCE_S
) -> Optional[str]:
    """Why nothing can be uploaded to ``address``, and what to do next; None if no problem was found."""
    problems: list[Optional[str]] = []

    def ask() -> None:
        try:
            with only_exceptions():
                problems.append(_ask(address, dict(storage_options or {})))
        except Exception as error:  # a store's client may raise anything
            log_error(f'asking {place_of(address)} failed')
            problems.append(explain(error))

    asking = threading.Thread(target=ask, name='memprof-probe-request', daemon=True)
    asking.start()
    asking.join(patience)
    return problems[0] if problems else NO_ANSWER


def place_of(address: str) -> str:
    """The bucket of an address, or else the folder.

    >>> place_of('s3://bucket/runs/first/rank0.json'), place_of('sftp://host/runs/rank0.json')
    ('s3://bucket', 'sftp://host/runs')
    """
    if has_bucket(address):
        scheme, separator, path = address.partition('://')
        return f'{scheme}{separator}{path.partition("/")[0]}'
    return address.rpartition('/')[0]


def _ask(address: str, options: dict[str, Any]) -> Optional[str]:
    scheme = scheme_of(address)
    if scheme in ('s3', 's3a'):
        config = {**_S3_CONFIG, **options.get('config_kwargs', {})}
        options = {**options, 'config_kwargs': config, 'skip_instance_cache': True}
    filesystem, path = filesystem_of(address, options)
    if isinstance(filesystem, fsspec.implementations.memory.MemoryFileSystem):
        return None
    if isinstance(filesystem, fsspec.implementations.local.LocalFileSystem):
        return _ask_this_machine(Path(path))
    bucket, _, key = path.partition('/')
    if scheme in _REQUESTS:
        _REQUESTS[scheme](filesystem, bucket, key)
    elif has_bucket(address) and not isinstance(filesystem, ComposerStoreFileSystem):
        return None if filesystem.exists(bucket) else NO_BUCKET
    else:
        filesystem.exists(path)  # connects; a folder is made when it is needed
    return None


def _begin_upload_to_s3(filesystem: Any, bucket: str, key: str) -> None:
    """An upload in parts is no object before it is completed."""
    filesystem.retries = 1
    begun = filesystem.call_s3('create_multipart_upload', Bucket=bucket, Key=key)
    with errors_logged('the upload that was begun could not be taken back'):  # a right of its own
        filesystem.call_s3('abort_multipart_upload', Bucket=bucket, Key=key, UploadId=begun['UploadId'])


# A list of one object, because to some clients a bucket exists if they cannot ask, and because the answer to a HEAD request
# has no error code.


def _list_gcs(filesystem: Any, bucket: str, prefix: str) -> None:
    filesystem.call('GET', 'b/{}/o', bucket, prefix=prefix, maxResults=1, json_out=True)


def _list_azure(filesystem: Any, container: str, prefix: str) -> None:
    async def first() -> None:
        async with filesystem.service_client.get_container_client(container) as client:
            async for _ in client.list_blobs(name_starts_with=prefix, results_per_page=1, retry_total=0):
                return

    fsspec.asyn.sync(filesystem.loop, first)


_REQUESTS = {
    **dict.fromkeys(('s3', 's3a'), _begin_upload_to_s3),
    **dict.fromkeys(('gs', 'gcs'), _list_gcs),
    **dict.fromkeys(('az', 'abfs', 'abfss'), _list_azure),
}


def _ask_this_machine(path: Path) -> Optional[str]:
    nearest = path.parent
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if nearest.is_dir() and os.access(nearest, os.W_OK):
        return None
    return f'{str(nearest)!r} is not a folder that this user can write to. Change its rights, or remote_file_name'
