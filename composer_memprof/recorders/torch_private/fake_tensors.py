"""Tensors with shapes and devices, but without data."""

from __future__ import annotations

from composer_memprof.recorders.torch_private import private

#: While it is active, operators compute shapes only. ``from_tensor(tensor)`` is ``tensor`` without its data.
FakeTensorMode = private('torch._subclasses.fake_tensor.FakeTensorMode', module=__name__)
