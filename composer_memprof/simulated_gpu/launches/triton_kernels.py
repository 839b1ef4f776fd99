"""Shows each launch of a Triton kernel with its arguments, while a step is timed: those that torch.compile generates, and
a script's own. Checked with torch 2.7.0 and Triton 3.3.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

_GENERATED, _OWN = 'torch._inductor.runtime.triton_heuristics', 'triton.runtime.jit'
#: The names of arguments that torch.compile writes to as well as it reads them, and of sizes that its kernels go through.
_READ_AND_WRITTEN, _SIZE = 'in_out_ptr', 'numel'


@dataclasses.dataclass(frozen=True)
class Launch:
    """A kernel that was launched.

    Attributes:
        name: of the kernel.
        bytes: of its tensors, each gone through once.
        computes_more: whether its bytes do not tell how long it takes: it multiplies matrices, or is a script's own.
    """

    name: str
    bytes: int
    computes_more: bool


def watch(see: Callable[[Launch], None]) -> Callable[[], None]:
    """Call ``see`` after each launch. Returns what ends it."""
    undo = []
    for module, name in ((_GENERATED, 'CachingAutotuner'), (_OWN, 'JITFunction')):
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None:
            undo.append(_see_runs(kind, module == _GENERATED, see))

    def stop() -> None:
        for each in undo:
            each()

    return stop


def _see_runs(kind: Any, is_generated: bool, see: Callable[[Launch], None]) -> Callable[[], None]:
    run = kind.run

    @functools.wraps(run)
    def run_and_see(kernel: Any, *arguments: Any, **keywords: Any) -> Any:
        result = run(kernel, *arguments, **keywords)
        function = getattr(kernel, 'fn', kernel) if is_generated else kernel
        given = {**dict(zip(function.arg_names, arguments)), **keywords}
        more = not is_generated or _has_products(function.src)
        see(Launch(_name_of(kernel), _bytes_of(given), more))
        return result

    kind.run = run_and_see

    def stop() -> None:
        kind.run = run

    return stop


def _name_of(kernel: Any) -> str:
    meta = getattr(kernel, 'inductor_meta', {})
    return str(meta.get('kernel_name') or getattr(getattr(kernel, 'fn', kernel), '__name__', 'triton'))


def _has_products(source: str) -> bool:
    """
    >>> _has_products('acc += tl.dot(a, b)'), _has_products('tl.store(out_ptr0, tmp0)')
    (True, False)
    """
    return 'tl.dot(' in source or 'tl.dot_scaled(' in source


def _bytes_of(arguments: dict[str, Any]) -> int:
    """Of a tensor that has more elements than the kernel goes through, such as an embedding's, as many are read."""
    sizes = [value for name, value in arguments.items() if name.endswith(_SIZE) and isinstance(value, int)]
    most = math.prod(sizes) if sizes else 0
    return sum(
        (2 if name.startswith(_READ_AND_WRITTEN) else 1)
        * (min(each.numel(), most) if most else each.numel())
        * each.element_size()
        for name, each in _tensors(arguments)
    )


def _tensors(arguments: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in arguments.items():
        for each in value if isinstance(value, Sequence) and not isinstance(value, str) else (value,):
            if isinstance(each, torch.Tensor):
                yield name, each
