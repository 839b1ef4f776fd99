"""The package ``kernels``, which loads kernels from the Hugging Face hub: those that we have a stand-in for."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

_FLASH_ATTENTION_3 = 'composer_memprof.simulated_gpu.stand_ins.flash_attention_3.hub'
#: Repositories of the hub, and the module that stands for what is loaded from them.
_KNOWN = {
    'kernels-community/flash-attn3': _FLASH_ATTENTION_3,
    'varunneal/flash-attention-3': _FLASH_ATTENTION_3,
}


def has_kernel(repo_id: str, *about: Any, **named: Any) -> bool:
    """Whether there is a stand-in for this repository. Revisions and versions make no difference."""
    return repo_id in _KNOWN


def get_kernel(repo_id: str, *about: Any, **named: Any) -> ModuleType:
    """The stand-in for this repository's kernel.

    Raises:
        FileNotFoundError: there is none.
    """
    if not has_kernel(repo_id):
        raise FileNotFoundError(
            f'kernels is not installed, and its stand-in does not know {repo_id}, but {", ".join(sorted(_KNOWN))}'
        )
    return importlib.import_module(_KNOWN[repo_id])
