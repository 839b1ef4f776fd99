"""Whether a model is compiled: hooks on it would then have it compiled anew, and what it allocates is not seen."""

from __future__ import annotations

import torch
from torch._dynamo import OptimizedModule


def is_compiled(model: torch.nn.Module) -> bool:
    """Whether ``torch.compile`` has been used on any of it, in whichever of its ways; Composer's is on ``forward``.

    Private in torch; read on 2.7.
    """
    return any(
        isinstance(module, OptimizedModule)
        or getattr(module, '_compiled_call_impl', None) is not None
        or (
            hasattr(module.forward, '_torchdynamo_orig_callable')
            and not getattr(module.forward, '_torchdynamo_disable', False)
        )
        for module in model.modules()
    )


def may_compile() -> bool:
    """Whether this process has used ``torch.compile`` on anything, a function, say. Private in torch; read on 2.7."""
    return any(backend is not None for backend in torch._dynamo.eval_frame.cached_backends.values())
