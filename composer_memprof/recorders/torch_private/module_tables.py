"""The attributes in which a module keeps other modules, and tensors, by name."""

from __future__ import annotations

from torch import nn

from composer_memprof.recorders.torch_private import private_attribute

TABLES = ('_modules', '_parameters', '_buffers')
for _attribute in TABLES:
    private_attribute(f'torch.nn.Module.{_attribute}', module=__name__, owner=nn.Module)
