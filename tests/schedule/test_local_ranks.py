"""Schedules of local ranks."""

from __future__ import annotations

import pytest

from composer_memprof import HostRSS, TorchProfiler
from composer_memprof.schedule import on_local_ranks, on_ranks, window
from composer_memprof.schedule.parsing import parse_schedule
from tests.conftest import make_trainer
from tests.support.made_up_training import MadeUpRun


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that a launcher gives to rank 5 of two nodes with four ranks each."""
    for name, value in {'RANK': 5, 'WORLD_SIZE': 8, 'LOCAL_RANK': 1, 'LOCAL_WORLD_SIZE': 4, 'NODE_RANK': 1}.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.usefixtures('two_nodes')
def test_local_ranks_are_those_of_each_node() -> None:
    schedule = window('2ba') & on_local_ranks(1)
    assert [rank for rank in range(8) if schedule.may_run_on(rank)] == [1, 5]
    assert [rank for rank in range(8) if (~on_local_ranks(1)).may_run_on(rank)] == [0, 2, 3, 4, 6, 7]
    assert parse_schedule({'active': '2ba', 'local_ranks': [1]}).schedule == schedule
    assert MadeUpRun([8] * 6).recordings(schedule) == [[0, 1]], 'this is local rank 1'
    assert MadeUpRun([8] * 6).recordings(window('2ba') & on_local_ranks(0, 2)) == []


def test_a_process_goes_by_its_own_local_rank_where_nodes_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {'RANK': 5, 'WORLD_SIZE': 6, 'LOCAL_RANK': 0, 'LOCAL_WORLD_SIZE': 1}.items():
        monkeypatch.setenv(name, str(value))
    assert MadeUpRun([8] * 6).recordings(window('2ba') & on_local_ranks(0)) == [[0, 1]]


def test_local_ranks_that_a_node_lacks_are_refused_by_the_run_and_not_by_a_proof() -> None:
    assert window('1ba') & ~on_local_ranks(0), 'as ~on_ranks(0)'
    for schedule in (window('1ba') & on_local_ranks(3), window('1ba') & ~on_local_ranks(3)):
        with pytest.raises(ValueError, match=r'local_ranks=\[3\] are beyond this node'):
            make_trainer(HostRSS(schedule=schedule))
    with pytest.raises(ValueError, match='no batch in common'):
        on_local_ranks(0) & ~on_local_ranks(0)


@pytest.mark.usefixtures('two_nodes')
def test_what_is_proved_of_ranks_holds_for_local_ranks() -> None:
    both = (on_ranks(1) & on_local_ranks(1), ~on_ranks(1) & on_local_ranks(1), on_ranks(6) & on_local_ranks(2))
    assert [[rank for rank in range(8) if schedule.may_run_on(rank)] for schedule in both[::2]] == [[1], [6]]
    with pytest.raises(ValueError, match='no batch in common'):
        on_ranks(6) & on_local_ranks(1)
    with pytest.raises(ValueError, match='no batch in common'):
        window('2ba') & on_local_ranks(0) & on_local_ranks(1)


def test_callbacks_on_different_local_ranks_do_not_clash_and_ranks_that_no_node_has_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match=r'^HostRSS: local_ranks=\[1, 3\] are beyond this node, .* 0 to 0$'):
        make_trainer(HostRSS(schedule={'active': '2ba', 'local_ranks': [0, 1, 3]}))
    monkeypatch.setenv('LOCAL_WORLD_SIZE', '2')
    make_trainer(
        TorchProfiler(schedule={'active': '2ba', 'local_ranks': [0]}),
        TorchProfiler(schedule={'active': '3ba', 'local_ranks': [1]}),
    ).close()
    with pytest.raises(ValueError, match='would both record batch 0'):
        make_trainer(
            TorchProfiler(schedule={'active': '2ba', 'local_ranks': [0, 1]}),
            TorchProfiler(schedule={'active': '3ba', 'local_ranks': [1]}),
        )
