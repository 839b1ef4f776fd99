"""What modules are called where a person reads of them."""

from __future__ import annotations

#: The name of what belongs to no module: the loss, most often.
OUTSIDE = '(outside of modules)'
#: What wrappers put into the names of the modules that they wrap.
_WRAPPERS = frozenset({'_checkpoint_wrapped_module', '_fsdp_wrapped_module', '_orig_mod'})


def plain_name(name: str) -> str:
    """As the model's author wrote it, without what wrappers add."""
    return '.'.join(part for part in name.split('.') if part not in _WRAPPERS)
