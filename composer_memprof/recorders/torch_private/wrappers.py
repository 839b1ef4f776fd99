"""The attributes under which torch's wrappers hold the module that they wrap."""

from __future__ import annotations

#: Of activation checkpoints, FSDP1 and ``torch.compile``, in torch 2.6 to 2.15. They are parts of modules' dotted names.
WRAPPED_MODULE_NAMES = frozenset({'_checkpoint_wrapped_module', '_fsdp_wrapped_module', '_orig_mod'})
