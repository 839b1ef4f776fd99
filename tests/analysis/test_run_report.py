"""The report on a run: what fills its memory, which ranks differ, what to change; and its page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.module_names import layer_name
from composer_memprof.analysis.run_report.differences import odd_ranks, rank_tables
from composer_memprof.analysis.run_report.figures import Figures
from composer_memprof.analysis.run_report.files import find_files
from composer_memprof.analysis.run_report.progress import Progress, progress_of
from composer_memprof.analysis.run_report.report import RunReport, report_on_paths, report_on_run
from composer_memprof.analysis.snapshot.loading import SnapshotError, load_snapshot, read_snapshot
from composer_memprof.artifacts.reading.manifest import Manifest, goes_on
from composer_memprof.report.html.run.charts import charts_of
from composer_memprof.report.html.run.page import write_run_page
from composer_memprof.report.text.sentences.run_verdict import verdict
from tests.conftest import child_environment, s3_environment, until
from tests.support.made_up_runs import MIB, run_of, snapshot_summary, write_files
from tests.support.snapshots import REAL, event, freed, plain, saved, segment

HOSTILE = '</script><img src=x onerror="window.taken=1"><!--'


def reported(*paths: Path) -> RunReport:
    return report_on_run(find_files(paths))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, in a process of its own: it reads files in a forked child."""
    command = [sys.executable, '-m', 'composer_memprof', *arguments]
    return subprocess.run(
        command, env=child_environment(COLUMNS='160'), capture_output=True, text=True, timeout=120, check=False
    )


def said(report: RunReport, about: str = '') -> list[str]:
    return [sentence.text for sentence in verdict(report) if not about or sentence.about == about]


# -- ranks ------------------------------------------------------------------------------------------------------------


def test_the_first_sentence_names_the_odd_rank_the_module_and_the_factor() -> None:
    report = reported(run_of(Path('run'), 4, rank2=2.0))
    first = verdict(report)[0]
    assert first.about == 'rank'
    assert first.text == (
        'Rank 2 differs: its peak of allocated memory is 180.0 MiB, 1.5 times the median of the other 3 ranks '
        '(120.0 MiB). Largest parts of the difference: activation (120.0 MiB, 2.0 times theirs) and blocks.*.up '
        '(80.0 MiB, 2.0 times theirs).'
    )
    assert [odd.kind for odd in report.odd] == ['memory_snapshot', 'fsdp_mem_tracker']


def test_no_rank_is_odd_where_all_are_alike() -> None:
    assert reported(run_of(Path('run'), 4, rank1=1.01)).odd == []
    assert reported(run_of(Path('one'), 1)).odd == []


def test_of_two_ranks_the_larger_one_is_named() -> None:
    report = reported(run_of(Path('run'), 2, rank0=2.0))
    assert [odd.rank for odd in report.odd] == [0, 0]
    assert 'that of the other rank' in said(report, 'rank')[0]


def test_a_rank_that_has_less_is_odd_too() -> None:
    report = reported(run_of(Path('run'), 5, rank3=0.5))
    assert said(report, 'rank')[0].startswith('Rank 3 differs: its peak of allocated memory is 90.0 MiB, 0.75 times')


def test_what_varies_from_rank_to_rank_is_usual() -> None:
    def of(values: list[float]) -> list[int]:
        figures = [
            Figures('step_times', rank, 1, 'seconds', {'total': {'x': each}}) for rank, each in enumerate(values)
        ]
        (table,) = rank_tables(figures)
        return [odd.rank for odd in odd_ranks(table)]

    assert of([1.0, 1.2, 0.9, 1.1, 0.8, 1.3]) == [], 'times vary'
    assert of([1.0, 1.01, 0.99, 1.0, 3.0]) == [4]


def test_the_newest_batch_that_most_ranks_have_is_compared() -> None:
    figures = [
        Figures('flops', rank, batch, 'flops', {'total': {'x': float(batch)}})
        for rank in range(4)
        for batch in (10, 20, *([30] if rank == 1 else []))
    ]
    (table,) = rank_tables(figures)
    assert table.batch == 20 and table.values.tolist() == [[20.0] * 4]


def test_layers_are_taken_together() -> None:
    assert layer_name('blocks.3.mlp.0.up') == 'blocks.*.mlp.*.up'
    assert layer_name('conv1.bn2') == 'conv1.bn2' and layer_name('') == ''


# -- what happened ----------------------------------------------------------------------------------------------------


def test_a_failure_comes_first_and_that_of_memory_before_all_others() -> None:
    folder = run_of(Path('run'), 3, rank2=2.0)
    asked = {
        'device': 0,
        'requested': 2 * MIB,
        'allocated': 70 * MIB,
        'reserved': 80 * MIB,
        'free': MIB,
        'total': 99 * MIB,
    }
    oom = {**asked, 'message': 'no memory', 'events': 3, 'batch': 4, 'phase': 'forward', 'asked': ['train.py:7 step']}
    for rank, failed in ((0, {'error': 'RuntimeError: another rank'}), (1, {'error': 'OutOfMemoryError', 'oom': oom})):
        name = f'rank{rank}.4.memory_snapshot.oom.summary.json'
        write_files(folder, rank, {'memory_snapshot.summary': (name, snapshot_summary(rank, **failed))}, batch=4)
    report = reported(folder)
    assert said(report)[0] == (
        'Rank 1 ran out of memory in batch 4, forward, asked for 2.0 MiB by train.py:7 step. The device has '
        '99.0 MiB: 80.0 MiB reserved by torch (70.0 MiB in use), 18.0 MiB used outside of torch (CUDA context, libraries, '
        'other processes), 1.0 MiB free. Rank 0 failed too.'
    )


def test_growth_of_a_worker_and_waiting_for_data_are_said_and_lead_to_advice() -> None:
    folder = run_of(Path('run'), 2)
    sample = {'event': 'sample', 'time': 1.0, 'batch': 3, 'phase': 'forward', 'rss': 50 * MIB, 'cgroup_limit': 99 * MIB}
    trend = {'per_batch': 3.0 * MIB, 'low': 1.0, 'high': 5.0, 'clear': True}
    end = {'event': 'summary', 'time': 2.0, 'batch': 9, 'charged': {}, 'suspect': {'name': 'worker 1', 'growth': trend}}
    lines = '\n'.join(map(json.dumps, [sample, {**sample, 'cgroup_usage': 98 * MIB}, end])) + '\n{"event": "sam'
    seconds = {'total': {'p50': 0.5}, 'dataloader': {'p50': 0.2}}
    times = {'batches': 9, 'seconds': seconds, 'share': {'dataloader': 0.4, 'forward': 0.6}}
    write_files(folder, 1, {'host_rss': ('h.jsonl', lines), 'step_times.summary': ('s.json', times)}, status='open')
    report = reported(folder)
    assert said(report, 'growth') == ['Host memory grows on rank 1, in worker 1, by 3.0 MiB a batch.']
    (host,) = said(report, 'host')
    assert host.endswith('the job used 98.0 MiB of the 99.0 MiB at which it is killed.')
    assert said(report, 'speed') == ['The median batch takes 500.0 ms and 40 % of the time is spent waiting for data.']
    assert '2 files are still open' in said(report, 'files')[0]
    todo = [advice.what for advice in report.advice]
    assert 'Look in worker 1, on rank 1, for objects that are kept from batch to batch.' in todo
    assert 'Use more DataLoader workers or a larger prefetch_factor.' in todo


def test_the_peak_is_said_from_summaries_alone() -> None:
    folder = run_of(Path('run'), 3, rank2=2.0)
    summary = snapshot_summary(2, 2.0)
    summary['devices'][0] |= {
        'memory': 200 * MIB,
        'holders': [{'bytes': 80 * MIB, 'blocks': 4, 'category': 'activation', 'at': ['model.py:7 up', 'x.py:1 y']}],
    }
    write_files(folder, 2, {'memory_snapshot.summary': ('rank2.9.memory_snapshot.summary.json', summary)})
    assert said(reported(folder), 'peak')[0] == (
        'The peak of rank 2 is 180.0 MiB of 200.0 MiB (90 %) allocated in batch 8, backward. Activation leads with '
        '120.0 MiB (67 %): 80.0 MiB by model.py:7 up.'
    )


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


def test_of_two_runs_what_changed_comes_first() -> None:
    before, after = run_of(Path('before'), 3), run_of(Path('after'), 3, rank0=2.0, rank1=2.0, rank2=2.0)
    paths = [(before, 'before'), (after, 's3://runs/after')]
    first, second, *_ = said(report_on_paths(paths))
    assert first == (
        'Against before: its peak of allocated memory is 180.0 MiB, 1.5 times 120.0 MiB. What changed most: activation '
        '(60.0 MiB to 120.0 MiB), blocks.*.up (40.0 MiB to 80.0 MiB).'
    )
    assert second.startswith("Its peak of the model's memory is 200.0 MiB")
    same = said(report_on_paths([(before, 'a'), (before, 'b')]), 'change')
    assert same == ['Against a: no total changed.']
    with pytest.raises(SnapshotError, match='compares two runs'):
        report_on_paths([(before, 'a'), (after, 'b'), (before, 'c')])


def test_folders_by_rank_are_one_run() -> None:
    for rank in range(3):
        folder = Path(f'run/rank{rank}')
        folder.mkdir(parents=True)
        summary = snapshot_summary(rank, 2.0 if rank == 1 else 1.0)
        write_files(folder, rank, {'memory_snapshot.summary': ('s.json', summary)})
    assert reported(Path('run')).odd[0].rank == 1
    several = report_on_paths([(Path(f'run/rank{rank}'), f'run/rank{rank}') for rank in range(3)])
    assert several.comparison is None and several.odd[0].rank == 1


# -- snapshots of any program -----------------------------------------------------------------------------------------


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


def test_a_folder_without_anything_and_a_path_that_is_not_there_are_one_line() -> None:
    Path('empty').mkdir()
    for path, words in (('empty', 'neither a manifest of a run nor a memory snapshot'), ('missing', 'cannot be read')):
        result = run('report', path)
        assert result.returncode in (1, 2) and words in result.stderr and result.stderr.count('\n') == 1


# -- what to change ---------------------------------------------------------------------------------------------------


def test_idle_memory_leads_to_expandable_segments_unless_they_are_on() -> None:
    big = 512 * MIB
    trace = [event('alloc', 4096, MIB, time=1), *freed(4096, MIB, time=2)]
    segments = [segment((1 << 30, MIB), total=MIB), {**segment((2 << 30, MIB), total=big), 'segment_type': 'large'}]
    content = {**plain(*trace, segments=segments, device='cuda'), 'allocator_settings': {'expandable_segments': False}}
    saved(content)
    (advice,) = reported(Path('x.pickle')).advice
    assert 'expandable_segments:True' in advice.what and advice.reserved
    assert advice.frees is not None and 0.8 * big < advice.frees < big
    saved({**content, 'allocator_settings': {'expandable_segments': True}})
    assert reported(Path('x.pickle')).advice == []


def layered(layers: int, calls: int) -> dict[str, Any]:
    """``calls`` forwards of ``layers`` layers, each keeping a hidden tensor of 3 MiB and its result of 1 MiB."""
    trace, address = [], 1 << 30
    for call in range(calls):
        outer = [{'filename': '/me/train.py', 'line': 5 + call, 'name': 'main'}]
        for _ in range(layers):
            inside = [{'filename': '/me/model.py', 'line': 20, 'name': 'forward'}, *outer]
            for size, line in ((3 * MIB, 7), (MIB, 8)):
                frames = [{'filename': '/me/layer.py', 'line': line, 'name': 'forward'}, *inside]
                trace.append(event('alloc', address, size, frames, time=len(trace) + 1))
                address += size
    names = {'device': 'cuda', 'recorder': 'allocator_history', 'phases': [[0, 0, 'forward'], [10**6, 0, 'backward']]}
    return plain(*trace, **names)


def test_the_call_that_repeats_its_layers_is_found() -> None:
    (device,) = report_on(read_snapshot(layered(layers=8, calls=1))).devices
    call = device.repeated
    assert call is not None and [frame.short() for frame in call.frames] == ['model.py:20 forward']
    assert (call.calls, call.bytes, call.results, call.largest) == (8, 32 * MIB, 8 * MIB, 3 * MIB)
    assert call.frees == 21 * MIB
    assert report_on(read_snapshot(layered(layers=1, calls=1))).devices[0].repeated is None
    saved(layered(layers=8, calls=1))
    assert 'the call in model.py:20 forward' in reported(Path('x.pickle')).advice[0].what


def test_checkpoints_by_module_come_from_the_saved_tensors_with_what_they_cost() -> None:
    folder = run_of(Path('run'), 1)
    blocks = [{'name': f'blocks.{n}', 'type': 'Block', 'frees_bytes': 10 * MIB, 'recompute_ms': 5.0} for n in range(4)]
    hook = {'total_bytes': 50 * MIB, 'peak_bytes': 50 * MIB, 'modules': [], 'checkpoints': blocks}
    modules = [{'name': f'blocks.{n}', 'own_flops': 0, 'flops': 60, 'forward_flops': 10**9} for n in range(4)]
    flops = {'batch_flops': 12 * 10**9, 'hardware_flops': None, 'mfu': None, 'hfu': None, 'modules': modules}
    write_files(folder, 0, {'saved_tensors_hook': ('s.json', hook), 'flops': ('f.json', flops)})
    advice = reported(folder).advice[0]
    assert advice.what == 'Checkpoint the activations of blocks.* (4 Blocks).'
    assert advice.frees == 30 * MIB, 'one block is computed again at a time'
    assert advice.costs == '4.0 GFLOP more a batch (33 %); their forward took 20 ms'


def test_an_unsharded_model_on_several_ranks_leads_to_fsdp() -> None:
    what = 'Shard the model over the 4 ranks with FSDP.'
    (advice,) = [each for each in reported(run_of(Path('run'), 4)).advice if each.what == what]
    assert advice.frees == 60 * MIB
    assert not [each for each in reported(run_of(Path('one'), 1)).advice if 'FSDP' in each.what]


@pytest.mark.skipif(not REAL.is_dir(), reason='the snapshots of a real GPU are not here')
def test_snapshots_of_a_real_gpu_say_what_to_change() -> None:
    forward = reported(REAL / 'gpt_ctx128_forward.pickle').advice
    assert [each.what for each in forward] == ['Checkpoint the activations of the call in transformer.py:292 forward.']
    # The same training, its blocks checkpointed, on a simulated GPU: 14,064,433,152 B at the peak, 5.43 GB less.
    assert forward[0].frees == pytest.approx(19_498_420_224 - 14_064_433_152, rel=0.05)
    step = reported(REAL / 'gpt_ctx128_fullstep.pickle').advice
    assert 'expandable_segments:True' in step[0].what


# -- the command and the page -----------------------------------------------------------------------------------------


def test_the_command_prints_the_verdict_and_writes_the_page_into_the_runs_folder() -> None:
    run_of(Path('run'), 4, rank2=2.0)
    result = run('report', 'run')
    assert result.returncode == 0, result.stdout
    assert result.stdout.startswith('made-up: 4 ranks\n  Rank 2 differs')
    assert result.stdout.endswith('open in a browser: run/report.html\n') and Path('run/report.html').is_file()
    as_json = run('report', 'run', '--json')
    values = json.loads(as_json.stdout)
    assert values['odd_ranks'][0]['rank'] == 2 and values['verdict'][0]['about'] == 'rank'
    assert values['figures'][0]['ranks'] == [0, 1, 2, 3]
    again = run('report', 'run', '-o', 'elsewhere/page.html')
    assert again.returncode == 0 and Path('elsewhere/page.html').is_file()


def test_ls_lists_the_files_and_those_of_many_ranks_in_short() -> None:
    run_of(Path('run'), 2)
    few = ''.join(run('ls', 'run').stdout.replace('│', '').split())  # long names are folded
    assert 'rank0.9.memory_snapshot.summary.json' in few and 'fsdp_mem_rank_1_train_9.json' in few
    assert len(json.loads(run('ls', 'run', '--json').stdout)) == 4
    run_of(Path('many'), 200)
    many = run('ls', 'many').stdout
    assert many.count('\n') < 15 and many.count('200') == 2
    assert run('ls', 'missing').returncode == 2


def test_watch_shows_the_verdict_and_ends_with_the_run() -> None:
    folder = run_of(Path('run'), 3, rank2=2.0)
    assert goes_on(Path('missing')) is None and goes_on(folder) is True, 'a fresh manifest'
    for path in folder.glob('*.manifest.jsonl'):
        os.utime(path, (1, 1))
    manifest = Manifest.acquire(folder, 1)
    manifest.open()
    assert goes_on(folder) is True
    manifest.release()
    assert goes_on(folder) is False
    shown = run('watch', 'run').stdout
    assert 'has ended' in shown and 'Rank 2 differs' in shown


def test_watch_says_the_batch_and_the_speed_from_the_files_that_grow() -> None:
    folder = run_of(Path('run'), 2)
    assert progress_of(find_files([folder]).artifacts) is None
    for rank in range(2):
        lines = [{'batch': batch, 'time': batch / 2, 'total': 0.5, 'samples': 4} for batch in range(20 + rank)]
        text = '\n'.join(map(json.dumps, lines)) + '\n{"batch": 99, "tot'
        write_files(folder, rank, {'step_times': (f's{rank}.jsonl', text)}, status='open')
    assert progress_of(find_files([folder]).artifacts) == Progress(19, 20, 0.5, 8.0)
    for path in folder.glob('*.manifest.jsonl'):
        os.utime(path, (1, 1))
    assert 'has ended; batch 19 to 20, 500.0 ms a batch, 8.0 samples/s a rank' in run('watch', 'run').stdout
    host = [{'event': 'sample', 'batch': batch, 'time': 100 + 0.25 * batch, 'rss': 1} for batch in (4, 8)]
    write_files(run_of(Path('other'), 1), 0, {'host_rss': ('h.jsonl', '\n'.join(map(json.dumps, host)))})
    assert progress_of(find_files([Path('other')]).artifacts) == Progress(8, 8, 0.25, None)


def test_every_file_that_cannot_be_read_is_named_up_to_ten() -> None:
    folder = run_of(Path('run'), 1)
    for number in range(12):
        write_files(folder, 0, {'flops': (f'f{number}.json', 'no')})
    (text,) = said(reported(folder), 'files')
    assert text.count('.json') == 10 and text.endswith(', and 2 more.')


def test_speed_is_the_median_of_the_ranks() -> None:
    folder = run_of(Path('run'), 3)
    for rank, seconds in enumerate((0.5, 0.6, 3.0)):
        times = {'batches': 9, 'seconds': {'total': {'p50': seconds}}, 'share': {'dataloader': seconds / 10}}
        flops = {'batch_flops': 1, 'hardware_flops': 1, 'mfu': seconds / 10, 'hfu': None, 'modules': None}
        write_files(folder, rank, {'step_times.summary': (f's{rank}.json', times), 'flops': (f'f{rank}.json', flops)})
    assert said(reported(folder), 'speed') == [
        'Model FLOPs utilization (MFU) is 6.0 %, the median batch takes 600.0 ms and 6 % of the time is spent waiting '
        'for data. These are medians of the ranks.'
    ]


def test_no_name_of_a_run_becomes_part_of_the_page_or_a_scheme() -> None:
    folder = Path('run')
    folder.mkdir()
    evil = snapshot_summary(0, meta={**snapshot_summary(0)['meta'], 'simulated': HOSTILE})
    evil['devices'][0]['modules'] = {HOSTILE: 90 * MIB}
    write_files(folder, 0, {'memory_snapshot.summary': ('javascript:alert(1)', evil)}, run_name=HOSTILE, batch=10)
    write_files(folder, 1, {'memory_snapshot.summary': ('b.json', snapshot_summary(1))}, run_name=HOSTILE, batch=10)
    write_run_page(reported(folder), Path('run/report.html'))
    page = Path('run/report.html').read_text()
    assert '<img' not in page.replace(re.search('<script>.*?</script>', page, re.S)[0], '')  # type: ignore[index]
    assert 'href="javascript%3Aalert%281%29"' in page


def trained(folder: Path) -> Path:
    """Four ranks, one with sequences twice as long, under the callbacks whose figures a report compares."""
    Path('train.py').write_text(
        textwrap.dedent("""
        import torch
        from composer import Trainer
        from composer.utils import dist
        from torch.utils.data import DataLoader
        from composer_memprof import FSDPMemTracker, Flops, HostRSS, MemorySnapshot, SavedTensorsHook, StepTimes
        from composer_memprof.examples.byte_gpt import ByteGPT

        dist.initialize_dist('cpu')
        length = 64 * (2 if dist.get_global_rank() == 2 else 1)
        tokens = torch.randint(0, 255, (64, length), generator=torch.Generator().manual_seed(0))
        lines = [{'input_ids': line, 'labels': line} for line in tokens]
        loader = DataLoader(lines, batch_size=2, sampler=dist.get_sampler(lines, shuffle=False))
        model = ByteGPT(d_model=64, n_heads=2, n_layers=3, max_seq_len=128)
        window = {'skip': '2ba', 'active': '1ba'}
        callbacks = [
            MemorySnapshot(schedule=window, folder='run'),
            FSDPMemTracker(schedule={'skip': '4ba', 'active': '1ba'}, folder='run'),
            SavedTensorsHook(schedule={'skip': '5ba', 'active': '1ba'}, folder='run'),
            *(callback(folder='run') for callback in (HostRSS, Flops, StepTimes)),
        ]
        Trainer(
            model=model, train_dataloader=loader, max_duration='7ba', callbacks=callbacks, device='cpu',
            optimizers=torch.optim.AdamW(model.parameters()), progress_bar=False, run_name='odd-rank',
        ).fit()
        """)
    )
    command = [sys.executable, '-m', 'composer.cli', '-n', '4', 'train.py']
    environment = {**child_environment(), 'OMP_NUM_THREADS': '1'}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


@pytest.mark.dist
def test_of_four_ranks_that_trained_the_one_with_longer_sequences_is_named(visit: Callable[..., Any]) -> None:
    folder = trained(Path('run'))
    result = run('report', str(folder))
    assert result.returncode == 0, result.stdout
    first = ' '.join(result.stdout.split('The peak')[0].split())
    assert first.startswith('odd-rank: 4 ranks Rank 2 differs: its peak of allocated memory is')
    assert '2.0 times theirs) and blocks.*' in first
    assert 'Checkpoint the activations of blocks.* (3 Blocks).' in result.stdout
    assert os.path.getsize(folder / 'report.html') < 8_000_000

    for width in (1400, 400):
        page = visit((folder / 'report.html').absolute(), width=width)
        page.wait_for_selector('.chart .main-svg')
        drawn = page.evaluate("[...document.querySelectorAll('.chart')].map((each) => each.dataset.figure)")
        assert drawn[:2] == ['over-time', 'ranks-memory-snapshot'] and 'saved' in drawn and 'steps' in drawn
        assert page.evaluate(
            "[...document.querySelectorAll('.chart')].every((each) => each.querySelector('.main-svg'))"
        )
        assert page.evaluate('document.documentElement.scrollWidth') <= width, 'the page is not wider than the window'
    page = visit((folder / 'report.html').absolute())
    page.wait_for_selector('#saved .main-svg')
    assert page.evaluate("document.querySelectorAll('.modebar-btn').length") == 0, 'none that uploads a chart'
    blocks = page.locator('#saved .slicetext', has_text='blocks').first
    until(
        page,
        "document.querySelector('[data-figure=saved]').data[0].level === 'blocks'",
        lambda: blocks.click(force=True),
    )
    # By plotly's own call: a loaded machine drops movements of the mouse.
    hover = "Plotly.Fx.hover(document.querySelector('[data-figure=over-time]'), [{curveNumber: 0, pointNumber: 20}])"
    until(
        page,
        "document.querySelector('#over-time .hoverlayer').textContent.includes('iB')",
        lambda: page.evaluate(hover),
    )
    page.emulate_media(media='print', color_scheme='dark')
    until(page, "getComputedStyle(document.querySelector('#over-time .xtick text')).fill === 'rgb(29, 35, 48)'")
    page.emulate_media(media='screen', color_scheme='light')
    page.focus('#files summary')
    page.keyboard.press('Enter')
    link = page.locator('#files a >> nth=0')
    assert (folder / link.get_attribute('href')).is_file()


def test_1024_ranks_are_reported_from_their_summaries() -> None:
    folder = run_of(Path('run'), 1024, rank700=2.0)
    report = reported(folder)
    assert [odd.rank for odd in report.odd] == [700, 700]
    write_run_page(report, Path('report.html'))
    assert os.path.getsize('report.html') < 15_000_000
    (chart,) = [chart for chart in charts_of(report) if chart.key == 'ranks-memory-snapshot']
    assert chart.words.startswith('The 64 ranks of 1,024 that differ most') and chart.data[0]['x'][0] == 'rank 700'
    assert chart.table.rows[0] == ['total: peak', '120.0 MiB', '120.0 MiB', '180.0 MiB', '700']


def test_a_run_in_a_store_is_reported_as_on_a_disk(s3: Any, s3_endpoint: str) -> None:
    folder = run_of(Path('run'), 3, rank2=2.0)
    saved(plain(event('alloc', 512, MIB, time=1)), 'run/rank0.9.memory_snapshot.pickle')
    for path in folder.iterdir():
        if 'manifest' not in path.name:  # callbacks upload none
            s3.pipe(f'runs/made/run/{path.name}', path.read_bytes())
    environment = {**child_environment(COLUMNS='160'), **s3_environment(s3_endpoint)}
    command = [sys.executable, '-m', 'composer_memprof', 'report', 's3://runs/made/run', '-o', 'page.html']
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith('run: 3 ranks\n  Rank 2 differs')
    files = Path('page.html').read_text().partition('id="files"')[2].partition('<script')[0]
    assert 'fsdp_mem_rank_0_train_9.json' in files and '<a href' not in files, 'what was fetched is gone'
    listed = subprocess.run(
        [*command[:3], 'ls', 's3://runs/made/run'], env=environment, capture_output=True, text=True, timeout=120
    )
    assert listed.stdout.splitlines()[0].rstrip() == 'Files in s3://runs/made/run', 'by name'
    assert 'fsdp_mem_rank_2_train_9.json' in listed.stdout and 'rank0.9.memory_snapshot.pickle' in listed.stdout
    for path in folder.glob('*.manifest.jsonl'):
        s3.pipe(f'runs/made/run/{path.name}', path.read_bytes())
    listed = subprocess.run(
        [*command[:3], 'ls', 's3://runs/made/run', '--json'],
        env=environment, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    (first, *_) = json.loads(listed.stdout)
    assert first['folder'] == 's3://runs/made/run' and first['entry']['bytes'] > 0, 'by the manifests'
    missing = subprocess.run(
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


def test_what_checkpointing_frees_is_of_one_microbatch() -> None:
    folder = run_of(Path('run'), 1)
    blocks = [{'name': f'blocks.{n}', 'type': 'Block', 'frees_bytes': 40 * MIB} for n in range(4)]
    hook = {'total_bytes': 200 * MIB, 'peak_bytes': 50 * MIB, 'modules': [], 'checkpoints': blocks}
    write_files(folder, 0, {'saved_tensors_hook': ('s.json', hook)})
    advice = reported(folder).advice[0]
    assert advice.frees == 30 * MIB
    assert advice.why.startswith('Of 50.0 MiB that autograd holds at once on rank 0, 40.0 MiB are saved inside')


def test_of_nested_layers_those_are_checkpointed_that_free_most() -> None:
    folder = run_of(Path('run'), 1)
    stages = [{'name': f'stages.{n}', 'type': 'Stage', 'frees_bytes': 120 * MIB} for n in range(2)]
    blocks = [{'name': f'stages.{n % 2}.blocks.{n}', 'type': 'Block', 'frees_bytes': 10 * MIB} for n in range(24)]
    hook = {'total_bytes': 250 * MIB, 'peak_bytes': 250 * MIB, 'modules': [], 'checkpoints': stages + blocks}
    write_files(folder, 0, {'saved_tensors_hook': ('s.json', hook)})
    assert reported(folder).advice[0].what == 'Checkpoint the activations of stages.*.blocks.* (24 Blocks).'


def test_a_sharded_model_and_a_sample_of_the_ranks_are_not_told_to_shard() -> None:
    folder = Path('run')
    folder.mkdir()
    for rank in range(2):
        sizes = {'ShardedParam': 20 * MIB, 'ShardedGrad': 20 * MIB, 'OptState': 40 * MIB, 'Total': 80 * MIB}
        file = {'rank': rank, 'peak': {'cpu': sizes}, 'phases': {}, 'modules': []}
        write_files(folder, rank, {'fsdp_mem_tracker.json': (f'f{rank}.json', file)})
    assert reported(folder).advice == []
    some = run_of(Path('some'), 2)
    for path in some.glob('rank1.manifest.jsonl'):
        path.write_text(path.read_text().replace('"rank": 1', '"rank": 8'))
    assert [each.what for each in reported(some).advice if 'Shard' in each.what] == []


def test_layers_that_begin_with_two_equal_stacks_are_told_apart() -> None:
    """Two linear modules of a layer have the same stack, in torch's code and in the user's."""
    trace, address = [], 1 << 30
    inside = [{'filename': '/me/model.py', 'line': 20, 'name': 'forward'}]
    for _ in range(4):
        for size, line in ((4 * MIB, 7), (3 * MIB, 9), (MIB, 7)):  # linear, GELU, linear
            frames = [{'filename': '/me/layer.py', 'line': line, 'name': 'forward'}, *inside]
            trace.append(event('alloc', address, size, frames, time=len(trace) + 1))
            address += size
    phases = [[0, 0, 'forward'], [10**6, 0, 'backward']]
    content = plain(*trace, device='cuda', recorder='allocator_history', phases=phases)
    call = report_on(read_snapshot(content)).devices[0].repeated
    assert call is not None and (call.calls, call.results, call.largest) == (4, 4 * MIB, 7 * MIB)


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


def test_a_run_that_was_killed_is_said_to_be() -> None:
    folder = run_of(Path('run'), 1)
    write_files(folder, 0, {'host_rss': ('h.jsonl', '')}, status='open')
    assert said(reported(folder), 'failure') == []
    assert said(reported(folder), 'files') == ['1 file is still open: the run goes on.'], 'its manifest is fresh'
    os.utime('run/rank0.manifest.jsonl', (1, 1))
    killed = 'were still open, and no process here writes them: the run was killed, or goes on elsewhere.'
    assert said(reported(folder))[0] == f"Rank 0's files {killed}"
    for rank in range(3):
        write_files(run_of(Path('more'), 0), rank, {'host_rss': (f'h{rank}.jsonl', '')}, status='open')
        os.utime(f'more/rank{rank}.manifest.jsonl', (1, 1))
    assert said(reported(Path('more')))[0] == f'The files of all ranks {killed}'
    write_files(Path('more'), 1, {'host_rss': ('h1.jsonl', '')})
    os.utime('more/rank1.manifest.jsonl', (1, 1))
    assert said(reported(Path('more')))[0] == f'The files of ranks 0, 2 {killed}'


def test_windows_that_were_left_out_are_counted_with_their_reasons() -> None:
    folder = run_of(Path('run'), 2)
    for rank, reason in ((0, 'no room: 3 wait'), (0, 'no room: 4 wait'), (1, 'TorchProfiler is recording')):
        left_out = {'host_rss': (f'h{rank}.{len(reason)}{reason[9]}.skipped.jsonl', '')}
        write_files(folder, rank, left_out, status='skipped', reason=reason)
    sentence = '3 windows of host_rss were left out, because no room: 4 wait; TorchProfiler is recording.'
    assert said(reported(folder), 'files') == [sentence]
    assert sentence in ' '.join(run('ls', 'run').stdout.split())
    counted = json.loads(run('report', 'run', '--json').stdout)['windows_left_out']
    assert [(each['kind'], each['count']) for each in counted] == [('host_rss', 3)]


def test_a_slow_phase_of_one_rank_is_found_where_all_wait_for_it() -> None:
    folder = Path('run')
    folder.mkdir()
    for rank in range(4):
        forward = 0.6 if rank == 1 else 0.3
        seconds = {'total': {'p50': 1.0}, 'forward': {'p50': forward}, 'backward': {'p50': 1.0 - forward}}
        write_files(
            folder, rank, {'step_times.summary': (f's{rank}.json', {'batches': 9, 'seconds': seconds, 'share': {}})}
        )
    (odd,) = reported(folder).odd
    assert (odd.rank, odd.total.name) == (1, 'forward')
    assert said(reported(folder))[0].startswith('Rank 1 differs: its forward takes 600.0 ms, 2.0 times the median of')


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
