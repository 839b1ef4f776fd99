"""The states of a callback during a run, and how one follows another."""

from __future__ import annotations

import enum


class Life(enum.Enum):
    """The state of a callback during a run. An error leads from any state to DISABLED.

    ======================  =====================================  ================================================
    from                    when                                   to
    ======================  =====================================  ================================================
    IDLE                    a batch of warm-up begins              WARMING_UP
    IDLE, WARMING_UP        a window begins                        RECORDING
    IDLE, WARMING_UP        a window begins that cannot be taken   SKIPPING; IDLE if it is the last, which is postponed
    WARMING_UP              the schedule or another tool ends it   IDLE
    RECORDING               the window ends                        IDLE
    RECORDING               another tool needs the resources       SKIPPING
    SKIPPING                the schedule's window ends             IDLE
    any                     an error; the run's folder is lost     DISABLED
    ======================  =====================================  ================================================
    """

    IDLE = 'idle'
    WARMING_UP = 'warming up'  # the recorder is prepared for the next window
    RECORDING = 'recording'  # a window is open
    SKIPPING = 'skipping'  # the schedule's window is open, but it is not recorded
    DISABLED = 'disabled'  # for the rest of the run


# Reading a member of an enum takes longer than what most events have to do.
IDLE, WARMING_UP, RECORDING, SKIPPING, DISABLED = Life
