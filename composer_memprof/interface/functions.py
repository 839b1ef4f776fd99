"""A Python function as a command, which calls it in a process of its own."""

from __future__ import annotations

import contextlib
import dis
import importlib
import inspect
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Optional

from composer_memprof.artifacts.writing.temporary_folders import temporary_folder
from composer_memprof.interface.calling import CALLING, member_of
from composer_memprof.messages import MemprofError

#: The last word of the command, in whose place a search puts its numbers.
_NUMBER = '{}'


@contextlib.contextmanager
def command_that_calls(
    function: Callable[..., Any], arguments: Mapping[str, Any], searches: bool
) -> Iterator[list[str]]:
    """The command that calls the function, for as long as the block runs.

    Args:
        function: of a module or a script, or of a notebook.
        arguments: by name; what JSON has.
        searches: the first argument is a number that the search puts into the command.

    Raises:
        MemprofError: if the function can't be called in another process.
    """
    if not isinstance(function, FunctionType):
        raise MemprofError(
            f'simulate takes a function of Python or a command, not {function!r}; write a function that calls it'
        )
    found = _place(function)
    with temporary_folder('simulate') as folder:
        if 'source' in found:
            path = folder / 'notebook.py'
            path.write_text(found.pop('source'), encoding='utf-8')
            found['file'] = str(path)
        request = folder / 'request.json'
        try:
            text = json.dumps({**found, 'arguments': dict(arguments), 'path': sys.path, 'program': sys.argv[:1]})
        except (TypeError, ValueError) as error:
            raise MemprofError(
                f'arguments must be numbers, text, true or false, None, and lists and mappings of these: {error}'
            ) from None
        request.write_text(text, encoding='utf-8')
        number = [_NUMBER] if searches else []
        yield [sys.executable, '-m', 'composer_memprof.interface.calling', str(request), *number]


def refuse_calls_of_the_called() -> None:
    """Refuse to simulate within a function that is simulated, and while its file is imported.

    Raises:
        MemprofError: that says how to write it.
    """
    if os.environ.get(CALLING):
        raise MemprofError(
            'simulate was called again by what it simulates, most likely because the file of the function calls it when '
            "it is imported: put that call below if __name__ == '__main__':"
        )


def _place(function: FunctionType) -> dict[str, Any]:
    """Where the other process finds the function: a module or a file and a name, or the function's own source."""
    name, module = function.__qualname__, function.__module__
    if '<' in name or function.__closure__:
        raise MemprofError(
            f'simulate cannot call {name.replace(".<locals>", "")} in another process: it takes a function of a module, a '
            'script or a notebook, no lambda and no function that is defined within another one'
        )
    home = sys.modules.get(module)
    if not _is_member(function, home, name):
        raise MemprofError(f'simulate cannot call {name} in another process: {module}.{name} is another object')
    if module != '__main__':
        return {'module': module, 'name': name}
    file = getattr(home, '__file__', None)
    if file is not None and Path(file).is_file():
        return {'file': str(Path(file).absolute()), 'name': name}
    return {'name': name, **_of_notebook(function)}


def _is_member(value: Any, home: Optional[ModuleType], name: str) -> bool:
    try:
        return member_of(home, name) is value
    except AttributeError:
        return False


def _of_notebook(function: FunctionType) -> dict[str, Any]:
    """The function's source, at the lines that it has in its cell, and what it uses of other cells that can be imported."""
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        raise MemprofError(
            f'simulate cannot call {function.__name__} in another process: its source is not known; write it into a file '
            'and import it'
        ) from None
    imported, missing = {}, []
    for name in sorted(_global_names(function.__code__) & set(function.__globals__) - {function.__name__}):
        address = _address(function.__globals__[name])
        if address is None:
            missing.append(name)
        else:
            imported[name] = address
    if missing:
        raise MemprofError(
            f'simulate calls {function.__name__} in another process, which has nothing of the notebook but that function: '
            f'define or import {", ".join(missing)} within it, or write the code into a file and import it'
        )
    return {'source': '\n' * (first - 1) + textwrap.dedent(''.join(lines)), 'imported': imported}


def _global_names(code: CodeType) -> set[str]:
    names = {str(step.argval) for step in dis.get_instructions(code) if step.opname in ('LOAD_GLOBAL', 'LOAD_NAME')}
    return names.union(*(_global_names(each) for each in code.co_consts if isinstance(each, CodeType)))


def _address(value: Any) -> Optional[list[str]]:
    """The module that another process imports it from, and its name there; None if it can't be imported."""
    if isinstance(value, ModuleType):
        return [value.__name__, '']
    module, name = getattr(value, '__module__', None), getattr(value, '__qualname__', None)
    if not isinstance(module, str) or not isinstance(name, str) or module == '__main__':
        return None
    with contextlib.suppress(ImportError):
        return [module, name] if _is_member(value, importlib.import_module(module), name) else None
    return None
