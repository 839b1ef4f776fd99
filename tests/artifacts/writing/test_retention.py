"""Which windows are kept, and when an older one is removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer_memprof.artifacts.naming.names import Naming
from composer_memprof.artifacts.reading.manifest import Entry
from composer_memprof.artifacts.store import ArtifactStore
from composer_memprof.artifacts.writing.deadlines import Deadline
from composer_memprof.artifacts.writing.retention import WindowFiles
from tests.conftest import entries, wait_for
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


def test_the_file_of_a_search_beside_the_windows_counts_as_no_window() -> None:
    store = make_store(keep=2)
    for batch in range(4):
        store.save([text()], stamp(batch))
        store.save([text('x', 'thing.growing', '.growing.json')], stamp(batch))
    store.close(20)
    left = [entry.path for entry in entries(FOLDER) if entry.status == 'saved']
    assert left == ['rank0.2.txt', 'rank0.3.txt', 'rank0.3.growing.json']


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


def test_a_file_that_the_next_window_has_just_replaced_is_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    destination = MemoryDestination()
    destination.open.clear()
    store = ArtifactStore(FOLDER, Naming('fixed', 'far/{batch}.txt', '.txt'), destination, keep=0, overwrite=True)
    add_file = store._windows.add_file

    def slowly(entry: Entry, window: WindowFiles) -> None:
        if entry.batch == 2:  # its file is there, and the older one becomes an uploaded one
            assert (FOLDER / 'fixed.txt').read_text() == 'second'
            destination.open.set()
            wait_for(lambda: destination.names == ['far/1.txt'], 20)
            store._windows.remove_old()
            assert (FOLDER / 'fixed.txt').read_text() == 'second'
            destination.open.clear()
        add_file(entry, window)

    monkeypatch.setattr(store._windows, 'add_file', slowly)
    store.save([text('first')], stamp(1))
    store.flush(20)
    store.save([text('second')], stamp(2))
    store.flush(20)
    destination.open.set()
    store.close(20)
    assert destination.names == ['far/1.txt', 'far/2.txt']
