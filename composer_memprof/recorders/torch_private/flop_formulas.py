"""torch's formulas for floating-point operations, and what taking an operator apart needs."""

from __future__ import annotations

from composer_memprof.recorders.torch_private import private

#: The formula of each operator that has one.
flop_registry = private('torch.utils.flop_counter.flop_registry', module=__name__)
#: ``(input shape, weight shape, output shape, transposed=…)``
conv_flop_count = private('torch.utils.flop_counter.conv_flop_count', module=__name__)
#: ``(operator name, dispatch key)``
has_kernel_for = private('torch._C._dispatch_has_kernel_for_dispatch_key', module=__name__)
#: ``(predicate, nested values)``
tree_any = private('torch.utils._pytree.tree_any', module=__name__)
#: ``(function, nested values)``
tree_map = private('torch.utils._pytree.tree_map', module=__name__)
