"""What ``simulate`` prints: all of its text, and its JSON."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from rich.console import Group, RenderableType

from composer_memprof.schemas import versioned
from composer_memprof.simulation.output.text import next_command, simulation_text, versus_text
from composer_memprof.simulation.result import SimulationResult
from composer_memprof.simulation.search import Search
from composer_memprof.simulation.versus import Versus


def output_text(result: SimulationResult, versus: Optional[Versus] = None) -> RenderableType:
    """The verdict, and the comparison with a recording if there is one."""
    return Group(simulation_text(result), *([] if versus is None else [versus_text(versus)]))


def next_line(result: SimulationResult) -> str:
    """What to type to see more; empty where nothing was recorded. No terminal's width cuts it, so that it can be copied."""
    return f'Next, try: {next_command(result)}' if next_command(result) else ''


def simulation_dict(
    result: SimulationResult, compares: bool = False, versus: Optional[Versus] = None
) -> dict[str, Any]:
    """As ``--json`` prints it.

    Args:
        compares: a comparison was asked for; without a recording of the simulated run there is none.
    """
    more = {'versus': versus and dataclasses.asdict(versus)} if compares else {}
    return versioned('simulate', {**result.as_dict(), **more})


def search_dict(search: Search) -> dict[str, Any]:
    """As ``--json`` prints it with ``--largest``."""
    return versioned('simulate', {**dataclasses.asdict(search), 'limit': search.limit})
