"""The report on a run by its commands: report, ls and watch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composer_memprof import HostRSS
from composer_memprof.analysis.run_report.files import find_files
from composer_memprof.analysis.run_report.progress import Progress, progress_of
from composer_memprof.artifacts.reading.manifest import Manifest
from composer_memprof.artifacts.reading.running import goes_on
from composer_memprof.report.html.run.page import write_run_page
from composer_memprof.report.text.terminal.watching import _seen
from tests.conftest import child_environment, train, until
from tests.support.json_schemas import as_promised
from tests.support.made_up_runs import MIB, run_of, snapshot_summary, write_files
from tests.support.processes import warm_python
from tests.support.processes.ranks import run_on_ranks
from tests.support.run_reports import reported, said

HOSTILE = '</script><img src=x onerror="window.taken=1"><!--'


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, in a process of its own: it reads files in a forked child."""
    command = [sys.executable, '-m', 'composer_memprof', *arguments]
    return warm_python.run(
        command, env=child_environment(COLUMNS='160'), capture_output=True, text=True, timeout=120, check=False
    )


def test_a_folder_without_anything_and_a_path_that_is_not_there_are_one_line() -> None:
    Path('empty').mkdir()
    for path, words in (('empty', 'neither a manifest of a run nor a memory snapshot'), ('missing', 'cannot be read')):
        result = run('report', path)
        assert result.returncode in (1, 2) and words in result.stderr and result.stderr.count('\n') == 1


def test_the_command_prints_the_verdict_and_writes_the_page_into_the_runs_folder() -> None:
    run_of(Path('run'), 4, rank2=2.0)
    result = run('report', 'run')
    assert result.returncode == 0, result.stdout
    assert result.stdout.startswith('made-up: 4 ranks\n  Rank 2 differs')
    assert result.stdout.endswith('open in a browser: run/report.html\n') and Path('run/report.html').is_file()
    as_json = run('report', 'run', '--json')
    values = as_promised('report', as_json.stdout)
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
    assert goes_on(Path('missing')) is None and goes_on(folder) is False, 'a moment after its last line'
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


def test_no_name_of_a_run_becomes_part_of_the_page_or_a_scheme() -> None:
    folder = Path('run')
    folder.mkdir()
    evil = snapshot_summary(0, meta={**snapshot_summary(0)['meta'], 'simulated': HOSTILE})
    evil['devices'][0]['modules'] = {HOSTILE: 90 * MIB}
    write_files(folder, 0, {'memory_snapshot.summary': ('javascript:alert(1)', evil)}, run_name=HOSTILE, batch=10)
    write_files(folder, 1, {'memory_snapshot.summary': ('b.json', snapshot_summary(1))}, run_name=HOSTILE, batch=10)
    write_run_page(reported(folder), Path('run/report.html'))
    page = Path('run/report.html').read_text()
    assert '<img' not in page
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
    run_on_ranks(Path('train.py').absolute(), ranks=4)
    return folder


@pytest.mark.slow
@pytest.mark.dist
def test_of_four_ranks_that_trained_the_one_with_longer_sequences_is_named(visit: Callable[..., Any]) -> None:
    folder = trained(Path('run'))
    result = run('report', str(folder))
    assert result.returncode == 0, result.stdout
    first = ' '.join(result.stdout.split('The peak')[0].split())
    assert first.startswith('odd-rank: 4 ranks Rank 2 differs: its peak of allocated memory is')
    assert '2.0 times theirs) and blocks.*' in first
    assert 'Checkpoint' not in result.stdout, 'a few MiB in a process of hundreds'
    assert os.path.getsize(folder / 'report.html') < 8_000_000

    for width in (1400, 400):
        page = visit((folder / 'report.html').absolute(), width=width)
        page.wait_for_selector('.chart .main-svg')
        drawn = page.evaluate("[...document.querySelectorAll('.chart')].map((each) => each.dataset.figure)")
        assert drawn[:2] == ['over-time', 'ranks-memory-snapshot'] and 'saved' in drawn and 'steps' in drawn
        until(page, "[...document.querySelectorAll('.chart')].every((each) => each.querySelector('.main-svg'))")
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


def test_windows_that_were_left_out_are_counted_with_their_reasons() -> None:
    folder = run_of(Path('run'), 2)
    for rank, reason in ((0, 'no room: 3 wait'), (0, 'no room: 4 wait'), (1, 'TorchProfiler is recording')):
        left_out = {'host_rss': (f'h{rank}.{len(reason)}{reason[9]}.skipped.jsonl', '')}
        write_files(folder, rank, left_out, status='skipped', reason=reason)
    sentence = '3 windows of host_rss were left out, because no room: 4 wait; TorchProfiler is recording.'
    assert said(reported(folder), 'files') == [sentence]
    assert sentence in ' '.join(run('ls', 'run').stdout.split())
    counted = as_promised('report', run('report', 'run', '--json').stdout)['windows_left_out']
    assert [(each['kind'], each['count']) for each in counted] == [('host_rss', 3)]


def test_the_page_replaces_a_link_and_leaves_what_it_leads_to_alone() -> None:
    folder = run_of(Path('run'), 2)
    Path('precious').write_text('mine')
    (folder / 'report.html').symlink_to(Path('precious').absolute())
    assert run('report', str(folder)).returncode == 0
    assert Path('precious').read_text() == 'mine'
    assert not (folder / 'report.html').is_symlink() and 'made-up' in (folder / 'report.html').read_text()


SMALL_DISK = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
from composer_memprof.cli import main
main()
"""


def test_a_page_for_which_the_disk_has_no_room_leaves_the_older_one_whole() -> None:
    folder = run_of(Path('run'), 2)
    (folder / 'report.html').write_text('the older page')
    before = sorted(folder.iterdir())
    arguments = [sys.executable, '-c', SMALL_DISK, 'report', str(folder)]
    done = warm_python.run(arguments, env=child_environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count('\n') == 1 and 'cannot be written: File too large' in done.stderr
    assert (folder / 'report.html').read_text() == 'the older page'
    assert sorted(folder.iterdir()) == before


def test_watch_says_how_a_run_ended_and_that_its_folder_is_not_there() -> None:
    train(HostRSS(folder='run'), batches=2)
    assert 'the run in run has ended' in (shown := run('watch', 'run').stdout) and '; it finished' in shown
    (seen,) = _seen(Path('nowhere'), None).plain.splitlines()  # type: ignore[union-attr]
    assert seen.endswith('the run in nowhere waits for its folder, which does not exist')


READING = """
import contextlib, io, sys
from composer_memprof.cli import main
for command in ('report run', 'report run other', 'ls run', 'inspect run', 'diff run other', 'guide index'):
    sys.argv = ['composer-memprof', *command.split()]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main()
    assert not {'torch', 'composer'} & sys.modules.keys(), command
"""


@pytest.mark.slow
def test_commands_that_read_import_neither_torch_nor_composer() -> None:
    """Either takes seconds."""
    run_of(Path('run'), 2)
    run_of(Path('other'), 2)
    done = subprocess.run([sys.executable, '-c', READING], capture_output=True, text=True, env=child_environment())
    assert done.returncode == 0, done.stderr
