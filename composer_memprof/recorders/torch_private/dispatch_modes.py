"""Dispatch modes: the base class, the stack of active modes, and torch's own memory tracker."""

from __future__ import annotations

import sys
from typing import Any, Optional

from composer_memprof.recorders.torch_private import private, private_attribute

#: The base class of modes; ``__torch_dispatch__`` receives every operator.
TorchDispatchMode = private('torch.utils._python_dispatch.TorchDispatchMode', module=__name__)
#: ``()``: the active modes of this thread, the innermost last.
mode_stack = private('torch.utils._python_dispatch._get_current_dispatch_mode_stack', module=__name__)
#: ``()``: the innermost one.
current_mode = private('torch.utils._python_dispatch._get_current_dispatch_mode', module=__name__)
#: ``()``: takes the innermost one off the stack.
pop_mode = private('torch.utils._python_dispatch._pop_mode', module=__name__)
#: ``(mode)``: puts it on the stack.
push_mode = private('torch.utils._python_dispatch._push_mode', module=__name__)
#: ``()``: a context without any mode.
disable_current_modes = private('torch.utils._python_dispatch._disable_current_modes', module=__name__)

#: What a mode found below it when it was entered, and restores when it ends.
_FLAGS = ('old_dispatch_mode_flags', 'old_non_infra_dispatch_mode_flags')
for _flag in _FLAGS:
    private_attribute(
        f'torch.utils._python_dispatch.TorchDispatchMode.{_flag}',
        module=__name__,
        owner=TorchDispatchMode,
    )


def remove_mode(mode: Any) -> None:
    """Leave ``mode``, even where modes that were entered later are still active."""
    above: list[Any] = []
    while mode in mode_stack():
        if current_mode() is not mode:
            above.append(pop_mode())
        elif not above:
            mode.__exit__(None, None, None)
        else:
            pop_mode()
            _hand_flags_over(mode, above[-1])
    for other in reversed(above):
        push_mode(other)


def _hand_flags_over(mode: Any, above: Any) -> None:
    """Let ``above`` find what ``mode`` found. A flag left on keeps torch.compile from compiling anything afterwards."""
    for flag in _FLAGS:
        getattr(above, flag)[-1] = getattr(mode, flag).pop()


def active_memory_tracker() -> Optional[str]:
    """The dotted name of a memory tracker of torch's own that is active on this thread."""
    # Looked up in sys.modules: where nobody has imported the tracker, none is active.
    tracker = getattr(sys.modules.get('torch.distributed._tools.mem_tracker'), 'MemTracker', None)
    for mode in mode_stack():
        if tracker is not None and isinstance(mode, tracker):
            return f'{type(mode).__module__}.{type(mode).__qualname__}'
    return None
