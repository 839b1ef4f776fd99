"""Names of files: format strings, what leaves a folder, numbers, addresses, and the node of a rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer_memprof.artifacts.naming.addresses import check_scheme
from composer_memprof.artifacts.naming.names import Naming, check_run_name, check_template, folder_of
from composer_memprof.artifacts.naming.numbering import before_suffix
from composer_memprof.artifacts.reading.containment import inside
from tests.support.stores import stamp

# -- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('template', 'words'),
    [
        ('{run_nam}/x', ['{run_nam}', "'run_name'"]),
        ('{batch}', ['{batch}', 'rank']),
        ('{}', ['{}']),
        ('{run_name', ['format string']),
        ('{run_name.__class__}', ['run_name.__class__']),
        ('{rank:{batch}}', ['rank']),
        ('', ['in quotes']),
        ('{rank:q}', ['{rank:q}']),
    ],
)
def test_an_invalid_format_string_is_refused(template: str, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        check_template(template, 'folder', ('run_name', 'rank'))
    assert all(word in str(caught.value) for word in ['folder', *words])


@pytest.mark.parametrize('run_name', ['../x', 'a/../../b', '/etc', '~root', 'a\\..\\b', 'a\nb', '', '..'])
def test_a_run_name_that_would_lead_out_of_its_folder_is_refused(run_name: str) -> None:
    with pytest.raises(ValueError, match='run_name='):
        check_run_name(run_name, '{run_name}/memprof')
    check_run_name(run_name, 'fixed/folder')  # where it is not used it does no harm


def test_a_name_that_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='leaves its folder'):
        Naming('a/../../b', None, '.txt').local(stamp(), '.txt', 1)
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run' / 'link').symlink_to(tmp_path)
    with pytest.raises(ValueError, match='is outside of'):
        inside(tmp_path / 'run', 'link/file')


def test_names_take_composers_variables_marks_and_numbers() -> None:
    naming = Naming('rank{rank}.{batch:03d}.pt.trace.json', '/traces/ep{epoch}-ba{batch}.pt.trace.json', '.json')
    assert naming.local(stamp(), '.json', 1) == 'rank0.004.pt.trace.json'
    assert naming.local(stamp(mark='.eval7'), '.json.gz', 2) == 'rank0.004.eval7.2.pt.trace.json.gz'
    assert naming.local(stamp(), '.summary.txt', 1) == 'rank0.004.pt.trace.summary.txt'
    assert naming.in_store(stamp(), '.json.gz', 3, 'ignored') == '/traces/ep1-ba4.3.pt.trace.json.gz'
    folder = Naming('a/{batch}.json', 's3://b/{run_name}/', '.json')
    assert folder.in_store(stamp(), '.json', 1, 'a/4.json') == 's3://b/my-run/a/4.json'
    assert folder_of('{run_name}/r{rank}', 'x', 3) == Path('x/r3')


def test_a_number_goes_before_the_suffix() -> None:
    assert before_suffix('a/b.json', '.2') == 'a/b.2.json'
    assert before_suffix('s3://b/a.b/rank0.4.memory_snapshot.pickle.gz', '.3') == (
        's3://b/a.b/rank0.4.memory_snapshot.3.pickle.gz'
    )
    assert before_suffix('a/b', '.2') == 'a/b.2'
    assert before_suffix('a/.hidden', '.2') == 'a/.hidden.2'


@pytest.mark.parametrize(
    ('name', 'words'),
    [
        ('s4://b/x', ['s4://', 's3']),
        ('gs://b/x', ['gs://', "pip install 'composer_memprof[gcs]'"]),
        ('s3://key:secret@host/x', ['credentials']),
        ('memory://b/a::file:///x', ['one store']),
        ('zip://a::s3://b', ['one store']),
    ],
)
def test_an_address_that_can_not_be_reached_is_refused_without_a_connection(name: str, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        check_scheme(name, 'remote_file_name')
    assert all(word in str(caught.value) for word in words)
    assert 'secret' not in str(caught.value)


def test_the_node_of_a_rank_that_torchrun_started(monkeypatch):
    """torchrun sets GROUP_RANK; Composer's own function for it raises where NODE_RANK is missing."""
    monkeypatch.delenv('NODE_RANK', raising=False)
    for name, value in {'RANK': '9', 'WORLD_SIZE': '16', 'LOCAL_RANK': '1', 'LOCAL_WORLD_SIZE': '8'}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv('GROUP_RANK', '1')
    monkeypatch.setattr('torch.distributed.is_initialized', lambda: True)
    monkeypatch.setattr('torch.distributed.get_rank', lambda *_: 9)
    monkeypatch.setattr('torch.distributed.get_world_size', lambda *_: 16)
    assert folder_of('{run_name}/node{node_rank}', 'run') == Path('run/node1')
    assert folder_of('{run_name}/node{node_rank}', 'run', rank=3) == Path('run/node0')
