"""Uploads in a child process at interpreter exit: a store's client needs threads, which then no longer start.

The child imports neither Composer nor torch, so that it starts fast.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_memprof.artifacts.uploading.process.python_process import start_python
from composer_memprof.artifacts.uploading.push.push import PushResult, push_manifests
from composer_memprof.artifacts.uploading.push.targets import Allowed
from composer_memprof.artifacts.writing.deadlines import Deadline
from composer_memprof.messages import push_command


@dataclass(frozen=True)
class _PendingPush:
    manifest: Path
    addresses: Sequence[str]
    storage_options: Mapping[str, Any]
    timeout: float


_pending: list[_PendingPush] = []


def push_at_exit(manifest: Path, addresses: Sequence[str], storage_options: Mapping[str, Any], timeout: float) -> None:
    """Push the files of ``manifest`` that are for ``addresses`` in a child process, after every callback has closed."""
    _pending.append(_PendingPush(manifest, addresses, storage_options, timeout))


def _push_pending() -> None:
    if not _pending:
        return
    longest = max(pending.timeout for pending in _pending)
    deadline = Deadline(longest, if_leaving=longest, if_hurried=0)
    requests = [(str(each.manifest), list(each.addresses), dict(each.storage_options)) for each in _pending]
    _pending.clear()
    child = start_python(push_from_stdin, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    # Through a pipe, because other users can read a process's arguments, and the options may hold credentials.
    with contextlib.suppress(BrokenPipeError):  # the child has died
        assert child.stdin is not None
        child.stdin.write(json.dumps(requests, default=str).encode())
        child.stdin.close()
    if not _ends_by(child, deadline):
        child.kill()
        folders = list(dict.fromkeys(Path(name).parent for name, _, _ in requests))
        sys.stderr.write(
            f'composer_memprof: some files were not uploaded in time. Upload them with: {push_command(folders)}\n'
        )


def _ends_by(child: subprocess.Popen[bytes], deadline: Deadline) -> bool:
    while True:
        try:
            child.wait(max(min(deadline.left(), 1.0), 0.1))  # the deadline may become shorter during the wait
            return True
        except subprocess.TimeoutExpired:
            if not deadline.left():
                return False


def push_from_stdin() -> None:
    """The main function of the child process: push the files that stdin lists in JSON, by manifest and address."""

    def report(result: PushResult) -> None:
        if result.error is not None:
            sys.stderr.write(f'composer_memprof: {result.path} was not uploaded: {result.error}\n')

    requests: list[tuple[str, list[str], dict[str, Any]]] = json.load(sys.stdin)
    every_options = [options for _, _, options in requests]
    for number, options in enumerate(every_options):
        if options not in every_options[:number]:
            same = [(Path(manifest), addresses) for manifest, addresses, given in requests if given == options]
            only = {address for _, addresses in same for address in addresses}
            manifests = list(dict.fromkeys(manifest for manifest, _ in same))
            push_manifests(manifests, options, report, allowed=Allowed(only=only))


# Exit handlers run in reverse order. Composer's engine registers its own when a Trainer starts, so this one, registered
# at import, runs after all callbacks have closed.
atexit.register(_push_pending)
