"""Pack and unpack functions for saved tensors, given as functions or by dotted path."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

from composer_memprof.messages import must_be, nearest

Function = Callable[[Any], Any]
FunctionOrPath = Union[str, Function]

#: finetuning-scheduler's name for the identity. As unpack it returns what was packed. As pack it detaches, because a
#: pack function that returns its argument keeps the graphs of operations that save their output alive for good.
IDENTITY = 'identity_lambda'


def resolve_functions(
    functions: Optional[Sequence[FunctionOrPath]], parameter: str = 'saved_tensors_funcs'
) -> Optional[tuple[Function, Function]]:
    """The pack and the unpack function; None where both are the identity.

    Raises:
        ValueError: naming the parameter, the value and what is wrong with it.
    """
    if functions is None:
        return None
    if isinstance(functions, str) or not isinstance(functions, Sequence) or len(functions) != 2:
        raise must_be(parameter, 'a list of two functions, pack and unpack', functions)
    pack, unpack = (resolve_function(function, parameter) for function in functions)
    return None if pack is identity and unpack is identity else (pack, unpack)


def identity(value: Any) -> Any:
    """Stands for ``IDENTITY``."""
    return value


def resolve_function(function: FunctionOrPath, parameter: str) -> Function:
    """The function itself, or the one that a dotted path names.

    Raises:
        ValueError: naming the parameter, the value and what is wrong with it.
    """
    if callable(function):
        return function
    if function == IDENTITY:
        return identity
    module_name, _, name = function.rpartition('.') if isinstance(function, str) else ('', '', '')
    if not module_name or not name:
        raise must_be(f'each of {parameter}', f'a function, its dotted path, or {IDENTITY!r}', function)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # importing a user's module may raise anything
        reason = ' '.join(f'{type(error).__name__}: {error}'.split())
        raise ValueError(f'{parameter}: {function!r} does not import: {reason}') from error
    found = getattr(module, name, None)
    if found is None:
        raise ValueError(f'{parameter}: {module_name} has no {name!r}{nearest(name, dir(module))}')
    if not callable(found):
        raise ValueError(f'{parameter}: {function!r} is a {type(found).__name__}, not a function')
    return found
