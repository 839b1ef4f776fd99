"""The process of a simulated function: ``python -m composer_memprof.interface.calling REQUEST.json [NUMBER]``.

It comes to the function as :mod:`multiprocessing` does: by the name of its module, or by its file, whose code below
``if __name__ == '__main__':`` does not run.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Set in this process: it simulates nothing itself.
CALLING = 'COMPOSER_MEMPROF_CALLING'
#: Of a script or of the cell of a notebook; multiprocessing calls it so too.
_MODULE = '__mp_main__'


def main(request: dict[str, Any], numbers: list[int]) -> None:
    """Call the function that is asked for; ``numbers`` come before its arguments."""
    os.environ[CALLING] = '1'
    sys.path[:] = request['path']
    sys.argv[:] = request['program']
    function = _function(request)
    function(*numbers, **request['arguments'])


def _function(request: dict[str, Any]) -> Callable[..., Any]:
    if 'module' in request:
        found: Any = importlib.import_module(request['module'])
    else:
        spec = importlib.util.spec_from_file_location(_MODULE, request['file'])
        assert spec is not None and spec.loader is not None
        found = importlib.util.module_from_spec(spec)
        sys.modules[_MODULE] = found
        for name, (module, member) in request.get('imported', {}).items():
            setattr(found, name, member_of(importlib.import_module(module), member))
        spec.loader.exec_module(found)
    function: Callable[..., Any] = member_of(found, request['name'])
    return function


def member_of(home: Any, name: str) -> Any:
    """What is called ``name`` in a module, such as ``'Model.make'``; the module itself if the name is empty.

    Raises:
        AttributeError: if there is none.
    """
    for part in filter(None, name.split('.')):
        home = getattr(home, part)
    return home


if __name__ == '__main__':
    main(json.loads(Path(sys.argv[1]).read_text(encoding='utf-8')), [int(word) for word in sys.argv[2:]])
