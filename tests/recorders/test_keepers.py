"""What keeps tensors alive, in words that a user knows."""

from __future__ import annotations

import collections
import functools
import gc
import math
import queue
from collections import Counter
from collections.abc import Callable
from typing import Any, Optional

import pytest
import torch
from torch import nn

from composer_memprof.recorders.allocations import keepers
from composer_memprof.recorders.allocations.beside_model import blocks_beside_model, kept_beside_model
from composer_memprof.recorders.allocations.keepers import keepers_of


class Owner:
    def __init__(self, value: Any = None) -> None:
        self.value = value


class Slotted:
    __slots__ = ('value',)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _keeper(tensor: Callable[[], torch.Tensor]) -> Optional[str]:
    """Of a tensor that no local variable keeps, not even one that pytest adds to an assertion."""
    address = _address(tensor())
    return keepers_of([address]).get(address)


def test_attributes_of_any_kind_are_named() -> None:
    owner, slotted = Owner({'loss': [torch.ones(2), torch.ones(2)]}), Slotted()
    slotted.value = torch.ones(3)
    bounded = Owner(collections.deque([torch.ones(4)], maxlen=7))
    assert _keeper(lambda: owner.value['loss'][0]) == 'Owner.value, a list of 2'
    assert _keeper(lambda: slotted.value) == 'Slotted.value'
    assert _keeper(lambda: bounded.value[0]) == 'Owner.value, a deque of at most 7'


def _function_of_a_user() -> Any:
    """With globals of its own: those of this module may be left out of garbage collections, and so of searches."""
    variables: dict[str, Any] = {'__name__': 'of_a_user'}
    exec('kept = []\ndef keep(value): kept.append(value)', variables)
    return variables['keep']


def test_globals_closures_and_graphs_are_named() -> None:
    keep = _function_of_a_user()
    keep(torch.ones(5))
    assert _keeper(lambda: keep.__globals__['kept'][0]) == 'the global variable of_a_user.kept, a list of 1'

    def closes() -> Any:
        inner = torch.ones(6)
        return lambda: inner

    function = closes()
    assert str(_keeper(function)).startswith('the closure of')
    owner = Owner(torch.ones(7, requires_grad=True) * 2)
    assert _keeper(lambda: owner.value) == 'Owner.value, with its graph'


def _sums(owner: Owner, weight: torch.Tensor) -> list[int]:
    """Let the owner keep the graphs of three passes; where each pass has saved what it was given."""
    addresses = []
    for _ in range(3):
        given = torch.rand(8)
        addresses.append(_address(given))
        owner.value = owner.value + (weight * given).sum()
    return addresses


def test_what_a_graph_has_saved_is_kept_by_the_tensor_with_the_graph() -> None:
    weight, owner = torch.ones(8, requires_grad=True), Owner(torch.zeros(()))
    addresses = _sums(owner, weight)
    assert keepers_of(addresses[:-1], {_address(weight)}) == dict.fromkeys(
        addresses[:-1], 'Owner.value, with its graph'
    )


def test_of_several_kept_graphs_the_one_that_leads_to_the_model_is_named() -> None:
    other, weight = torch.ones(8, requires_grad=True), torch.ones(8, requires_grad=True)
    larger, owner = Slotted(), Owner(torch.zeros(()))
    larger.value = sum((other * torch.rand(8)).sum() for _ in range(9))
    address = _sums(owner, weight)[-1]
    assert set(keepers_of([address], {_address(weight)}).values()) == {'Owner.value, with its graph'}
    assert set(keepers_of([address], {_address(other)}).values()) == {'Slotted.value, with its graph'}


def test_the_graph_of_the_batch_on_its_way_hides_no_kept_graphs_of_another_model() -> None:
    other, weight = torch.ones(8, requires_grad=True), torch.ones(8, requires_grad=True)
    kept, outputs = Slotted(), Owner((weight * torch.rand(8)).sum())
    kept.value = sum((other * torch.rand(8)).sum() for _ in range(3))
    found = keepers_of([_address(torch.rand(8))], {_address(weight)})
    assert set(found.values()) == {'Slotted.value, with its graph'} and outputs.value.requires_grad


def test_the_search_does_not_run_what_a_user_hooked_to_saved_tensors() -> None:
    """As the forward pass of a checkpoint is."""
    weight, owner, unpacked = torch.ones(8, requires_grad=True), Owner(torch.zeros(())), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpacked.append):
        addresses = _sums(owner, weight)
    assert keepers_of(addresses[:-1], {_address(weight)}) == dict.fromkeys(
        addresses[:-1], 'Owner.value, with its graph'
    )
    assert not unpacked


def _cached(maxsize: Optional[int]) -> Owner:
    @functools.lru_cache(maxsize=maxsize)
    def table(rows: int) -> torch.Tensor:
        return torch.ones(rows)

    return Owner(table)


@pytest.mark.parametrize(('maxsize', 'entries'), [(None, 'a cache of 1'), (50, 'a cache of at most 50')])
def test_the_cache_of_a_function_is_named_with_its_limit(maxsize: Optional[int], entries: str) -> None:
    owner = _cached(maxsize)
    assert _keeper(lambda: owner.value(9)) == f'Owner.value, {entries}'


class Replay(Owner):
    def __init__(self, value: Any, capacity: int) -> None:
        super().__init__(value)
        self.capacity = capacity


@pytest.mark.parametrize(
    ('capacity', 'words'), [(20, 'Replay.value, a list of at most 20'), (2, 'Replay.value, a list of 3')]
)
def test_a_container_that_fills_up_to_a_limit_is_said_to_have_it(capacity: int, words: str) -> None:
    kept = Replay([torch.ones(10) for _ in range(3)], capacity)
    assert _keeper(lambda: kept.value[0]) == words


@pytest.mark.parametrize(('maxsize', 'entries'), [(0, '1'), (20, 'at most 20')])
def test_the_owner_of_a_queue_is_named(maxsize: int, entries: str) -> None:
    owner = Owner(queue.Queue(maxsize))
    owner.value.put(torch.ones(11))
    assert _keeper(lambda: owner.value.queue[0]) == f'Owner.value.queue, a deque of {entries}'


def test_the_objects_of_a_large_process_cost_a_search_a_visit_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many objects there are: a visit of all for each tensor and each level above it."""
    visits: Counter[str] = Counter()
    for name in ('get_objects', 'get_referrers'):
        monkeypatch.setattr(gc, name, _counted(getattr(gc, name), visits))
    monkeypatch.setattr(keepers, '_SECONDS', math.inf)
    table = [{'row': row} for row in range(100_000)]
    owner = Owner([torch.ones(13) for _ in range(6)])
    found = keepers_of([_address(each) for each in owner.value])
    assert (len(table), len(found), set(found.values())) == (100_000, 6, {'Owner.value, a list of 6'})
    assert visits['get_referrers'] <= 6 * 5  # the list, the dict, the object, the variable, and what it is in
    assert visits['get_objects'] <= 6 + 2


def _counted(function: Callable[..., Any], calls: Counter[str]) -> Callable[..., Any]:
    def counting(*arguments: Any) -> Any:
        calls[function.__name__] += 1
        return function(*arguments)

    return counting


def test_what_an_exception_keeps_is_found_through_its_traceback() -> None:
    def fails() -> None:
        inner = torch.ones(8)
        raise ValueError(inner.sum())

    owner, addresses = Owner([]), []
    try:
        fails()
    except ValueError as error:
        assert error.__traceback__ is not None and error.__traceback__.tb_next is not None
        addresses.append(_address(error.__traceback__.tb_next.tb_frame.f_locals['inner']))
        owner.value.append(error)
    assert keepers_of(addresses) == {addresses[0]: 'Owner.value, a list of 1'}


def test_a_model_beside_the_trained_one_is_one_thing_and_a_list_another() -> None:
    student = nn.Linear(4, 4)
    teacher = Owner(nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)))
    table = Owner([torch.ones(100) for _ in range(3)])
    blocks = {
        _address(each): each.nbytes for each in [*teacher.value.parameters(), *teacher.value.buffers(), *table.value]
    }
    known = {_address(each) for each in student.parameters()}
    rows = dict(kept_beside_model(blocks, known))
    assert rows['Owner.value'] == sum(each.nbytes for each in teacher.value.state_dict().values())
    assert rows['Owner.value, a list of 3'] == 1200


def test_a_frozen_part_inside_of_the_trained_model_does_not_count_the_model() -> None:
    owner = Owner(nn.Sequential(nn.Linear(4, 4), nn.Linear(64, 64)))
    frozen = {_address(each): each.nbytes for each in owner.value[1].parameters()}
    known = {_address(each) for each in owner.value[0].parameters()}
    assert kept_beside_model(frozen, known) == [('Owner.value.1', sum(frozen.values()))]


@pytest.mark.parametrize(('standing', 'found'), [(90, {64: 90}), (1, {})])
def test_only_blocks_from_before_that_are_no_part_of_the_model_count(standing: int, found: dict[int, int]) -> None:
    blocks = [
        {'size': 64, 'state': 'active_allocated'},
        {'size': standing, 'state': 'active_allocated'},
        {'size': 20, 'state': 'inactive'},
        {'size': 50, 'state': 'active_allocated', 'address': 1000},
    ]
    trace = [{'action': 'alloc', 'addr': 1000, 'size': 50}]
    snapshot = {'segments': [{'address': 0, 'blocks': blocks}], 'device_traces': [trace]}
    assert blocks_beside_model(snapshot, known={0}) == found
