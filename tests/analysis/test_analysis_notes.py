"""The notes in a snapshot: the analysis reads what a recorder writes, also of other versions."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from composer_memprof.analysis.memory.categories.categories import CATEGORIES, RULES
from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import SnapshotError, load_snapshot
from composer_memprof.analysis.snapshot.model import Snapshot
from composer_memprof.recorders.allocations.notes import (
    KEY,
    VERSION,
    Failure,
    OutOfMemory,
    SnapshotNotes,
    with_notes,
)
from composer_memprof.vocabulary import CATEGORY_LABELS, MEMORY_CATEGORIES, TENSOR_CATEGORIES
from tests.support.recordings.snapshots import event, plain, saved

NOTES = SnapshotNotes(
    device='cuda',
    torch='2.7.0',
    recorder='allocator_history',
    rank=3,
    phases=[[0, 7, 'forward'], [5, 7, 'backward']],
    tensors=[[1, 512, 8, 'parameter', 'net.0.weight']],
    modules=[[0, 'net.0'], [5, '']],
    memory=[1 << 30],
)
OOM = OutOfMemory(device=0, requested=100, allocated=50, reserved=60, free=1, total=64, message='no memory')


def loaded(notes: Any) -> Snapshot:
    content = plain(event('alloc', 512, 8, time=1))
    return load_snapshot(
        saved(with_notes(content, notes) if isinstance(notes, SnapshotNotes) else {**content, KEY: notes})
    )


def test_what_is_noted_is_read() -> None:
    snapshot = loaded(NOTES.with_failure(Failure('OutOfMemoryError: no memory', OOM)))
    meta = snapshot.meta
    assert (meta.device, meta.torch, meta.recorder, meta.rank) == ('cuda', '2.7.0', 'allocator_history', 3)
    assert (snapshot.phases.batch.tolist(), snapshot.phases.names) == ([7, 7], ['forward', 'backward'])
    assert (snapshot.tensors.address.tolist(), snapshot.tensors.names) == ([512], ['', 'net.0.weight'])
    assert snapshot.modules[snapshot.devices[0].module[0]] == 'net.0'
    assert (snapshot.oom, snapshot.error) == (OOM, 'OutOfMemoryError: no memory')
    assert snapshot.notes_version == VERSION
    assert report_on(snapshot).devices[0].memory == 1 << 30


def test_the_allocators_settings_are_read_as_text() -> None:
    given = {'expandable_segments': True, 'max_split_size': -1, 'roundup_power2_divisions': {'1': 0}, 3: 'x'}
    read = load_snapshot(saved({**plain(), 'allocator_settings': given})).settings
    assert read == {'expandable_segments': 'True', 'max_split_size': '-1'}
    assert load_snapshot(saved({**plain(), 'allocator_settings': [1]})).settings == {}


def test_what_is_not_known_is_left_out() -> None:
    assert SnapshotNotes('cpu', '2.7.0', 'profiler').as_dict() == {
        'device': 'cpu',
        'torch': '2.7.0',
        'recorder': 'profiler',
        'version': VERSION,
    }
    noted = NOTES.with_failure(Failure(oom=OutOfMemory(message='no memory'))).as_dict()
    assert 'error' not in noted and noted['oom'] == {'message': 'no memory'}


def test_notes_are_plain_values_that_replace_those_of_the_recorder() -> None:
    made = with_notes({'segments': [], KEY: {'device': 'cpu'}}, NOTES.with_failure(Failure('x', OOM)))
    assert b'composer_memprof.' not in pickle.dumps(made), 'no class is named'
    assert made[KEY]['device'] == 'cuda' and made['segments'] == []


def test_notes_without_a_version_are_those_of_version_1() -> None:
    old = NOTES.as_dict()
    del old['version']
    assert loaded(old).notes_version == 1
    assert report_on(loaded(old)).notes == []


def test_of_a_newer_version_what_is_known_is_read_and_a_note_says_so() -> None:
    newer = {**replace(NOTES, version=9).as_dict(), 'tensors': {'another': 'form'}, 'unheard_of': 'a new key'}
    snapshot = loaded(newer)
    assert snapshot.phases.names == ['forward', 'backward']
    assert len(snapshot.tensors) == 0
    (note,) = report_on(snapshot).notes
    assert 'version 9' in note and f'known here is {VERSION}' in note


@pytest.mark.parametrize('version', [0, -1, '1', None, 1.0, True, 2**63])
def test_a_version_that_is_no_number_is_refused(version: Any) -> None:
    with pytest.raises(SnapshotError, match='version must be a whole number from 1'):
        loaded({**NOTES.as_dict(), 'version': version})


def test_an_unknown_key_of_this_version_is_ignored_and_a_wrong_value_is_not() -> None:
    assert loaded({**NOTES.as_dict(), 'unheard_of': [1]}).meta.rank == 3
    with pytest.raises(SnapshotError, match='tensors must be a list'):
        loaded({**NOTES.as_dict(), 'tensors': {'another': 'form'}})


def test_the_vocabulary_names_each_category_once() -> None:
    assert [category.key for category in MEMORY_CATEGORIES] == list(CATEGORIES) == list(CATEGORY_LABELS)
    assert set(TENSOR_CATEGORIES) < set(CATEGORIES)
    assert len(RULES) == len(TENSOR_CATEGORIES) - 1 + len(set(RULES)), 'only tensors share a reason'
