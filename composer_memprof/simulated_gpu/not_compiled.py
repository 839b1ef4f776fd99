"""What ``torch.compile`` leaves alone: frames of this package would be compiled when they run within those of a compiled model.

Imports nothing of torch. Checked with torch 2.7.0.
"""

from __future__ import annotations

import wrapt


def leave_alone(*packages: str) -> None:
    """Let ``torch.compile`` compile no frame of these packages and modules."""
    wrapt.when_imported('torch._dynamo.trace_rules')(lambda rules: list(map(rules.add, packages)))
