"""What waits outside of torch for ranks that are not there: it is told that each rank is alone on its node."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import wrapt


def install() -> None:
    """Tell it so, each when it is imported."""
    wrapt.when_imported('streaming.base.distributed')(_streaming)
    wrapt.when_imported('composer.utils.dist')(_composer)


def _streaming(distributed: Any) -> None:
    """MosaicML Streaming counts the local ranks in shared memory. Checked with its versions 0.12 (run) and 0.13 (read).

    As many nodes of one rank each read as many samples.
    """
    distributed.get_local_world_size = lambda: 1
    distributed.get_local_rank = lambda: 0


def _composer(dist: Any) -> None:
    """Composer waits for a file that the first rank of the node writes. Checked with its version 0.32."""
    dist.local_rank_zero_download_and_wait = _do_not_wait


@contextlib.contextmanager
def _do_not_wait(expected_file_path: str) -> Iterator[None]:
    yield
