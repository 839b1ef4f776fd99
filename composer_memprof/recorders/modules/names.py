"""Names of modules in reports."""

from __future__ import annotations

from composer_memprof.recorders.torch_private.wrappers import WRAPPED_MODULE_NAMES

#: The name for what belongs to no module, most often the loss.
OUTSIDE = '(outside of modules)'


def plain_name(name: str) -> str:
    """A module's dotted name without the parts that wrappers add."""
    return '.'.join(part for part in name.split('.') if part not in WRAPPED_MODULE_NAMES)
