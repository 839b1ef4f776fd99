"""What the recorder asks of a source of readings, and the call that a source reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Flat: names as in the tool that the source reads, sizes in bytes.
Values = dict[str, Any]

#: The two readings of a call, as finetuning-scheduler's keys name them.
START, END = 'start', 'end'


class Source:
    """Reads values at the start and end of calls. It may have hooks in place from ``open`` to ``close``."""

    #: True if it works only on the thread that opened it.
    one_thread = False
    #: True if its hooks stay in place between calls.
    has_hooks = False

    def open(self) -> None:
        """Called before the first call that it reads."""

    def close(self) -> None:
        """Called after the last call that it reads; a call may still be running."""

    def begin(self, call: FunctionCall) -> None:
        """A call that it reads begins; its first reading follows."""

    def read(self, call: FunctionCall, point: str) -> Values:
        """The values at a moment of the call: ``START``, ``END``, or one that the user named."""
        return {}

    def restart(self, call: FunctionCall) -> None:
        """What it counts within the call counts from here on."""

    def end(self, call: FunctionCall) -> None:
        """The call ended; its last reading was before. It may have none, if the call was dropped."""

    def training_function_begins(self, name: str, inputs: Any) -> None:
        """Called as each training function begins, such as ``forward``, even if its call is not read."""

    def training_function_ends(self, name: str) -> None:
        """Called as each training function ends, even if its call is not read."""


@dataclass(frozen=True, eq=False)
class FunctionCall:
    """One call of a function that is read.

    Args:
        function (str): its name.
        iteration (int): number of the call, counted per function from 1.
        sources (Mapping): the sources that read it, by kind.
        thread (int): the thread that it runs on.
        notes (dict): what a source keeps from the start of the call to its end.
    """

    function: str
    iteration: int
    sources: Mapping[str, Source]
    thread: int
    notes: dict[str, Any] = field(default_factory=dict)
