"""Windows in flight: handed over, flushed, skipped, counted, kept, and collected."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Optional

import psutil
import pytest

import composer_memprof
from composer_memprof import FSDPMemTracker, HostRSS, MemorySnapshot, MemProfiler, SavedTensorsHook
from composer_memprof.artifacts.naming.names import Naming
from composer_memprof.artifacts.reading.manifest import Entry
from composer_memprof.artifacts.store import ArtifactStore, Part
from composer_memprof.artifacts.writing import parts as writing_parts
from composer_memprof.artifacts.writing.child.memory import NO_MEMORY
from composer_memprof.artifacts.writing.disk import sync_and_digest
from composer_memprof.artifacts.writing.skipped_windows import SkippedWindows
from composer_memprof.messages import MemprofWarning
from tests.conftest import entries, make_trainer, train, wait_for
from tests.support.stores import FOLDER, make_store, run_script, slow_part, stamp, statuses, text

DENSE = {'active': '1ba', 'every': '2ba'}


def part_that_waits() -> Part:
    """It is written once there is a file ``may-end``."""
    gate = Path('may-end').absolute()

    def write(path: Path) -> None:
        wait_for(gate.exists, 60)
        path.write_text('x')

    return Part('thing', '.txt', write)


# -- handing over -------------------------------------------------------------------------------------------------------


def test_after_fit_everything_is_written_without_a_close() -> None:
    trainer = make_trainer(SavedTensorsHook(schedule=DENSE, on_full='wait'), FSDPMemTracker(), MemorySnapshot())
    trainer.fit()
    wait_for(lambda: statuses(Path('test-run'))['saved'] >= 6 * 2 + 3 + 3, 60)
    trainer.close()
    assert set(statuses(Path('test-run'))) == {'saved'}


def test_a_process_that_ends_at_once_after_fit_leaves_its_windows_to_their_children() -> None:
    script = """
        import os
        from composer_memprof import SavedTensorsHook
        from tests.conftest import make_trainer
        trainer = make_trainer(SavedTensorsHook(schedule={'active': '1ba', 'every': '4ba'}))
        trainer.fit()
        os._exit(0)
    """
    assert run_script(script).returncode == 0
    wait_for(lambda: statuses(Path('test-run')) == {'saved': 6}, 60)


def test_flush_waits_until_the_windows_so_far_are_written() -> None:
    callback = SavedTensorsHook(schedule={'active': '1ba', 'every': '4ba'})
    assert callback.flush()  # there is nothing yet
    trainer = make_trainer(callback)
    trainer.fit()
    assert callback.flush(60)
    assert statuses(Path('test-run')) == {'saved': 6}
    trainer.close()
    assert callback.flush()


def test_flush_says_if_it_did_not_suffice() -> None:
    store = make_store()
    store.save([slow_part(2)], stamp())
    assert not store.flush(0.1)
    assert store.flush(60)
    store.close(20)


def test_later_fits_of_a_process_record_too() -> None:
    """Nobody closes the Trainers before; their windows waited for a training thread that never came."""
    trainers = []
    for name in ('first', 'second', 'third'):
        trainer = make_trainer(SavedTensorsHook(schedule=DENSE), run_name=name, batches=20)
        trainer.fit()
        trainers.append(trainer)
    for name in ('first', 'second', 'third'):
        wait_for(lambda name=name: statuses(Path(name))['saved'] > 0, 60)  # type: ignore[misc]
    for trainer in trainers:
        trainer.close()


@pytest.mark.slow
def test_two_trainings_in_two_threads_write_each_window_once_and_leave_no_zombie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    children = set(psutil.Process().children())
    stores = [make_store(), make_store()]

    def use(number: int) -> None:
        for batch in range(number, 20, 2):
            stores[number].save([text()], stamp(batch))

    threads = [threading.Thread(target=use, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close(60)
    assert [(entry.path, entry.status) for entry in sorted(entries(FOLDER), key=lambda entry: entry.batch)] == [
        (f'rank0.{batch}.txt', 'saved') for batch in range(20)
    ]
    assert set(psutil.Process().children()) <= children


def test_a_fork_is_quiet_for_the_tokenizers_library_and_the_users_own_is_as_it_was() -> None:
    """Its handler of forks reads this variable."""
    script = """
        import os, sys
        from composer_memprof.artifacts.writing.child.fork import fork
        seen = []
        os.register_at_fork(after_in_child=lambda: seen.append(os.environ.get('TOKENIZERS_PARALLELISM')))
        sys.modules['tokenizers'] = sys
        print(fork(lambda: seen).results(20), flush=True)
        if not os.fork():
            print(seen, flush=True)
            os._exit(0)
        os.wait()
    """
    assert run_script(script).stdout.splitlines() == ["['false']", '[None]']


# -- room ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('callback', [SavedTensorsHook, FSDPMemTracker, MemorySnapshot])
def test_dense_windows_are_written_or_listed_as_skipped_and_counted(
    callback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow_sync(path: Path) -> tuple[int, str]:
        time.sleep(0.2)
        return sync_and_digest(path)

    monkeypatch.setattr(writing_parts, 'sync_and_digest', slow_sync)  # a fast disk keeps up with these windows
    kind, files = callback.kind, {SavedTensorsHook: 2, FSDPMemTracker: 3, MemorySnapshot: 3}[callback]
    with pytest.warns(MemprofWarning, match=rf'{kind}: \d+ of 30 were left out, because earlier windows') as told:
        train(callback(schedule=DENSE), batches=60)
    assert sum('left out' in str(warning.message) for warning in told) == 1
    found = statuses(Path('test-run'))
    assert found['skipped'] and found['saved'] and found['skipped'] + found['saved'] // files == 30


@pytest.mark.parametrize('callback', [SavedTensorsHook, MemorySnapshot])
def test_on_full_wait_leaves_no_window_out(callback: Any) -> None:
    train(callback(schedule=DENSE, on_full='wait'), batches=16)
    assert statuses(Path('test-run'), callback.kind) == {'saved': 8}


def test_an_open_file_of_its_own_takes_no_room() -> None:
    store = make_store()
    others = [make_store() for _ in range(2)]
    for other in others:
        for _ in range(2):
            other.save([slow_part(0.3)], stamp())
    growing = [store.grow('thing.open', '.log', stamp(batch)) for batch in range(3)]
    assert store.why_no_room() is None, 'its own open files count as windows that wait'
    for file in growing:
        file.close()
    for each in (store, *others):
        each.close(20)


def test_mem_profiler_writes_the_only_log_of_one_batch_beside_busy_callbacks() -> None:
    train(
        SavedTensorsHook(schedule={'active': '1ba', 'every': '1ba'}),
        MemProfiler(track_fsdp_mem=True, collect_funcs=['training_step'], schedule={'skip': '3ba', 'active': '1ba'}),
        HostRSS(),
    )
    listed: list[Entry] = [entry for entry in entries(Path('test-run')) if entry.kind.startswith('mem_profiler')]
    assert {entry.kind for entry in listed if entry.status == 'saved'} >= {
        'mem_profiler.fsdp',
        'mem_profiler.fsdp.json',
    }


@pytest.mark.parametrize('on_full', ['never', None, 3])
def test_on_full_is_checked(on_full: Optional[str]) -> None:
    with pytest.raises(ValueError, match=f'HostRSS: on_full={on_full!r} is unknown; allowed are skip, wait'):
        composer_memprof.HostRSS(on_full=on_full)


def test_a_window_of_a_store_is_counted_by_what_it_took() -> None:
    store = ArtifactStore(FOLDER, Naming('rank{rank}.{batch}', None, '.txt'))
    store.save([text()], stamp(1))
    store.leave_out(text(), stamp(2), 'VizTracer is recording')
    with pytest.warns(
        MemprofWarning, match='thing: 1 of 2 were left out, because VizTracer is recording. The manifest'
    ):
        store.close(20)
    assert {(entry.status, entry.reason) for entry in entries(FOLDER)} == {
        ('saved', None),
        ('skipped', 'VizTracer is recording'),
    }


def test_what_is_left_out_and_files_that_are_closed_do_not_pile_up_behind_a_slow_window() -> None:
    store, lines = make_store(), make_store()
    store.save([part_that_waits()], stamp())
    for batch in range(20):
        lines.grow('line', '.jsonl', stamp(batch)).close()
        store.leave_out(text(), stamp(100 + batch), 'earlier windows were still being written')
    wait_for(lambda: (statuses(FOLDER, 'line'), statuses(FOLDER, 'thing')) == ({'saved': 20}, {'skipped': 20}), 30)
    Path('may-end').touch()
    with pytest.warns(MemprofWarning, match='thing: 20 of 21 were left out'):
        store.close(60)
    lines.close(60)
    assert statuses(FOLDER, 'thing') == {'skipped': 20, 'saved': 1}


def test_a_count_of_what_was_left_out_is_right_though_it_was_taken_before_the_last_warning() -> None:
    left_out = SkippedWindows()
    left_out.count_taken('thing')
    left_out.warn()
    left_out.add('thing', NO_MEMORY, was_taken=True)
    with pytest.warns(MemprofWarning, match='thing: 1 of 1 were left out'):
        left_out.warn()


# -- which windows are kept ---------------------------------------------------------------------------------------------


def test_the_newest_window_is_kept_though_an_older_one_takes_longer_to_write() -> None:
    store = make_store(keep=1)
    store.save([slow_part(1)], stamp(1))
    store.grow('line', '.jsonl', stamp(2)).close()
    store.close(20)
    assert {entry.batch: entry.status for entry in entries(FOLDER)} == {1: 'removed', 2: 'saved'}


def test_a_growing_file_that_replaces_an_older_windows_is_not_removed_with_it() -> None:
    store = ArtifactStore(FOLDER, Naming('fixed', None, '.txt'), keep=1, overwrite=True)
    store.grow('line', '.jsonl', stamp(1)).close()
    store.flush(20)
    growing = store.grow('line', '.jsonl', stamp(2))
    store.save([text()], stamp(1))
    store.flush(20)
    assert growing.path.exists()
    growing.close()
    store.close(20)
    assert Counter(entry.status for entry in entries(FOLDER, 'line')) == {'saved': 1}


# -- a store that is collected on a worker thread -----------------------------------------------------------------------


def test_a_store_that_is_collected_on_the_writers_own_thread_closes_without_waiting_for_it() -> None:
    store, other = make_store(), make_store()
    closed = threading.Event()

    def collect(paths: Any) -> None:
        store.save([text(kind='late')], stamp())
        store.close(20)
        closed.set()

    other.save([text()], stamp(), on_saved=collect)
    other.close(20)
    assert closed.wait(20)
    assert {entry.kind: entry.status for entry in entries(FOLDER)} == {'thing': 'saved', 'late': 'saved'}


def test_one_that_is_collected_among_small_work_waits_for_no_window() -> None:
    store, other = make_store(), make_store()
    other.save([part_that_waits()], stamp())
    store.save([text(kind='late')], stamp())
    other._writer.run(lambda: store.close(20))
    other.leave_out(text(kind='skip'), stamp(9), 'VizTracer is recording')
    wait_for(lambda: statuses(FOLDER, 'skip') == {'skipped': 1}, 30)
    Path('may-end').touch()
    other.close(20)
    wait_for(lambda: statuses(FOLDER, 'late') == {'saved': 1}, 20)
