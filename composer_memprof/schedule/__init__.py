"""When to record: windows over training time, and ``&``, ``|``, ``~`` over them.

A :class:`Schedule` says which batches are recorded. It is plain data: it can be compared, combined and read from YAML.
``Schedule.bind`` makes a cursor, which steps from batch to batch; ``driver.ScheduleDriver`` steps it for a callback.

A window opens at the first batch boundary at or after its start and closes at the first boundary at or after its end.
So each window is recorded once, by at least one batch, whatever the batch size.

``spans`` and ``clocks`` measure time. ``base``, ``windows``, ``ranks``, ``constant``, ``function`` and ``algebra`` are the
kinds of schedule, ``cursor`` their common steps, ``overlap`` the proofs about them. ``parsing`` reads settings, and
``composer`` makes a schedule work in Composer's own profiler.
"""

from composer_memprof.schedule import algebra as algebra  # sets the operators of Schedule
from composer_memprof.schedule.base import Schedule
from composer_memprof.schedule.ranks import on_local_ranks, on_ranks
from composer_memprof.schedule.windows import every, window

__all__ = ['Schedule', 'every', 'on_local_ranks', 'on_ranks', 'window']
