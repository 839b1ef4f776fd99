"""``simulate``: what a script reads back is computed or guessed, and a guess that could change the figures is named."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import load_snapshot
from tests.support.processes.simulated_runs import MIB, result_of, simulate

PADDED = """
import torch
lengths = torch.tensor([3, 700, 5]).cuda()
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
outputs = model(torch.randn(3, int(lengths.max()), 1024, device='cuda'))
kept = outputs[outputs > 2]
loss = kept.sum()
loss.backward()
optimizer.step()
assert torch.isfinite(loss)
print(tuple(outputs.shape), len(kept))
"""


@pytest.mark.slow
def test_sizes_that_follow_from_the_scripts_own_values_are_right() -> None:
    Path('train.py').write_text(PADDED)
    assert simulate('--', 'python', 'train.py').stdout.startswith('(3, 700, 1024)')
    zeros = simulate('--no-values', '--', 'python', 'train.py')
    assert zeros.returncode == 1 or zeros.stdout.startswith('(3, 0, 1024)'), 'as without values'


def test_a_guess_that_decides_a_size_is_named_and_can_be_given() -> None:
    Path('train.py').write_text(PADDED)
    shown = simulate('--', 'python', 'train.py').stdout
    assert 'Guessed: train.py:7 kept 2150400 of 2150400 elements; --kept train.py:7=PART says which part' in ' '.join(
        shown.split()
    )
    given = result_of('--kept', 'train.py:7=0.25', '--', 'python', 'train.py')
    assert given['verdict'] == 'fits' and given['follows_values']
    (read,) = (read for read in given['reads'] if read['place'].endswith('train.py:7'))
    assert read['value'] == '537600 of 2150400'
    assert given['unused'] == [] and read['sure'] == 1, 'what is given is no guess'
    whole = result_of('--', 'python', 'train.py')
    assert given['processes'][0]['devices'][0]['allocated'] < whole['processes'][0]['devices'][0]['allocated'] - MIB


def test_a_part_for_a_line_finds_it_by_any_path_and_says_where_no_mask_is() -> None:
    Path('train.py').write_text(PADDED)
    beside = result_of('--kept', './train.py:7=0.25', '--kept', 'train.py:8=0.5', '--', 'python', 'train.py')
    assert [read['value'] for read in beside['reads'] if read['place'].endswith('train.py:7')] == ['537600 of 2150400']
    assert beside['unused'] == ['train.py:8']
    shown = simulate('--kept', 'train.py:8=0.5', '--', 'python', 'train.py').stdout
    assert '--kept train.py:8 changed nothing: no mask was kept there, but in train.py:7' in ' '.join(shown.split())


TYPED = """
import torch

@torch.jit.script
def buckets(positions):
    middle = torch.tensor(64).type_as(positions)
    far = torch.zeros_like(positions) + torch.arange(positions.shape[0], device=positions.device)
    return torch.where(positions < middle, positions, far)

weight = torch.nn.Parameter(torch.ones(256, 1024, device='cuda'))
optimizer = torch.optim.SGD([weight], 0.1)
for step in range(3):
    rows = weight[buckets(torch.arange(128).cuda())]
    rows.sum().backward()
    optimizer.step()
"""


def test_functions_in_torchscript_are_compiled_as_without_a_simulation() -> None:
    Path('train.py').write_text(TYPED)
    found = result_of('--', 'python', 'train.py')
    assert (found['verdict'], found['processes'][0]['steps']) == ('fits', 3)


def test_a_part_for_one_line_is_refused_where_values_are_zeros() -> None:
    refused = simulate('--no-values', '--kept', 'train.py:7=0.25', '--', 'python', 'train.py')
    assert refused.returncode == 2
    assert refused.stderr == (
        'composer-memprof: --kept=train.py:7=0.25 is for one line, which --no-values does not tell apart\n'
    )
    assert simulate('--kept', '7', '--', 'python', 'train.py').returncode == 2


STEPS = """
import torch
lengths = torch.tensor([300, 700, 500])
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler = torch.amp.GradScaler('cuda')
for step in range(6):
    on_device = lengths.cuda()
    longest = int(on_device.max())
    mask = torch.arange(longest, device='cuda') < on_device[:, None]
    rows = model(torch.randn(3, longest, 1024, device='cuda'))[mask]
    assert len(rows) == 1500, len(rows)
    on_device[1:] = 7
    assert on_device.tolist() == [300, 7, 7]
    scaler.scale(rows.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 65536.0
"""


def test_values_are_right_in_the_step_that_is_timed() -> None:
    Path('train.py').write_text(STEPS)
    timed = result_of('--', 'python', 'train.py')
    assert timed['code'] == 0 and timed['time']['samples_per_second_per_gpu'], timed['stderr']


COMPILED = """
import torch
weight = torch.nn.Parameter(torch.randn(64, 64, device='cuda'))

@torch.compile(backend='eager', fullgraph=True)
def forward(x):
    positions = torch.arange(len(x), device='cuda') + torch.zeros(1, device='cuda')
    causal = torch.full((len(x), len(x)), -1.0, device='cuda').triu_().to('cuda')
    return (causal @ x @ weight + positions[:, None] + torch.ones_like(x)).sum()

optimizer = torch.optim.SGD([weight], 0.1)
for step in range(3):
    forward(torch.randn(32, 64).cuda()).backward()
    optimizer.step()
"""


def test_a_compiled_model_stays_one_graph() -> None:
    Path('train.py').write_text(COMPILED)
    compiled = result_of('--', 'python', 'train.py')
    assert (compiled['code'], compiled['verdict']) == (0, 'fits'), compiled['stderr']


TRANSFORMER = """
import torch
from torch.nn.functional import cross_entropy
layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True).cuda()
embedding, head = torch.nn.Embedding(1024, 64).cuda(), torch.nn.Linear(64, 1024).cuda()
modules = torch.nn.ModuleList([embedding, layer, head])
optimizer = torch.optim.AdamW(modules.parameters())
for _ in range(3):
    tokens = torch.randint(0, 1024, (8, 128), device='cuda')
    loss = cross_entropy(head(layer(embedding(tokens))).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_places_that_hold_memory_are_those_of_the_program_with_values_and_without() -> None:
    """What follows values passes each operator on. Its own lines are no part of the program."""
    Path('train.py').write_text(TRANSFORMER)
    found: dict[str, Counter[tuple[str, str, str]]] = {'--values': Counter(), '--no-values': Counter()}
    for option in found:
        done = simulate(option, '--folder', option[2:], '--', 'python', 'train.py')
        assert done.returncode == 0, done.stderr
        snapshot = load_snapshot(Path(option[2:], 'rank0.memory_snapshot.pickle'))
        for holder in report_on(snapshot).devices[0].peak.holders:
            place = str(holder.frames[0]) if holder.frames else 'no stack'
            found[option][place, str(holder.within), holder.category] += holder.bytes
    assert found['--values'] == found['--no-values']
    assert len(found['--values']) > 5


ON_DEVICE = """
import torch
with torch.device('cuda'):
    widths = (torch.arange(4) * 8 + 16).int()
    assert widths.tolist() == [16, 24, 32, 40] and int(widths.cpu().max()) == 40
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        loss = model(torch.ones(8, 64)).sum()
        assert loss > -1e9 and torch.isfinite(loss)
        loss.backward()
        optimizer.step()
"""


def test_values_are_read_where_new_tensors_are_made_on_the_device() -> None:
    Path('train.py').write_text(ON_DEVICE)
    found = result_of('--', 'python', 'train.py')
    assert (found['verdict'], found['processes'][0]['steps']) == ('fits', 3)


FOR_EACH_SAMPLE = """
import torch
from torch.func import functional_call, grad, vmap
model = torch.nn.Linear(64, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
samples, classes = torch.randn(32, 64).cuda(), torch.randint(0, 10, (32,)).cuda()
def loss(parameters, sample, label):
    found = functional_call(model, parameters, (sample[None],))
    return torch.nn.functional.cross_entropy(found, label[None])
for step in range(3):
    weights = {name: each.detach() for name, each in model.named_parameters()}
    gradients = vmap(grad(loss), (None, 0, 0))(weights, samples, classes)
    assert gradients['weight'].shape == (32, 10, 64)
    for name, each in model.named_parameters():
        each.grad = gradients[name].mean(0)
    optimizer.step()
"""


def test_gradients_for_each_sample_by_functions_of_functions_run() -> None:
    Path('train.py').write_text(FOR_EACH_SAMPLE)
    found = result_of('--', 'python', 'train.py')
    assert (found['verdict'], found['processes'][0]['steps']) == ('fits', 3)
