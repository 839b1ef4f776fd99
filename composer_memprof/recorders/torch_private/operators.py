"""torch's operators: their schemas and overloads, and operators of higher order."""

from __future__ import annotations

from typing import Any

import torch

from composer_memprof.recorders.torch_private import private, private_attribute

#: One overload of an operator: ``torch.ops.aten.mm.default``.
OpOverload = private('torch._ops.OpOverload', module=__name__)
#: The attribute of an overload that holds all overloads of its operator: ``torch.ops.aten.mm``.
OVERLOAD_PACKET = '_overloadpacket'
_SCHEMA = '_schema'
for _attribute in (OVERLOAD_PACKET, _SCHEMA):
    private_attribute(
        f'torch._ops.OpOverload.{_attribute}',
        module=__name__,
        owner=lambda: torch.ops.aten.mm.default,
    )

_higher_order = private('torch._ops._higher_order_ops', module=__name__)
#: The attribute of an operator that holds its rule for each class of dispatch modes.
RULES_BY_MODE = 'python_key_table'
private_attribute(
    f'torch._ops.HigherOrderOperator.{RULES_BY_MODE}',
    module=__name__,
    owner=lambda: next(iter(_higher_order.values())),
)


def schema_name(operation: Any) -> str:
    """``'aten::mm'``; ``''`` for an operator without a schema, one of higher order."""
    schema = getattr(operation, _SCHEMA, None)
    return '' if schema is None else schema.name


def higher_order_operators() -> list[Any]:
    """Operators that take functions, as flex attention does, registered so far."""
    return list(_higher_order.values())
