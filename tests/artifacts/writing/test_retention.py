"""Which windows are kept, and when an older one is removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer_memprof.artifacts.writing.deadlines import Deadline
from tests.conftest import entries
from tests.support.stores import FOLDER, MemoryDestination, make_store, stamp, text

# -- retention ----------------------------------------------------------------------------------------------------


def test_the_newest_windows_are_kept_each_with_all_its_files() -> None:
    removed: list[list[Path]] = []
    store = make_store(keep=2, on_removed=removed.append)
    for batch in range(5):
        store.save([text(), text('x', 'thing.part', '.more')], stamp(batch))
    store.close(20)
    left = [entry.path for entry in entries(FOLDER) if entry.status == 'saved']
    assert left == ['rank0.3.txt', 'rank0.3.more', 'rank0.4.txt', 'rank0.4.more']
    assert sorted(path.name for path in FOLDER.iterdir() if path.suffix != '.jsonl') == sorted(left)
    assert [paths[0].name for paths in removed] == ['rank0.0.txt', 'rank0.1.txt', 'rank0.2.txt']


@pytest.mark.parametrize('compress', [False, True])
def test_files_that_complete_a_growing_file_have_its_number_and_are_kept_with_it(compress: bool) -> None:
    FOLDER.mkdir(parents=True)
    for name in ('rank0.3.txt', 'rank0.3.txt.gz'):
        (FOLDER / name).write_text('of a run that was killed')
    store = make_store(keep=2)
    for batch in range(1, 4):
        growing = store.grow('thing', '.txt', stamp(batch), compress=compress)
        growing.close(text('x', 'thing.part', '.more'))
    store.close(20)
    left = [entry.path for entry in entries(FOLDER) if entry.status == 'saved']
    gz = '.gz' if compress else ''
    assert sorted(left) == ['rank0.2.more', f'rank0.2.txt{gz}', 'rank0.3.2.more', f'rank0.3.2.txt{gz}']


def test_nothing_is_removed_before_it_is_uploaded() -> None:
    destination = MemoryDestination()
    destination.open.clear()
    store = make_store(destination, 'far/{batch}.txt', keep=0)
    for batch in range(3):
        store.save([text()], stamp(batch))
    store._writer.wait(Deadline(20, if_leaving=20))
    assert len(list(FOLDER.glob('*.txt'))) == 3
    destination.open.set()
    store.close(20)
    assert not list(FOLDER.glob('*.txt'))
    assert {entry.status for entry in entries(FOLDER)} == {'removed'}
    assert sorted(destination.names) == ['far/0.txt', 'far/1.txt', 'far/2.txt']
