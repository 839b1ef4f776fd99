"""Composer without Transformers, which is installed for the tests of its own adapter.

Composer imports torchmetrics, which imports Transformers where it is installed, for metrics of text that no test uses. This is
a sixth of the time that an import of Composer takes. The tests' processes leave it out, as where it is not installed; processes
that import Composer as a user's do have it.
"""

from __future__ import annotations

import importlib.util


def leave_transformers_to_those_who_import_it() -> None:
    """Let torchmetrics find no Transformers, if it is not imported yet."""
    if not importlib.util.find_spec('lightning_utilities'):
        return
    from lightning_utilities.core.imports import RequirementCache

    is_met = RequirementCache.__bool__

    def is_met_without(requirement: RequirementCache) -> bool:
        return not (requirement.requirement or '').startswith('transformers') and is_met(requirement)

    RequirementCache.__bool__ = is_met_without
