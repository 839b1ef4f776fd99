"""``memory_budget.yaml``: a mistake is one line with the file, the key and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer_memprof.budget.file import BudgetError, add_run, read_budget
from composer_memprof.budget.measures import MEASURES

BUDGET = Path('memory_budget.yaml')


def message_for(text: str) -> str:
    BUDGET.write_text(text)
    with pytest.raises(BudgetError) as error:
        read_budget(BUDGET)
    message = str(error.value)
    assert '\n' not in message and message.startswith('memory_budget.yaml')
    return message


@pytest.mark.parametrize(
    ('run', 'said'),
    [
        ('{config: quickstart, gpus: t4}', 'runs.a.gpus is unknown; allowed are config, overrides'),
        ('{config: quickstart, gpu: t5}', "runs.a: there is no GPU named 't5'; the nearest is"),
        ('{config: quickstart, ranks: 0}', 'runs.a.ranks must be a whole number from 1, not 0'),
        ('{config: quickstart, ranks: 12, ranks_per_node: 8}', 'runs.a: '),
        ('{config: quickstart, steps: 3}', 'runs.a.steps is for a command only'),
        ('{command: python x.py, overrides: [seed=1]}', 'runs.a.overrides is for a config only'),
        ('{config: quickstart, command: python x.py}', 'runs.a must have one of config and command'),
        ('{gpu: t4}', 'runs.a must have one of config and command'),
        ('{config: quick}', "runs.a.config='quick' is not a file; allowed are everything"),
        ('{command: no-such-program x}', "runs.a.command: there is no program 'no-such-program'"),
        ("{command: 'python \"x'}", 'cannot be split into words'),
        ('{command: python x.py, kept: 2}', 'runs.a: --kept=2 must be a part from 0 to 1'),
        ('{command: python x.py, eval: 1}', 'runs.a.eval must be true or false, not 1'),
        (
            '{config: quickstart, allowed: {peak: 1 %}}',
            'runs.a.allowed.peak is unknown; allowed are allocated, reserved',
        ),
        (
            '{config: quickstart, allowed: {allocated: 30}}',
            'runs.a.allowed.allocated must be a figure such as 30 GiB, or a share above the recorded figure such as 1 %, '
            'not 30',
        ),
        ('{config: quickstart, allowed: {reserved: -1 %}}', 'runs.a.allowed.reserved must be a figure such as 30 GiB'),
        ('{config: quickstart, allowed: {reserved: 1 PB}}', 'runs.a.allowed.reserved must be a figure such as 30 GiB'),
        ('[quickstart]', 'runs.a must be a mapping such as {config: quickstart, gpu: t4}'),
    ],
)
def test_a_mistake_in_a_run_is_named(run: str, said: str) -> None:
    assert said in message_for(f'runs:\n  a: {run}\n')


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ('', 'must be a mapping with the key runs, not None'),
        ('runs: {}', 'runs must be a mapping of names to runs'),
        ('run: {}', "run is unknown; allowed are runs; did you mean 'runs'?"),
        ('runs: {a: [', 'cannot be read: '),
    ],
)
def test_a_file_that_is_no_budget_is_named(text: str, said: str) -> None:
    assert said in message_for(text)


def test_a_run_is_added_below_what_people_wrote_and_reads_as_it_was_given() -> None:
    add_run(BUDGET, 'train', {'command': "python 'my train.py' --lr 1", 'gpu': 't4'}, MEASURES[:2])
    BUDGET.write_text(BUDGET.read_text() + '    # the largest that CI trains\n')
    added = add_run(
        BUDGET, 'two words: 2', {'config': 'fsdp2', 'overrides': ['seed=1', 'callbacks=null'], 'ranks': 8}, MEASURES
    )
    runs = read_budget(BUDGET)
    assert runs['train'].command == ('python', 'my train.py', '--lr', '1')
    assert runs['two words: 2'] == added and added.overrides == ('seed=1', 'callbacks=null')
    assert set(added.allowed) == {measure.key for measure in MEASURES}
    assert '# the largest that CI trains' in BUDGET.read_text()


def test_a_run_that_cannot_be_added_at_the_end_is_to_be_written_by_hand() -> None:
    BUDGET.write_text('runs: {a: {config: quickstart}}\n')
    with pytest.raises(BudgetError) as error:
        add_run(BUDGET, 'b', {'config': 'fsdp2'}, MEASURES)
    assert 'write it there: b: {config: fsdp2}' in str(error.value)
    assert BUDGET.read_text() == 'runs: {a: {config: quickstart}}\n'
