"""torch.compile: what is compiled, and whether anything may be."""

from __future__ import annotations

from typing import Any

from composer_memprof.recorders.torch_private import private, private_attribute

#: The class of what ``torch.compile(module)`` returns.
CompiledWrapper = private('torch._dynamo.OptimizedModule', module=__name__)
_compiled_call = private_attribute('torch.nn.Module._compiled_call_impl', module=__name__)
# torch replaces global variables of this module, so they are read from it each time.
_eval_frame = private('torch._dynamo.eval_frame', module=__name__)
private('torch._dynamo.eval_frame._stance.stance', module=__name__)
private('torch._dynamo.eval_frame.cached_backends', module=__name__)
#: What torch.compile has compiled, the newest 64 functions.
compilations = private('torch._dynamo.utils.get_compilation_metrics', module=__name__)
#: ``(function)``: call it before each compilation, and after it; newer versions of torch pass an argument.
on_compile_start = private('torch._dynamo.callback.on_compile_start', module=__name__)
on_compile_end = private('torch._dynamo.callback.on_compile_end', module=__name__)


def is_compiled_wrapper(module: Any) -> bool:
    """True for what ``torch.compile(module)`` returns."""
    return isinstance(module, CompiledWrapper)


def has_compiled_call(module: Any) -> bool:
    """True after ``module.compile()``."""
    return _compiled_call(module) is not None


def forget_compiled_call(module: Any) -> None:
    """Undo ``module.compile()``."""
    module._compiled_call_impl = None


def is_compiled_function(function: Any) -> bool:
    """True for what ``torch.compile(function)`` or ``torch.compiler.disable(function)`` returns."""
    return hasattr(function, '_torchdynamo_orig_callable')


def uncompiled(function: Any) -> Any:
    """What was passed to ``torch.compile`` to make ``function``."""
    return function._torchdynamo_orig_callable


def is_disabled_function(function: Any) -> bool:
    """True for what ``torch.compiler.disable(function)`` returns."""
    return bool(getattr(function, '_torchdynamo_disable', False))


def stance() -> str:
    """The stance that ``torch.compiler.set_stance`` has set, as ``'default'``."""
    return _eval_frame._stance.stance


def backends_in_use() -> list[Any]:
    """The backends that this process has compiled with."""
    return [backend for backend in _eval_frame.cached_backends.values() if backend is not None]
