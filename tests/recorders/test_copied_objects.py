"""What DataLoader workers copy of the Python objects of a data set."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from composer_memprof.garbage import no_collection
from composer_memprof.recorders.host.copied import CopiedPages, PythonObjects, objects_of

_FLOATS = 1000


class Rows(Dataset):
    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


def _numbers(rows: int) -> list[list[float]]:
    return [[0.5 + number + row for number in range(_FLOATS)] for row in range(rows)]


def test_the_objects_of_a_list_are_measured() -> None:
    found = objects_of(Rows(_numbers(500)))
    assert found.name == 'Rows.rows, a list of 500'
    assert found.bytes == pytest.approx(500 * (24 * _FLOATS + 4096), rel=0.1)


def test_a_data_set_within_others_is_found() -> None:
    rows = Rows(_numbers(100))
    for outer in (Subset(rows, [1, 2]), ConcatDataset([Rows(torch.zeros(2)), rows])):
        found = objects_of(outer)
        assert found.name == 'Rows.rows, a list of 100'
        assert found.bytes == pytest.approx(100 * (24 * _FLOATS + 4096), rel=0.1)


def test_arrays_tensors_and_long_bytes_are_no_objects_that_are_copied() -> None:
    assert objects_of(Rows(np.zeros(10_000_000))) == PythonObjects()
    assert objects_of(Rows(torch.zeros(10_000_000))) == PythonObjects()
    for long in (np.zeros(100_000), bytes(800_000)):
        assert objects_of(Rows([long.copy() if isinstance(long, np.ndarray) else bytes(800_000)] * 50)).bytes < 10_000
    assert objects_of(Rows([np.zeros(100_000) for _ in range(50)])).bytes < 50 * 5000


def test_an_array_of_objects_and_a_dict_are_measured() -> None:
    texts = {number: f'text {number}' for number in range(1000)}
    assert objects_of(Rows(texts)).name == 'Rows.rows, a dict of 1000'
    assert objects_of(Rows(np.array(list(texts.values()), dtype=object))).name == 'Rows.rows, an array of 1000 objects'


def test_what_has_no_attributes_has_no_objects() -> None:
    for dataset in (None, 3, [[1.0]], range(5)):
        assert objects_of(dataset).name == ''


@pytest.mark.skipif(sys.platform != 'linux', reason='only Linux tells what is private cheaply')
def test_a_fork_that_reads_copies_and_one_that_allocates_does_not() -> None:
    rows = _numbers(1600)
    with no_collection():  # pages that this process writes to are the child's alone from then on
        sizes = {name: _copied_by_a_fork(name, rows) for name in ('reads', 'allocates')}
    assert sizes['reads'] > 30 << 20 > 2 * sizes['allocates']


def _copied_by_a_fork(name: str, rows: list[list[float]]) -> int:
    ready, told = os.pipe()
    go, tell = os.pipe()
    pid = os.fork()
    if not pid:  # pragma: no cover
        os.write(told, b'x')
        os.read(go, 1)
        kept = [sum(row) for row in rows] if name == 'reads' else bytearray(os.urandom(1)) * (64 << 20)
        os.write(told, b'x')
        time.sleep(60 if kept else 0)
        os._exit(0)
    os.read(ready, 1)
    pages = CopiedPages()
    pages.read([pid])
    os.write(tell, b'x')
    os.read(ready, 1)
    pages.read([pid], is_last=True)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    for each in (ready, told, go, tell):
        os.close(each)
    found = pages.found(PythonObjects('Rows.rows', 1))
    assert found is not None and found.workers == 1
    return found.copied
