"""The functions that other threads run: their local variables keep objects, and no garbage collector sees that.

>>> import threading
>>> ready, done = threading.Event(), threading.Event()
>>> def collect():
...     kept = [1, 2]
...     ready.set()
...     done.wait()
>>> thread = threading.Thread(target=collect)
>>> thread.start()
>>> _ = ready.wait()
>>> variables_of_other_threads(lambda filename: filename.startswith('<doctest'))
['the variable kept of collect']
>>> done.set()
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Optional

#: The object that a method is of has a name elsewhere.
_OWNERS = ('self', 'cls')
#: The most functions that are named.
_MOST = 2


def variables_of_other_threads(is_own: Callable[[str], bool]) -> list[str]:
    """The local variables that may keep something, in words; none if too many functions run to tell.

    Their values are not looked at: Python would keep what it shows of a function that runs.

    Args:
        is_own (Callable): True if a file is of the user's code.
    """
    own = threading.get_ident()
    found: dict[str, None] = {}
    for thread, innermost in sys._current_frames().items():
        frame: Optional[FrameType] = innermost if thread != own else None
        while frame is not None:
            code = frame.f_code
            names = [name for name in code.co_varnames if name not in _OWNERS]
            if is_own(code.co_filename) and names:
                variable = f'the variable {names[0]}' if len(names) == 1 else 'a local variable'
                found[f'{variable} of {code.co_name}'] = None
            frame = frame.f_back
    return list(found) if len(found) <= _MOST else []
