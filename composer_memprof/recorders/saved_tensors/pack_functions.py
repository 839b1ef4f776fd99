"""Pack and unpack functions for saved tensors, given as callables or by dotted path."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

from composer_memprof.messages import nearest

Function = Callable[[Any], Any]
FunctionOrPath = Union[str, Function]

#: As finetuning-scheduler spells it. As unpack it gives back what was packed; as pack it means detach, since a pack
#: that returned its own argument would keep the graphs of operations that save their output alive for good.
IDENTITY = 'identity_lambda'


def resolve_functions(
    functions: Optional[Sequence[FunctionOrPath]], parameter: str = 'saved_tensors_funcs'
) -> Optional[tuple[Function, Function]]:
    """A pack and an unpack function; None where both are the identity.

    Raises:
        ValueError: naming the parameter, the value and what is wrong with it.
    """
    if functions is None:
        return None
    if isinstance(functions, str) or not isinstance(functions, Sequence) or len(functions) != 2:
        raise ValueError(f'{parameter}={functions!r} is not allowed; it is a list of two, pack and unpack')
    pack, unpack = (resolve_function(function, parameter) for function in functions)
    return None if pack is identity and unpack is identity else (pack, unpack)


def identity(value: Any) -> Any:
    return value


def resolve_function(function: FunctionOrPath, parameter: str) -> Function:
    """A function, from its dotted path.

    Raises:
        ValueError: naming the parameter, the value and what is wrong with it.
    """
    if callable(function):
        return function
    if function == IDENTITY:
        return identity
    module_name, _, name = function.rpartition('.') if isinstance(function, str) else ('', '', '')
    if not module_name or not name:
        raise ValueError(
            f'{parameter}: {function!r} is not allowed; it is a function, its dotted path, or {IDENTITY!r}'
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever someone's module does when it is imported
        reason = ' '.join(f'{type(error).__name__}: {error}'.split())
        raise ValueError(f'{parameter}: {function!r} does not import: {reason}') from error
    found = getattr(module, name, None)
    if found is None:
        raise ValueError(f'{parameter}: {module_name} has no {name!r}{nearest(name, dir(module))}')
    if not callable(found):
        raise ValueError(f'{parameter}: {function!r} is a {type(found).__name__}, not a function')
    return found
