"""A page of a snapshot, open in a browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composer_memprof.analysis.snapshot.model import Snapshot
from composer_memprof.report.html.snapshot.page import write_snapshot_page


@pytest.fixture
def opened(visit: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Opens the page of a snapshot."""

    def open_page(snapshot: Snapshot, title: str = 'a step', width: int = 1400, **settings: Any) -> Any:
        path = tmp_path / 'page.html'
        write_snapshot_page(snapshot, path, title, **settings)
        page = visit(path, width)
        page.wait_for_selector('body[data-drawn]', timeout=15_000)
        return page

    return open_page
