"""Whether a model is compiled: torch.compile then allocates unseen, and would compile again if hooks were set on it."""

from __future__ import annotations

import torch

from composer_memprof.recorders.torch_private import compilation

#: The modules of ``torch_private`` that this needs.
NEEDS = (compilation,)


def is_compiled(model: torch.nn.Module) -> bool:
    """True if ``torch.compile`` was used on any part of the model: as a wrapper, in place, or on its ``forward``.

    Composer compiles ``forward``.
    """
    return any(
        compilation.is_compiled_wrapper(module)
        or compilation.has_compiled_call(module)
        or (compilation.is_compiled_function(module.forward) and not compilation.is_disabled_function(module.forward))
        for module in model.modules()
    )


def may_compile() -> bool:
    """True if this process has used ``torch.compile`` on anything."""
    return bool(compilation.backends_in_use())
