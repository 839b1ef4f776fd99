"""The report on a run: which files are read."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from composer_memprof.analysis.run_report.report import report_on_paths
from composer_memprof.analysis.snapshot.loading import SnapshotError, load_snapshot
from composer_memprof.report.html.run.charts import charts_of
from composer_memprof.report.html.run.page import write_run_page
from tests.conftest import child_environment, s3_environment
from tests.support.made_up_runs import MIB, run_of, snapshot_summary, write_files
from tests.support.processes import warm_python
from tests.support.recordings.snapshots import event, plain, saved
from tests.support.run_reports import reported, said


def test_files_that_cannot_be_read_are_said_and_the_rest_is_reported() -> None:
    folder = run_of(Path('run'), 3)
    Path('run/rank1.9.memory_snapshot.summary.json').write_text('{"devices": 3}')
    write_files(folder, 2, {'flops': ('f.json', '[')})
    with open('run/rank2.manifest.jsonl', 'a') as manifest:
        line = json.loads(Path('run/rank2.manifest.jsonl').read_text().splitlines()[-1])
        manifest.write(json.dumps({**line, 'path': '../../elsewhere.json'}) + '\nnot a line\n')
    report = reported(folder)
    assert len(report.unreadable) == 3 and report.ranks == [0, 1, 2]
    assert any('which leaves its folder' in sentence for sentence in report.unreadable)
    assert said(report, 'files')[0].startswith('Not read: ')


def test_files_that_were_not_uploaded_are_counted() -> None:
    folder = run_of(Path('run'), 1)
    write_files(folder, 0, {'flops': ('a.json', {}), 'viztracer': ('b.json', {})}, remote='s3://x/y', status='failed')
    write_files(folder, 0, {'memray': ('c.bin', {})}, remote='s3://x/z')
    write_files(folder, 0, {'host_rss': ('d.jsonl', {})}, remote='s3://x/d', status='handed_over')
    (files,) = said(reported(folder), 'files')
    assert '2 files could not be uploaded' in files and '1 file not uploaded yet (composer-memprof push)' in files
    assert "1 file handed over to Composer's logger, not seen in its store yet" in files


def test_folders_by_rank_are_one_run() -> None:
    for rank in range(3):
        folder = Path(f'run/rank{rank}')
        folder.mkdir(parents=True)
        summary = snapshot_summary(rank, 2.0 if rank == 1 else 1.0)
        write_files(folder, rank, {'memory_snapshot.summary': ('s.json', summary)})
    assert reported(Path('run')).odd[0].rank == 1
    several = report_on_paths([(Path(f'run/rank{rank}'), f'run/rank{rank}') for rank in range(3)])
    assert several.comparison is None and several.odd[0].rank == 1


def test_bare_snapshots_are_compared_if_they_say_their_rank() -> None:
    Path('bare').mkdir()
    for rank, size in enumerate((MIB, MIB, 4 * MIB)):
        saved(plain(event('alloc', 512, size, time=1)), f'bare/rank{rank}.3.memory_snapshot.pickle')
    report = reported(Path('bare'))
    assert said(report)[0].startswith('Rank 2 differs: its peak of allocated memory is 4.0 MiB, 4.0 times')
    Path('other').mkdir()
    for number, size in enumerate((MIB, 4 * MIB)):
        saved(plain(event('alloc', 512, size, time=1)), f'other/snap{"ab"[number]}.pickle')
    report = reported(Path('other'))
    assert report.odd == [] and report.lead is not None and report.lead.path.name == 'snapb.pickle'
    assert 'Over 2 snapshots the peak is 1.0 MiB to 4.0 MiB.' in said(report)


def test_every_file_that_cannot_be_read_is_named_up_to_ten() -> None:
    folder = run_of(Path('run'), 1)
    for number in range(12):
        write_files(folder, 0, {'flops': (f'f{number}.json', 'no')})
    (text,) = said(reported(folder), 'files')
    assert text.count('.json') == 10 and text.endswith(', and 2 more.')


def test_1024_ranks_are_reported_from_their_summaries() -> None:
    folder = run_of(Path('run'), 1024, rank700=2.0)
    report = reported(folder)
    assert [odd.rank for odd in report.odd] == [700, 700]
    write_run_page(report, Path('report.html'))
    assert os.path.getsize('report.html') < 15_000_000
    (chart,) = [chart for chart in charts_of(report) if chart.key == 'ranks-memory-snapshot']
    assert chart.words.startswith('The 64 ranks of 1,024 that differ most') and chart.data[0]['x'][0] == 'rank 700'
    assert chart.table.rows[0] == ['total: peak', '120.0 MiB', '120.0 MiB', '180.0 MiB', '700']


@pytest.mark.slow
def test_a_run_in_a_store_is_reported_as_on_a_disk(s3: Any, s3_endpoint: str) -> None:
    folder = run_of(Path('run'), 3, rank2=2.0)
    saved(plain(event('alloc', 512, MIB, time=1)), 'run/rank0.9.memory_snapshot.pickle')
    for path in folder.iterdir():
        if 'manifest' not in path.name:  # callbacks upload none
            s3.pipe(f'runs/made/run/{path.name}', path.read_bytes())
    environment = {**child_environment(COLUMNS='160'), **s3_environment(s3_endpoint)}
    command = [sys.executable, '-m', 'composer_memprof', 'report', 's3://runs/made/run', '-o', 'page.html']
    done = warm_python.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith('run: 3 ranks\n  Rank 2 differs')
    files = Path('page.html').read_text().partition('id="files"')[2].partition('<script')[0]
    assert 'fsdp_mem_rank_0_train_9.json' in files and '<a href' not in files, 'what was fetched is gone'
    listed = warm_python.run(
        [*command[:3], 'ls', 's3://runs/made/run'], env=environment, capture_output=True, text=True, timeout=120
    )
    assert listed.stdout.splitlines()[0].rstrip() == 'Files in s3://runs/made/run', 'by name'
    assert 'fsdp_mem_rank_2_train_9.json' in listed.stdout and 'rank0.9.memory_snapshot.pickle' in listed.stdout
    for path in folder.glob('*.manifest.jsonl'):
        s3.pipe(f'runs/made/run/{path.name}', path.read_bytes())
    listed = warm_python.run(
        [*command[:3], 'ls', 's3://runs/made/run', '--json'],
        env=environment, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    (first, *_) = json.loads(listed.stdout)
    assert first['folder'] == 's3://runs/made/run' and first['entry']['bytes'] > 0, 'by the manifests'
    missing = warm_python.run(
        [*command[:4], 's3://runs/nothing'], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert missing.returncode == 2 and missing.stderr == 'composer-memprof: there is nothing at s3://runs/nothing\n'


def test_a_summary_is_read_in_place_of_the_whole_file_beside_it() -> None:
    folder = run_of(Path('run'), 2)
    sizes = {'cuda:0': {'Activation': 7 * MIB, 'Total': 7 * MIB}}
    small = {'peak': sizes, 'phases': {'forward': sizes}, 'activations': {'blocks.*': 7 * MIB}}
    host = {'samples': 3, 'over_time': {}, 'rss_peak': 5 * MIB}
    write_files(folder, 0, {'host_rss': ('rank0.0.host_rss.2.jsonl.gz', 'not read')}, batch=0)
    write_files(folder, 0, {'host_rss.summary': ('rank0.0.host_rss.2.summary.json', host)}, batch=0)
    write_files(folder, 1, {'fsdp_mem_tracker.json': ('fsdp_mem_rank_1_train_9.json', 'not read')})
    write_files(folder, 1, {'fsdp_mem_tracker.summary': ('fsdp_mem_rank_1_train_9.summary.json', small)})
    report = reported(folder)
    assert report.unreadable == []
    assert {rank: memory.peak['cuda:0']['Total'] for rank, memory in report.contents['fsdp_mem_tracker'].items()} == {
        0: 140 * MIB,
        1: 7 * MIB,
    }, 'of rank 0, as of an older run, the whole file'
    assert report.contents['host_rss'][0].rss_peak == 5 * MIB
    (folder / 'rank0.0.host_rss.2.summary.json').unlink()
    assert len(reported(folder).unreadable) == 1, 'the whole file is read'
    for path in folder.glob('*.manifest.jsonl'):
        path.unlink()
    assert reported(folder).contents['fsdp_mem_tracker'][1].peak == sizes, 'known by its name'


def test_the_leading_snapshot_is_that_with_the_largest_peak() -> None:
    folder = run_of(Path('run'), 4, rank3=0.5)
    for rank in (0, 3):
        name = f'rank{rank}.9.memory_snapshot.pickle'
        saved(plain(event('alloc', 512, MIB * (4 - rank), time=1)), f'run/{name}')
        content = {'memory_snapshot': (name, '')}
        kept = Path(f'run/{name}').read_bytes()
        write_files(folder, rank, content)
        Path(f'run/{name}').write_bytes(kept)
    report = reported(folder)
    assert report.odd[0].rank == 3 and report.lead is not None and report.lead.rank == 0


def test_the_newest_attempt_in_a_folder_counts_and_evaluation_apart() -> None:
    folder = run_of(Path('run'), 2)
    for rank in range(2):
        file = f'rank{rank}.4.memory_snapshot.summary.json'
        write_files(folder, rank, {'memory_snapshot.summary': (file, snapshot_summary(rank, 3.0))}, batch=4)
        other = f'rank{rank}.9.memory_snapshot.eval1.summary.json'
        write_files(folder, rank, {'memory_snapshot.summary': (other, snapshot_summary(rank, 9.0))})
    table = reported(folder).tables[0]
    assert (table.batch, table.values[0].tolist()) == (4, [240.0 * MIB] * 2)


def test_several_runs_below_one_folder_are_not_taken_for_one() -> None:
    for name in ('a', 'b'):
        folder = Path('runs', name)
        folder.mkdir(parents=True)
        write_files(folder, 0, {'memory_snapshot.summary': ('s.json', snapshot_summary(0))}, run_name=name)
    with pytest.raises(SnapshotError, match='runs holds several runs: a, b; report on one of them'):
        reported(Path('runs'))


@pytest.mark.parametrize('value', ['NaN', 'Infinity', '1e308', '9' * 400])
def test_a_number_that_is_none_makes_one_file_unreadable(value: str) -> None:
    folder = run_of(Path('run'), 1)
    text = '{"batches": 1, "seconds": {"total": {"p50": VALUE}}, "share": {}}'.replace('VALUE', value)
    sample = '{"event": "sample", "time": VALUE, "batch": 1, "phase": "x", "rss": 1}'.replace('VALUE', value)
    write_files(folder, 0, {'step_times.summary': ('s.json', text), 'host_rss': ('h.jsonl', sample)})
    report = reported(folder)
    assert len(report.unreadable) == 2 and report.lead is None
    write_run_page(report, Path('page.html'))
    assert Path('page.html').read_text().count('<li>Not read: ') == 2


def test_a_pipe_in_a_runs_folder_is_not_waited_for() -> None:
    folder = run_of(Path('run'), 1)
    write_files(folder, 0, {'flops': ('f.json', '{}')})
    Path('run/f.json').unlink()
    os.mkfifo('run/f.json')
    assert reported(folder).unreadable == []


def test_a_snapshot_that_the_run_still_writes_or_removed_is_left_out() -> None:
    folder = run_of(Path('run'), 2)
    write_files(folder, 0, {'memory_snapshot': ('a.pickle', 'x')}, status='open')
    write_files(folder, 1, {'memory_snapshot': ('b.pickle', 'not a pickle')})
    report = reported(folder)
    assert report.lead is None and len(report.unreadable) == 1
    assert load_snapshot(saved(plain())).settings == {}
