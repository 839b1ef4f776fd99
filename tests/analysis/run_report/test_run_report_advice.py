"""The report on a run: what to change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from composer_memprof.analysis.memory.findings.repeated_calls import RepeatedCall, _same_layers
from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import read_snapshot
from tests.support.made_up_runs import MIB, run_of, write_files
from tests.support.recordings.snapshots import REAL, event, freed, plain, saved, segment
from tests.support.run_reports import reported


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


def test_layers_in_torchs_own_loop_are_named_with_the_line_of_the_model() -> None:
    content = layered(layers=8, calls=1)
    for number, row in enumerate(content['device_traces'][0]):
        row['module'] = f'net.blocks.{number // 2}.up'
        row['frames'].insert(
            1, {'filename': '/v/site-packages/torch/nn/modules/container.py', 'line': 240, 'name': 'f'}
        )
    saved(content)
    (advice,) = reported(Path('x.pickle')).advice
    assert advice.what == 'Checkpoint the activations of net.blocks.*, called in model.py:20 forward.'


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


def test_a_line_within_a_layer_is_not_the_line_that_calls_the_layers() -> None:
    whole = RepeatedCall([], 'blocks.*', calls=4, bytes=80, results=12, largest=8)
    assert _same_layers(replace(whole, bytes=76), whole), 'the line outside of it allocates a little more'
    assert not _same_layers(replace(whole, bytes=24), whole), 'a line of each block'
    assert not _same_layers(replace(whole, modules=''), replace(whole, modules=''))
