"""The module of each stack of a snapshot, from which code belongs to which modules."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Optional

import numpy as np

from composer_memprof.analysis.module_names import layer_name
from composer_memprof.analysis.snapshot.model import Frame, Stack
from composer_memprof.analysis.snapshot.untrusted import Names

#: File, first line, last line, and the dotted name of a module whose class has a function there.
Row = tuple[str, int, int, str]
#: Most names. A model has far fewer, since those of equal layers are one; each is compared with all others.
_MOST_NAMES = 1000


class ModuleCode:
    """Functions of the classes of a model's modules. The modules of equal layers are one: ``blocks.*``."""

    def __init__(self, rows: Iterable[Row]) -> None:
        found: defaultdict[str, defaultdict[tuple[int, int], set[str]]] = defaultdict(lambda: defaultdict(set))
        for file, first, last, name in rows:
            found[file][first, last].add(layer_name(name))
        self._names = found
        self._functions = {file: sorted(functions) for file, functions in found.items()}
        self._insides: dict[str, set[str]] = {}
        self._known = {name for functions in found.values() for names in functions.values() for name in names}

    def modules_of(self, stacks: Sequence[Stack], modules: Names) -> np.ndarray:
        """For each stack the number of the module whose code runs, int32; 0 where that is none or not certain."""
        if not 0 < len(self._known) <= _MOST_NAMES:
            return np.zeros(len(stacks), dtype=np.int32)
        return modules.indices([self._module(stack) for stack in stacks])

    def _module(self, stack: Stack) -> Optional[str]:
        """The module of the innermost function that is a module's, if the functions around it leave one name.

        >>> code = ModuleCode([('m.py', 1, 9, 'a.0'), ('m.py', 20, 29, 'a.0.mlp'), ('m.py', 20, 29, 'head')])
        >>> code._module((Frame('m.py', 21, 'forward'), Frame('m.py', 5, 'forward')))
        'a.*.mlp'
        """
        names: set[str] = set()
        for frame in stack:
            around = self._at(frame)
            if not around:
                continue
            if not names:
                names = around
            else:
                names = {name for name in names if any(self._is_called_by(outer, name) for outer in around)} or names
            if len(names) == 1:
                break
        return next(iter(names)) if len(names) == 1 else None

    def _at(self, frame: Frame) -> set[str]:
        functions = self._functions.get(frame.filename, [])
        # the last one that begins before the line: of nested functions the inner one
        place = bisect_right(functions, (frame.line, np.inf)) - 1
        if place < 0 or functions[place][1] < frame.line:
            return set()
        return self._names[frame.filename][functions[place]]

    def _is_called_by(self, outer: str, name: str) -> bool:
        """True if no module between the two would have a frame of its own."""
        if name == outer:
            return True
        return name in self._inside(outer) and not any(name in self._inside(between) for between in self._inside(outer))

    def _inside(self, outer: str) -> set[str]:
        """The known modules inside of ``outer``."""
        if outer not in self._insides:
            self._insides[outer] = {
                name for name in self._known if name and (not outer or name.startswith(f'{outer}.'))
            }
        return self._insides[outer]
