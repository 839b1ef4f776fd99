"""Shows each operator of torch that may launch kernels, while a step is timed.

A ``TorchDispatchMode`` would take twice the time: it sees views and allocations as well. Here such operators have a kernel
for a dispatch key that no CUDA tensor uses. It comes after autocast, so that operators have the data types in which they
run, and before autograd. The key is included from the start, because ``torch.compile`` compiles anew when it changes; torch
skips it while no operator has a kernel for it. Checked with torch 2.7.0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Optional

import torch

from composer_memprof.simulated_gpu.values import keys

#: Is called with the arguments, the keywords and the result of an operator's call.
See = Callable[[tuple[Any, ...], dict[str, Any], Any], None]

_NAME = 'AutocastXLA'
_key = torch._C._dispatch_key_parse(_NAME)
_after = torch._C._dispatch_keyset_full_after(_key)
_alone = torch._C.DispatchKeySet(_key)
_python = torch._C._dispatch_key_parse('Python')
_excluded = torch._C._ExcludeDispatchKeyGuard
_transforms = torch._C._dispatch_key_parse('FuncTorchDynamicLayerFrontMode')
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_KERNELS = ('CUDA', 'CompositeExplicitAutograd', 'CompositeExplicitAutogradNonFunctional')
#: The operators that launch nothing themselves, by the beginnings of their names: allocations, and what changes a tensor
#: but no element of it.
_WITHOUT_LAUNCHES = (
    *('empty', 'new_empty', '_resize', 'resize', 'set_', 'detach', 'record_stream', '_unsafe_view', '_reshape_alias'),
    *('_local_scalar_dense', 'is_', 'sym_', '_nested_', 'q_', 'quantize', 'dequantize', 'fake_quantize', 'mkldnn'),
)
_libraries: list[Any] = []  # what they register lives as long as they do
#: By class of a tensor with tensors inside: the name of the first of these, None of all other tensors.
_inner_names: dict[type, Optional[str]] = {torch.Tensor: None, torch.nn.Parameter: None}


_NUMBERS = (int, float, complex)


def prepare() -> None:
    """Include the key in this thread; torch's backward threads take it from the thread that calls them."""
    skipped = torch.library.Library('_', 'IMPL')
    skipped.fallback(torch.library.fallthrough_kernel, _NAME)
    _libraries.append(skipped)
    keys.skip_in_higher_order(_key)
    torch._C._dispatch_tls_set_dispatch_key_excluded(_NAME, False)
    torch._C._dispatch_tls_set_dispatch_key_included(_NAME, True)


def watch(see_of: Callable[[Any], See]) -> Callable[[], None]:
    """Call ``see(arguments, keywords, result)`` after each operator that may have launched kernels.

    Operators that a seen one calls are not seen. Tensors of a subclass, such as a ``DTensor``, are given as the plain
    tensors inside them.

    Args:
        see_of (Callable): is called with an operator, when it is called first, and returns what is to be called for it.

    Returns:
        Callable: ends it.
    """
    libraries: dict[str, Any] = {}
    for name in _names():
        namespace, _, rest = name.partition('::')
        if namespace not in libraries:
            libraries[namespace] = torch._C._dispatch_library('IMPL', namespace, '', __file__, 1)
        libraries[namespace].impl(rest, _NAME, _Kernel(name, see_of), True)

    compiled = _see_compiled_functions()

    def stop() -> None:
        compiled()
        for library in libraries.values():
            library.reset()

    return stop


def _see_compiled_functions() -> Callable[[], None]:
    """A compiled function turns autocast off while it runs, and with it the keys of all kinds of autocast."""
    original = torch._C._DisableAutocast

    @contextlib.contextmanager
    def without_autocast() -> Iterator[None]:
        with original():  # which leaves all keys as they were before
            torch._C._dispatch_tls_set_dispatch_key_excluded(_NAME, False)
            yield

    torch._C._DisableAutocast = without_autocast  # type: ignore[assignment, misc]

    def undo() -> None:
        torch._C._DisableAutocast = original  # type: ignore[misc]

    return undo


def _names() -> Iterator[str]:
    views = keys.names_of_views()
    for name in torch._C._dispatch_get_all_op_names():
        plain = name.partition('::')[2]
        if (
            name not in views
            and not plain.startswith(_WITHOUT_LAUNCHES)
            and any(_has_kernel(name, kind) for kind in (_KERNELS[:1] if 'out' in plain else _KERNELS))
        ):
            yield name


class _Kernel:
    """Of one operator. The operator is looked up at its first call, since a step calls few of them all.

    Args:
        name: of the operator.
        see_of: see :func:`watch`.
    """

    __slots__ = ('_name', '_operator', '_places', '_run', '_see', '_see_of')

    def __init__(self, name: str, see_of: Callable[[Any], See]) -> None:
        self._name = name
        self._see_of = see_of
        self._run: Optional[Callable[..., Any]] = None

    def __call__(self, keyset: Any, *arguments: Any, **keywords: Any) -> Any:
        run = self._run or self._first()
        for place in self._places:
            if place < len(arguments) and isinstance(arguments[place], _NUMBERS):
                arguments = tuple(keys.numbers_as_tensors(self._operator, arguments))
        if keyset.has(_transforms):  # a transform calls the operator again, on other tensors
            return run(keyset & _after, *arguments, **keywords)
        with _excluded(_alone):  # the operators that it calls are a part of it
            result = run(keyset & _after, *arguments, **keywords)
        if keyset.has(_python):
            self._see(_plain(arguments), _plain(keywords), _plain(result))
        else:
            self._see(arguments, keywords, result)
        return result

    def _first(self) -> Callable[..., Any]:
        namespace, _, rest = self._name.partition('::')
        packet, _, overload = rest.partition('.')
        self._operator = getattr(getattr(getattr(torch.ops, namespace), packet), overload or 'default')
        arguments = self._operator._schema.arguments
        self._places = [place for place, each in enumerate(arguments) if str(each.type) == 'Tensor']
        self._see = self._see_of(self._operator)
        self._run = self._operator._handle.redispatch_boxed
        return self._run


def _plain(value: Any) -> Any:
    """The value with the first inner tensor of each tensor of a subclass in its place."""
    if isinstance(value, torch.Tensor):
        name = _inner_name(value)
        return value if name is None else _plain(getattr(value, name))
    if isinstance(value, (list, tuple)):
        return tuple(_plain(each) for each in value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value


def _inner_name(tensor: torch.Tensor) -> Optional[str]:
    kind = type(tensor)
    if kind not in _inner_names:
        names: Any = tensor.__tensor_flatten__()[0] if hasattr(kind, '__tensor_flatten__') else ()  # type: ignore[attr-defined]
        _inner_names[kind] = names[0] if names else None
    return _inner_names[kind]
