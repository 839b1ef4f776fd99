"""Warnings about a run that ends before, or inside, the first window."""

from __future__ import annotations

from typing import Optional

from composer.core import State, TimeUnit
from composer.utils import dist

from composer_memprof.callbacks.framework.windows.exclusive import Obstacle
from composer_memprof.messages import warn
from composer_memprof.schedule import Schedule, window
from composer_memprof.schedule.overlap import first_common_batch


def warn_if_too_short(name: str, schedule: Schedule, state: State) -> bool:
    """Before the first batch: warn if training provably ends before the first window. Returns whether it does."""
    first = first_common_batch(schedule, window('1ba', every='1ba'), [dist.get_global_rank()])
    left = _batches_left(state)
    if first is None or left is None or not 0 < left <= first:
        return False
    warn(
        f'{name} will record nothing: its first window comes after {first} batches, and this run has {left}. '
        'Use a smaller skip in schedule'
    )
    return True


def warn_of_unfinished(name: str, batch: int, *, inside: bool, obstacle: Optional[Obstacle]) -> None:
    """At the end of training: it ended inside a window, or before the first. ``obstacle``: why that was postponed."""
    if inside:
        warn(f'the run ended at batch {batch}, inside a window of {name}. What was recorded is saved')
    elif obstacle is not None:
        warn(f'the run ended at batch {batch} while the window of {name} was postponed: {obstacle}')
    else:
        warn(
            f'the run ended at batch {batch}, before the first window of {name}. Use a smaller skip or active in schedule'
        )


def _batches_left(state: State) -> Optional[int]:
    """From here to the end of training, where that is known in batches."""
    end, length = state.max_duration, state.dataloader_len
    done = state.timestamp.batch.value
    if end is None or end.unit not in (TimeUnit.BATCH, TimeUnit.EPOCH):
        return None
    if end.unit == TimeUnit.BATCH:
        return int(end.value) - done
    return None if length is None else int(end.value * length.value) - done
