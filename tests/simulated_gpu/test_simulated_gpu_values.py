"""What the host reads back from a simulated GPU: what the script's own values come to, and otherwise what a training that works has."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.processes.simulated_runs import on_simulated_gpu, run_rank

OWN_VALUES = """
import torch.nn.functional as F
lengths = torch.tensor([3, 5, 2]).cuda()
found['lengths'] = [int(lengths.max()), lengths.tolist(), (lengths + 1).cpu().tolist(), lengths.float().sum().item()]
mask = torch.arange(6, device='cuda')[None] < lengths[:, None]
found['mask'] = [mask.sum(-1).tolist(), list(mask.nonzero().shape), bool(mask.all()), bool(mask.any())]
found['padded'] = list(torch.zeros(3, int(lengths.max()), device='cuda').shape)
found['one_hot'] = list(F.one_hot(lengths).shape)
found['unique'] = [each.tolist() for each in torch.unique(torch.cat([lengths, lengths]), return_counts=True)]
found['bincount'] = torch.bincount(lengths).tolist()
found['repeated'] = lengths.repeat_interleave(lengths).tolist()
# a graph's batch, as its pooling sees it
batch = torch.tensor([0, 0, 1, 2, 2, 2], device='cuda')
found['pooled'] = list(torch.randn(6, 8, device='cuda').new_zeros(int(batch.max()) + 1, 8).index_add_(0, batch, torch.randn(6, 8, device='cuda')).shape)
# in place, by views and by parts
counts = torch.zeros(4, dtype=torch.long, device='cuda')
counts.scatter_(0, torch.tensor([2], device='cuda'), 7)
counts += 1
counts[:2] *= 3
counts.view(2, 2)[1, 1] = 9
found['in place'] = counts.tolist()
labels = torch.arange(8, device='cuda').reshape(2, 4)
labels[1, 2:] = -100
found['labels'] = [labels.tolist(), (labels != -100).sum(-1).tolist(), len(labels[labels != -100])]
# as long as the masks of long sequences; and a rule for longer ones
attended = torch.ones(8, 16384, dtype=torch.long)
attended[3, 100:] = 0
attended = attended.cuda()
found['long mask'] = [attended.sum(-1)[2:4].tolist(), list(attended.nonzero().shape)]
nodes = torch.arange(1 << 18).div(1 << 12, rounding_mode='floor').cuda()
found['longer'] = [int(nodes.max()), len((torch.arange(1 << 18) % 4 == 0).repeat(8).cuda().nonzero())]
kept = torch.zeros(4, device='cuda')
kept.copy_(torch.tensor([1., 2., 3., 4.]))
alias = kept.data
alias.mul_(2)
found['alias'] = kept.tolist()
found['parameter'] = torch.nn.Parameter(torch.ones(2, device='cuda')).tolist()
with torch.inference_mode():
    steps = torch.tensor([1, 2], device='cuda')
    steps += 1
    found['inference'] = torch.cat([steps, steps]).tolist()
drawn = torch.randn(5, device='cuda')
found['sorted'] = drawn.sort()[0].tolist() == sorted(drawn.tolist())
found['printed'] = str(lengths)
torch.manual_seed(3)
first = torch.rand(1).item()
torch.manual_seed(3)
torch.randn(3, device='cuda').tolist()
found['same random numbers'] = torch.rand(1).item() == first
steps = torch.ones(3, device='cuda')
steps += 1
found['numbers'] = [(2 ** steps).tolist(), (1 - 0.5 ** steps).tolist(), (steps / 4).tolist(), torch.where(steps > 1, 7, 8).tolist()]
# what weights wrote to is no longer known
mixed = torch.zeros(4, device='cuda')
mixed += torch.nn.Linear(4, 4).cuda()(mixed).detach()
found['mixed'] = mixed.tolist()
"""


def test_what_follows_from_the_scripts_own_values_is_right(tmp_path: Path) -> None:
    found = on_simulated_gpu(tmp_path, OWN_VALUES, values=True)
    assert found['lengths'] == [5, [3, 5, 2], [4, 6, 3], 10]
    assert found['mask'] == [[3, 5, 2], [10, 2], False, True]
    assert found['padded'] == [3, 5]
    assert found['one_hot'] == [3, 6]
    assert found['unique'] == [[2, 3, 5], [2, 2, 2]]
    assert found['bincount'] == [0, 0, 1, 1, 0, 1]
    assert found['repeated'] == [3, 3, 3, 5, 5, 5, 5, 5, 2, 2]
    assert found['pooled'] == [3, 8]
    assert found['in place'] == [3, 3, 8, 9]
    assert found['labels'] == [[[0, 1, 2, 3], [4, 5, -100, -100]], [4, 2], 6]
    assert found['long mask'] == [[16384, 100], [7 * 16384 + 100, 2]]
    assert found['longer'] == [63, 1 << 19]
    assert found['alias'] == [2, 4, 6, 8]
    assert found['parameter'] == [1, 1]
    assert found['inference'] == [2, 3, 2, 3]
    assert found['numbers'] == [[4] * 3, [0.75] * 3, [0.5] * 3, [7] * 3]
    assert found['sorted']
    assert found['printed'] == "tensor([3, 5, 2], device='cuda:0')"
    assert found['same random numbers']
    assert found['mixed'] == [0.5] * 4


KIND = """
import math
torch.manual_seed(0)
model = torch.nn.Linear(1000, 1000).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler = torch.amp.GradScaler('cuda')
losses, scales = [], []
for _ in range(3):
    outputs = model(torch.randn(8, 1000, device='cuda'))
    loss = outputs.square().mean()
    assert torch.isfinite(loss) and not torch.isnan(outputs).any() and torch.isfinite(outputs).all()
    assert not (loss < 1e-6) and bool(loss)
    math.log(loss), 1 / loss
    losses.append(loss.item())
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    scales.append(scaler.get_scale())
found['losses'], found['scales'] = losses, scales
boxes = torch.sigmoid(outputs[:, :4])
torch.linalg.cholesky(outputs.T @ outputs), torch.linalg.inv(outputs[:, :8])
assert (boxes[:, 2:] >= boxes[:, :2]).all()
for distribution in (
    torch.distributions.Categorical(logits=outputs),
    torch.distributions.Normal(outputs, outputs.exp()),
    torch.distributions.Bernoulli(logits=outputs),
    torch.distributions.Dirichlet(outputs.exp()),
    torch.distributions.MultivariateNormal(outputs[:, :4], torch.eye(4, device='cuda')),
):
    distribution.log_prob(distribution.sample())
found['a probability'] = outputs.softmax(-1)[0, 0].item()
found['sampled'] = list(torch.multinomial(outputs.softmax(-1), 1).shape)
# generation goes on to its longest, and ends
tokens = torch.zeros(2, 3, dtype=torch.long, device='cuda')
unfinished = torch.ones(2, dtype=torch.long, device='cuda')
while unfinished.max() != 0:
    chosen = model(torch.randn(2, 1000, device='cuda')).argmax(-1) * unfinished
    tokens = torch.cat([tokens, chosen[:, None]], dim=-1)
    ended = torch.isin(tokens[:, -1], torch.tensor([0, 1, 2], device='cuda'))
    too_long = torch.full((2,), tokens.shape[1] >= 20, device='cuda', dtype=torch.bool)
    unfinished = unfinished & ~(ended | too_long)
found['generated'] = list(tokens.shape)
"""


def test_what_nobody_can_know_is_answered_as_in_a_training_that_works(tmp_path: Path) -> None:
    found = on_simulated_gpu(tmp_path, KIND, values=True)
    first, *later = found['losses']
    assert 0.5 < later[-1] < later[0] < first < 1
    assert found['scales'] == [65536.0] * 3
    assert 0 < found['a probability'] < 1
    assert found['sampled'] == [8, 1]
    assert found['generated'] == [2, 20]


SHARDED = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group('nccl')
torch.cuda.set_device(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64)).cuda()
fully_shard(model)
scale = torch.ones((), device='cuda')
for settings in ({'fused': True}, {'foreach': True}, {'capturable': True}):
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    (model(torch.randn(8, 64, device='cuda')) * scale).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert [parameter.grad * scale for parameter in model.parameters()]
    optimizer.step()
    print(next(iter(optimizer.state.values()))['step'].item())
"""


@pytest.mark.slow
def test_known_values_meet_sharded_tensors() -> None:
    assert run_rank(SHARDED, values=True) == '1.0\n' * 3


ROUTED = """
import torch.nn.functional as F
gate = torch.nn.Linear(64, 16).cuda()
for tokens in (64, 4096):
    chosen = torch.topk(gate(torch.randn(tokens, 64, device='cuda')).softmax(-1), 4)[1]
    mask = F.one_hot(chosen, 16).permute(2, 1, 0)
    found[f'by one_hot {tokens}'] = [len(torch.where(mask[expert])[0]) for expert in range(16)]
    found[f'by mask {tokens}'] = [len((chosen == expert).nonzero()) for expert in range(16)]
    found[f'by any {tokens}'] = [len((chosen == expert).any(-1).nonzero()) for expert in range(16)]
    found[f'by bincount {tokens}'] = torch.bincount(chosen.flatten(), minlength=16).tolist()
    found[f'by histc {tokens}'] = torch.histc(chosen.float(), bins=16, min=0, max=15).tolist()
    found[f'by sum {tokens}'] = mask.sum((1, 2)).tolist()
"""


def test_tokens_are_spread_evenly_over_experts(tmp_path: Path) -> None:
    found = on_simulated_gpu(tmp_path, ROUTED, values=True)
    for tokens in (64, 4096):
        each = tokens * 4 // 16
        for how in ('one_hot', 'mask', 'any', 'bincount', 'histc', 'sum'):
            assert found[f'by {how} {tokens}'] == [each] * 16, how


L_BFGS = """
def steps_of(**settings):
    model = torch.nn.Linear(64, 1).cuda()
    x = torch.randn(32, 64, device='cuda')
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=8, history_size=6, **settings)
    calls = []
    def closure():
        calls.append(None)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss
    previous = 10.0
    for step in range(12):
        loss = optimizer.step(closure).item()
        if abs(previous - loss) < 1e-9:
            break
        previous = loss
    return step, len(calls), len(optimizer.state_dict()['state'][0]['old_dirs'])
found['plain'], found['searched'] = steps_of(), steps_of(line_search_fn='strong_wolfe')
"""


def test_l_bfgs_searches_along_a_direction_that_descends_and_fills_its_history(tmp_path: Path) -> None:
    found = on_simulated_gpu(tmp_path, L_BFGS, values=True)
    assert found['plain'] == [11, 8 * 12, 6], 'steps, forwards, and directions kept'
    step, forwards, kept = found['searched']
    assert (step, kept) == (11, 6) and 8 * 12 <= forwards <= 9 * 12


CHECKS = """
model = torch.nn.Linear(8, 8).cuda()
a, b = (model(torch.randn(2, 8, device='cuda')).sum() for _ in range(2))
assert a > b, 'underflow in a step'
assert b > a and not a > b
assert (a < b) and (a > b).item(), 'a line that reads twice'
if a > b:
    raise ValueError('a fault')
if not (a > b and b > a):
    raise ValueError('another')
found['plain'] = [bool(a > b), bool(a < 1)]
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason='Python says only which line reads')
def test_a_check_of_what_nobody_knows_finds_no_fault(tmp_path: Path) -> None:
    found = on_simulated_gpu(tmp_path, CHECKS, values=True)
    assert found['plain'] == [False, True]


ROLLOUT = """
policy = torch.nn.Linear(8, 4).cuda()
kept = []
for _ in range(60):
    logits = policy(torch.randn(2, 8, device='cuda'))
    sampled = torch.distributions.Categorical(logits=logits).sample()
    kept.append(sampled.tolist())
    if kept[-1] == [9, 9]:
        break
found['steps'] = len(kept)
"""


def test_a_check_of_torchs_own_holds_however_often_it_is_made(tmp_path: Path) -> None:
    assert on_simulated_gpu(tmp_path, ROLLOUT, values=True)['steps'] == 60
