"""How a handler of a dispatch mode runs the operator that it was called for; values are followed there too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _plainly(operator: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
    return operator(*arguments, **keywords)


#: ``(operator, arguments, keywords)``: runs the operator. A process that follows values replaces it.
run: Callable[[Callable[..., Any], Any, Any], Any] = _plainly
