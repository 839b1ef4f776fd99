"""Two dispatch keys of torch that CUDA does not use: by them values are followed without a word from other operators.

``FOLLOWED`` is set on single tensors, those whose values are known. An operator that gets one of them comes to the
fallback of :mod:`following`; all others run as if it were not there. torch copies the key to views by itself.

``EVERY`` is included for the whole thread, and only few operators have a kernel there (:func:`kernel`): those that make
values from nothing, read them, or check them. torch skips the key for all others, at no cost.

Both stand for accelerators that a simulated process does not have, and torch takes neither for a tensor's backend. Checked
with torch 2.7.0.
"""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Optional

import torch
from torch import _ops
from torch.utils import _python_dispatch

from composer_memprof.messages import log_error
from composer_memprof.simulated_gpu import in_modes

FOLLOWED, EVERY = 'AutocastIPU', 'AutocastHPU'

_followed = getattr(torch._C.DispatchKey, FOLLOWED)
_BIT: int = torch._C.DispatchKeySet(_followed).raw_repr()
_AFTER = {name: torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, name)) for name in (FOLLOWED, EVERY)}
_set_included = torch._C._dispatch_tls_set_dispatch_key_included
_set_excluded = torch._C._dispatch_tls_set_dispatch_key_excluded
_libraries: list[Any] = []  # what they register lives as long as they do
#: Operators that have a kernel for each call.
_with_kernels: set[Any] = set()
#: Where a tensor's implementation has its set of dispatch keys.
_offset = -1
_in_handler = False


def prepare() -> bool:
    """Find where tensors have their keys; returns whether that is known for this torch."""
    global _offset
    tensor = torch.empty(0)
    keys = torch._C._dispatch_keys(tensor).raw_repr()
    words = (ctypes.c_uint64 * 32).from_address(tensor._cdata)
    places = [number for number, word in enumerate(words) if word == keys]
    if len(places) != 1:
        return False
    _offset = 8 * places[0]
    mark(tensor)
    found = torch._C._dispatch_keys(tensor).has(_followed)
    unmark(tensor)
    return found and torch._C._dispatch_keys(tensor).raw_repr() == keys


def activate() -> None:
    """Follow values in this thread; torch's backward threads take it from the one that calls them."""
    _set_excluded(FOLLOWED, False)
    _set_excluded(EVERY, False)
    _set_included(EVERY, True)
    for name in (FOLLOWED, EVERY):
        skip_in_higher_order(getattr(torch._C.DispatchKey, name))
    for name in ('_push_mode', '_pop_mode'):
        _step_aside(name)
    in_modes.run = _follow_in_mode


def skip_in_higher_order(key: Any) -> None:
    """Let torch's operators that take functions or Triton kernels run as if the key were not there: none has a fallback."""
    _ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(key)
    for operator in _ops._higher_order_ops.values():  # those that were made before, as the one of checkpoints
        operator.fallthrough(key)


def _follow_in_mode(operator: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
    """Run an operator within the handler of the innermost mode: torch has taken the mode off its stack, and both keys out.

    An operator with a kernel of its own has been there before the handler; those that it calls have not.
    """
    if torch._C._len_torch_dispatch_stack():
        return operator(*arguments, **keywords)
    global _in_handler
    keys = (FOLLOWED,) if operator in _with_kernels else (FOLLOWED, EVERY)
    before = [(key, torch._C._dispatch_tls_is_dispatch_key_excluded(key)) for key in keys]
    for key in keys:
        _set_excluded(key, False)
    _in_handler = True
    try:
        return operator(*arguments, **keywords)
    finally:
        _in_handler = False
        for key, was_excluded in before:
            _set_excluded(key, was_excluded)


def is_in_handler() -> bool:
    """Whether the operator on its way was called by the handler of a mode."""
    return _in_handler


def _step_aside(name: str) -> None:
    """While a ``TorchDispatchMode`` is on, torch finds no fallback that is written in Python. Its handler sees values."""
    original = getattr(_python_dispatch, name)

    @functools.wraps(original)
    def change(*arguments: Any, **keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        _set_excluded(FOLLOWED, torch._C._len_torch_dispatch_stack() > 0)
        return result

    setattr(_python_dispatch, name, change)


@contextmanager
def quiet() -> Iterator[None]:
    """Within the block this thread's operators are not seen."""
    was_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(FOLLOWED)
    _set_included(EVERY, False)
    _set_excluded(FOLLOWED, True)
    try:
        yield
    finally:
        _set_excluded(FOLLOWED, was_excluded)
        _set_included(EVERY, True)


def _keys_of(tensor: torch.Tensor) -> ctypes.c_uint64:
    return ctypes.c_uint64.from_address(tensor._cdata + _offset)


def mark(tensor: torch.Tensor) -> None:
    """Let operators on this tensor come to the fallback."""
    _keys_of(tensor).value |= _BIT


def is_marked(tensor: torch.Tensor) -> bool:
    """Whether operators on this tensor come to the fallback."""
    return bool(_keys_of(tensor).value & _BIT)


def unmark(tensor: torch.Tensor) -> None:
    """Let operators on this tensor run as on any other."""
    _keys_of(tensor).value &= ~_BIT


def fallback(function: Callable[..., Any]) -> None:
    """Call ``function(keyset, operator, *arguments, **keywords)`` for each operator on a marked tensor.

    torch finds no fallback written in Python for a call that has a tensor of a subclass as well, such as a ``DTensor``. Its
    own operators, which such calls are of, therefore have the function as a kernel each. Those that make views run as if the
    tensor were not marked: torch copies the key, and ``Parameter(tensor)`` needs a view that Python has not seen.
    """
    library = torch.library.Library('_', 'IMPL')
    library.fallback(function, FOLLOWED, with_keyset=True)
    skipped = torch.library.Library('_', 'IMPL')
    skipped.fallback(torch.library.fallthrough_kernel, EVERY)
    _libraries.extend((library, skipped))
    own = torch.library.Library('aten', 'IMPL')
    views = names_of_views()
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition('::')
        if namespace == 'aten' and name in views:
            own.impl(rest, torch.library.fallthrough_kernel, FOLLOWED)
        elif namespace == 'aten':
            _as_kernel(own, rest, function)
    _libraries.append(own)


def names_of_views() -> set[str]:
    """The operators whose results are views of their arguments."""
    return {_name_of(schema) for schema in torch._C._jit_get_all_schemas() if _makes_a_view(schema)}


def _name_of(schema: Any) -> str:
    return f'{schema.name}.{schema.overload_name}' if schema.overload_name else str(schema.name)


def _makes_a_view(schema: Any) -> bool:
    aliases = [each.alias_info for each in (*schema.arguments, *schema.returns) if each.alias_info is not None]
    return bool(aliases) and not any(each.is_write for each in aliases)


def _as_kernel(library: Any, name: str, function: Callable[..., Any]) -> None:
    def call(keyset: Any, *arguments: Any, **keywords: Any) -> Any:
        packet, _, overload = name.partition('.')
        return function(keyset, getattr(getattr(torch.ops.aten, packet), overload or 'default'), *arguments, **keywords)

    library.impl(name, call, FOLLOWED, with_keyset=True)


def kernel(name: str, function: Callable[..., Any]) -> None:
    """Call ``function(run, *arguments, **keywords)`` for each call of an operator; ``run`` goes on to torch's own.

    An operator that this torch does not have is left out.
    """
    packet, _, overload = name.partition('.')
    operator = getattr(getattr(torch.ops.aten, packet, None), overload or 'default', None)
    if operator is None:
        return
    _with_kernels.add(operator)

    def call(keyset: Any, *arguments: Any, **keywords: Any) -> Any:
        run = _Run(keyset, operator, arguments, keywords)
        try:
            return function(run, *arguments, **keywords)
        except Exception as error:
            if error is run.error:
                raise
            log_error(f'the values of {name} are not known')  # which may not break the script
            return run.result if run.is_done else run()

    library = torch.library.Library('aten', 'IMPL')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # that an operator is replaced
        library.impl(name, call, EVERY, with_keyset=True)
    _libraries.append(library)


def replace_on_device(name: str, function: Callable[..., Any]) -> None:
    """Let the function take the place of an operator on the device; it is not called for the host's tensors."""
    library = torch.library.Library('aten', 'IMPL')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # that an operator is replaced
        library.impl(name, function, 'CUDA')
    _libraries.append(library)


class _Run:
    """torch's own operator, for the function that stands for it."""

    def __init__(self, *call: Any) -> None:
        self._call = call
        self.is_done = False
        self.result: Any = None
        self.error: Optional[Exception] = None

    def __call__(self) -> Any:
        try:
            self.result = go_on(EVERY, *self._call)
        except Exception as error:
            self.error = error
            raise
        self.is_done = True
        return self.result


def go_on(key: str, keyset: Any, operator: Any, arguments: Any, keywords: Any) -> Any:
    """Run the operator as torch would without the key."""
    if any(isinstance(each, (int, float, complex)) for each in arguments):
        arguments = numbers_as_tensors(operator, arguments)
    return operator.redispatch(keyset & _AFTER[key], *arguments, **keywords)


def go_on_unseen(keyset: Any, operator: Any, arguments: Any, keywords: Any) -> Any:
    """Run an operator as torch would without ``FOLLOWED``, and the operators that it calls too.

    They may get a number as a tensor on the device, which torch can't hand over to Python.
    """
    _set_excluded(FOLLOWED, True)
    try:
        return go_on(FOLLOWED, keyset, operator, arguments, keywords)
    finally:
        _set_excluded(FOLLOWED, False)


_takes_tensors: dict[Any, list[bool]] = {}


def numbers_as_tensors(operator: Any, arguments: Any) -> Any:
    """torch hands over a number that stands for a tensor, and does not take it back: it gets one of the same type."""
    takes = _takes_tensors.get(operator)
    if takes is None:
        takes = _takes_tensors[operator] = [str(each.type) == 'Tensor' for each in operator._schema.arguments]
    tensor = next((each for each in arguments if isinstance(each, torch.Tensor)), None)
    return [
        torch.scalar_tensor(each, dtype=_dtype_of(tensor, each), device='cpu')
        if is_tensor and isinstance(each, (int, float, complex))
        else each
        for each, is_tensor in zip(arguments, takes)  # later arguments may have defaults
    ]


def _dtype_of(tensor: Optional[torch.Tensor], number: complex) -> torch.dtype:
    return torch.result_type(number if tensor is None else tensor, number)
