"""Which container gets longer while a process grows, and when it is looked for."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

from composer_memprof.recorders.host.containers import GrowthWatch, growing_container, lengths_of_containers

MIB = 1 << 20


class Holder:
    """Keeps things."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.by_name: dict[int, Any] = {}
        self.newest: collections.deque[Any] = collections.deque(maxlen=100)
        self.numbers: list[int] = []


def test_the_container_with_most_new_bytes_is_found_and_not_the_one_with_most_new_things() -> None:
    holder, before = Holder(), lengths_of_containers()
    assert before is not None
    holder.numbers += range(1000)
    holder.by_name |= {number: {'values': torch.zeros(MIB // 4)} for number in range(16)}
    found = growing_container(before, grown=16 * MIB)
    assert found is not None
    assert found.kept_by == 'Holder.by_name, a dict of 16' and found.more == 16
    assert abs(found.bytes - 16 * MIB) < MIB


def test_a_container_with_a_limit_says_so() -> None:
    holder, before = Holder(), lengths_of_containers()
    assert before is not None
    holder.newest.extend(bytes(MIB // 2) for _ in range(20))
    found = growing_container(before, grown=10 * MIB)
    assert found is not None and found.kept_by == 'Holder.newest, a deque of at most 100'


def test_no_container_is_named_that_explains_little_of_the_growth() -> None:
    holder, before = Holder(), lengths_of_containers()
    assert before is not None
    holder.rows += [bytes(1000) for _ in range(100)]
    assert growing_container(before, grown=64 * MIB) is None


def test_a_long_list_with_a_few_large_things_more_is_found() -> None:
    holder = Holder()
    holder.rows = [bytes(MIB) for _ in range(9)]
    before = lengths_of_containers()
    assert before is not None
    holder.rows += [bytes(16 * MIB) for _ in range(3)]
    found = growing_container(before, grown=48 * MIB)
    assert found is not None and found.kept_by == 'Holder.rows, a list of 12' and found.more == 3


def test_a_list_that_each_batch_makes_anew_is_found_by_all_that_it_has() -> None:
    holder = Holder()
    holder.rows = [bytes(MIB) for _ in range(60)]
    before = lengths_of_containers()
    assert before is not None
    holder.rows = [*holder.rows, *(bytes(MIB) for _ in range(20))]
    found = growing_container(before, grown=20 * MIB, grown_in_all=80 * MIB)
    assert found is not None and found.kept_by == 'Holder.rows, a list of 80'


def test_a_process_that_does_not_clearly_grow_is_not_looked_at() -> None:
    asked: list[bool] = []
    watch = GrowthWatch(lambda: bool(asked.append(True)))
    assert [watch.search(size * MIB) for size in (100, 104, 100, 104, 120, 140)] == [None] * 6
    assert len(asked) == 2 and watch.last_search(200 * MIB) is None


def test_a_process_that_grows_on_is_searched_ever_more_rarely() -> None:
    watch = GrowthWatch(lambda: True)
    due = [size for size in range(100, 600) if watch.search(size * MIB) is not None]
    assert due == [124, 188, 508]
    assert watch.last_search(600 * MIB) is None and watch.last_search(720 * MIB) is not None


def test_a_recording_that_ends_early_has_one_search() -> None:
    watch = GrowthWatch(lambda: True)
    assert watch.search(100 * MIB) is watch.search(108 * MIB) is watch.search(117 * MIB) is None
    assert watch.last_search(112 * MIB) is None
    assert watch.last_search(117 * MIB) is not None


def test_references_to_what_was_there_before_are_no_growth() -> None:
    large = [torch.zeros(MIB) for _ in range(20)]
    holder, before = Holder(), lengths_of_containers()
    assert before is not None
    holder.rows = [large[0] for _ in range(100)]
    holder.by_name = dict(enumerate(large))
    assert growing_container(before, grown=20 * MIB) is None


def test_of_a_short_list_of_large_tensors_the_growth_is_found_if_short_ones_count() -> None:
    class Holder:
        seen: list[torch.Tensor] = []

    Holder.seen += [torch.ones(MIB) for _ in range(3)]
    before = lengths_of_containers(fewest=3)
    Holder.seen += [torch.ones(MIB) for _ in range(4)]
    assert growing_container(before, grown=16 * MIB) is None
    found = growing_container(before, grown=16 * MIB, fewest=3)
    assert found is not None and found.more == 4
    assert found.bytes == pytest.approx(16 * MIB, rel=0.01)
    assert growing_container(before, grown=16 * MIB, fewest=3, device='cuda') is None
