"""The report on a run: which ranks differ."""

from __future__ import annotations

from pathlib import Path

from composer_memprof.analysis.module_names import layer_name
from composer_memprof.analysis.run_report.differences import odd_ranks, rank_tables
from composer_memprof.analysis.run_report.figures import Figures
from composer_memprof.report.text.sentences.run_verdict import verdict
from tests.support.made_up_runs import run_of, write_files
from tests.support.run_reports import reported, said


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
    assert said(reported(folder))[0] == (
        'The other ranks wait for rank 1: its forward takes 600.0 ms of each batch, theirs 300.0 ms.'
    )
