"""The command of one rank, from the command that launches all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from composer_memprof.simulated_gpu.launchers.unwrapping import Launch, NotUnwrappedError, unwrapped


def command(line: str) -> list[str]:
    return line.replace('PYTHON', sys.executable).split()


@pytest.mark.parametrize(
    ('line', 'wanted', 'ranks', 'on_node'),
    [
        ('composer -n 4 train.py --lr 1 -n 7', 'PYTHON -u train.py --lr 1 -n 7', 4, 4),
        ('composer train.py', 'PYTHON -u train.py', 8, 8),
        ('composer --nproc 8 --world_size 64 --node_rank 1 -m my.train x=1', 'PYTHON -u -m my.train x=1', 64, 8),
        ('composer -n 2 -c llmfoundry train mpt.yaml', 'llmfoundry train mpt.yaml', 2, 2),
        ('PYTHON -m composer.cli.launcher -n 2 train.py', 'PYTHON -u train.py', 2, 2),
        ('torchrun --nproc_per_node 4 --nnodes 2 train.py --lr 1', 'PYTHON -u train.py --lr 1', 8, 4),
        ('torchrun --standalone --nproc-per-node=gpu train.py', 'PYTHON -u train.py', 8, 8),
        ('torchrun --nproc-per-node auto --nnodes 1:4 -m my.train', 'PYTHON -u -m my.train', 32, 8),
        ('torchrun --nproc-per-node 2 --no-python bash run.sh', 'bash run.sh', 2, 2),
        ('torchrun --nnodes 2 --node-rank 1 --nproc-per-node 4 train.py', 'PYTHON -u train.py', 8, 4),
        ('PYTHON -m torch.distributed.launch --use-env --nproc-per-node 2 a.py b', 'PYTHON -u a.py b', 2, 2),
        ('PYTHON -m torch.distributed.launch --nproc-per-node 2 a.py b', 'PYTHON -u a.py --local-rank=0 b', 2, 2),
        ('PYTHON -X dev -m torch.distributed.run train.py a', 'PYTHON -X dev -u train.py a', 1, 1),
    ],
)
def test_a_launchers_command_becomes_that_of_one_rank(line: str, wanted: str, ranks: int, on_node: int) -> None:
    launched = unwrapped(command(line))
    # a launcher that is installed here is followed by the Python beside it
    python = [sys.executable if Path(word).name.startswith('python') else word for word in launched.command]
    assert (python, launched.ranks, launched.ranks_per_node) == (command(wanted), ranks, on_node)


@pytest.mark.parametrize(
    'line', ['PYTHON train.py -n 4', 'PYTHON -m my.train', './run.sh torchrun', 'PYTHON -c print()']
)
def test_another_command_stays_as_it_is(line: str) -> None:
    assert unwrapped(command(line)) == Launch(command(line))


def test_a_launcher_that_is_told_no_number_starts_as_many_as_the_node_has() -> None:
    assert unwrapped(['torchrun', '--nproc-per-node=gpu', 'train.py'], ranks_per_node=4).ranks == 4


def test_composers_arguments_are_expanded_for_the_rank() -> None:
    launched = unwrapped(['composer', '-n', '4', '--world_size', '8', 'train.py', '$RANK', 'node${NODE_RANK}'], rank=6)
    assert launched.command[-2:] == ['6', 'node1']


@pytest.mark.parametrize(
    ('line', 'reason'),
    [
        ('mpirun -n 4 python train.py', 'mpirun is not simulated: leave it out'),
        ('torchrun --nproc-per-node many train.py', "--nproc-per-node='many' must be a number"),
        ('composer -n 8 --world_size 12 train.py', 'ranks=12 must be a multiple of ranks_per_node=8'),
    ],
)
def test_what_can_not_be_told_is_said_in_one_line(line: str, reason: str) -> None:
    with pytest.raises(NotUnwrappedError) as raised:
        unwrapped(command(line))
    assert reason in str(raised.value) and '\n' not in str(raised.value)


def test_a_launchers_own_complaint_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        unwrapped(['torchrun', '--nproc-per-nod', 'train.py'])
    assert 'usage:' in capsys.readouterr().err
