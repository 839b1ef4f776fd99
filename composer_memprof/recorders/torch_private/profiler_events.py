"""The types of the events in the profiler's event tree."""

from __future__ import annotations

from composer_memprof.recorders.torch_private import private

#: Enumeration with ``Allocation``, ``PyCall`` and ``PyCCall``, among others: compared with an event's ``tag``.
EventType = private('torch._C._profiler._EventType', seen='2.6 to 2.11', module=__name__)
