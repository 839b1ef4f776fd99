"""On a Python that torch's profiler cannot follow: no stacks, and one line that says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from composer_memprof import MemorySnapshot, load_snapshot
from composer_memprof.callbacks.framework import importing
from composer_memprof.messages import MemprofWarning
from composer_memprof.recorders import kineto
from tests.conftest import train


def test_a_newer_python_is_warned_of_and_no_session_follows_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    importing.warn_of_python()  # this one is not newer: no warning, which would be an error here
    asked: list[bool] = []
    profile = torch.profiler.profile

    def noted(**arguments: object) -> torch.profiler.profile:
        asked.append(bool(arguments.get('with_stack')))
        return profile(**arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.profiler, 'profile', noted)
    for module in (kineto, importing):
        monkeypatch.setattr(module, 'stacks_are_safe', lambda: False)
    with pytest.warns(MemprofWarning, match=r'Python 3\.\d+ is newer than .* 3\.10 to 3\.12\. .* no stacks') as told:
        importing.warn_of_python()
    assert len(told) == 1
    train(MemorySnapshot(schedule={'skip': '2ba', 'active': '2ba'}), batches=6)
    assert asked and not any(asked)
    (snapshot,) = Path('test-run/torch_traces').glob('*.pickle')
    assert len(load_snapshot(snapshot).devices[0].size)
