"""Categories and modules of blocks come from phases, stacks and tensors."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from composer_memprof.analysis.memory.blocks.frames import own_frames
from composer_memprof.analysis.memory.summary import summary_of
from composer_memprof.analysis.snapshot.model import Frame
from composer_memprof.report.text.terminal.snapshot_tables import report_text
from tests.support.recordings.made_up_frames import BACKWARD, FORWARD, OPTIMIZER, PHASES, SITE, answer, device
from tests.support.recordings.snapshots import FRAME, TORCH, event, freed, plain, segment, without_stacks

LOADER = {'filename': f'{SITE}/utils/data/dataloader.py', 'line': 1, 'name': '__next__'}
TRAINER = {
    'filename': '/x/lib/python3.11/site-packages/composer/trainer/trainer.py',
    'line': 1,
    'name': '_train_microbatches',
}
ZERO_GRAD = {'filename': f'{SITE}/nn/modules/module.py', 'line': 1, 'name': 'zero_grad'}
INIT = {'filename': f'{SITE}/nn/modules/linear.py', 'line': 1, 'name': '__init__'}


def category_of(content: Any) -> tuple[str, str]:
    (holder,) = device(content).peak.holders
    return holder.category, holder.rule


@pytest.mark.parametrize(
    ('born', 'died', 'category', 'rule'),
    [
        (1, 12, 'input', 'allocated while a batch was loaded'),
        (1, 2, 'temporary', 'same phase'),
        (11, 22, 'activation', 'allocated in forward, freed in a later phase'),
        (11, 12, 'temporary', 'same phase'),
        (11, 51, 'activation', 'allocated in forward, freed in a later phase'),
        (11, None, 'kept_after_batch', 'kept after its batch'),
        (51, None, 'activation', 'in forward of the last batch, not freed'),
        (21, 22, 'temporary', 'same phase'),
        (21, 45, 'gradient', 'allocated in backward'),
        (21, None, 'gradient', 'allocated in backward'),
        (31, 32, 'temporary', 'same phase'),
        (31, None, 'optimizer_state', 'by the optimizer, not freed'),
        (31, 51, 'temporary', 'by the optimizer, freed in a later phase'),
        (41, None, 'kept_after_batch', 'between the phases'),
    ],
)
def test_phases_tell_a_category(born: int, died: int | None, category: str, rule: str) -> None:
    released = [] if died is None else freed(512, 8, [FRAME], died)
    found, told = category_of(plain(event('alloc', 512, 8, [FRAME], born), *released, phases=PHASES))
    assert found == category
    assert rule in told


def test_a_second_microbatch_does_not_make_an_activation_temporary() -> None:
    phases = [[0, 1, 'forward'], [10, 1, 'backward'], [20, 1, 'forward'], [30, 1, 'backward']]
    found, _ = category_of(plain(event('alloc', 512, 8, time=5), *freed(512, 8, time=25), phases=phases))
    assert found == 'activation'


@pytest.mark.parametrize(
    ('made', 'released', 'category'),
    [
        ([FORWARD, FRAME], [BACKWARD, FRAME], 'activation'),
        ([FORWARD, FRAME, OPTIMIZER], [BACKWARD, FRAME, OPTIMIZER], 'activation'),  # Composer's closure
        ([FORWARD, FRAME], [FRAME], 'temporary'),
        ([FORWARD, FRAME], None, 'activation'),
        ([BACKWARD, FRAME], [ZERO_GRAD, FRAME], 'gradient'),
        ([BACKWARD, FRAME], None, 'gradient'),
        ([BACKWARD, FRAME], [BACKWARD, FRAME], 'temporary'),
        ([OPTIMIZER, FRAME], None, 'optimizer_state'),
        ([FRAME, TRAINER, OPTIMIZER], None, 'unknown'),  # the batch's copy, within Composer's closure
        ([OPTIMIZER, FRAME], [OPTIMIZER, FRAME], 'temporary'),
        ([LOADER, FRAME], [FRAME], 'input'),
        ([INIT, FRAME], None, 'parameter'),
        ([FRAME], [FRAME], 'unknown'),
    ],
)
def test_stacks_tell_a_category_where_there_are_no_phases(made: Any, released: Any, category: str) -> None:
    events = [event('alloc', 512, 8, made)] + ([] if released is None else freed(512, 8, released))
    found, rule = category_of(plain(*events))
    assert found == category
    assert rule.startswith('by stack') == (category != 'unknown')
    (note,) = answer(plain(*events)).notes
    assert 'no phases' in note


def test_without_frames_where_others_have_some_it_is_a_thread_of_backward() -> None:
    content = plain(
        event('segment_alloc', 0, 4096),
        event('alloc', 1024, 1, [FORWARD, FRAME]),
        event('alloc', 512, 80, []),
        *freed(1024, 1, []),
        segments=[segment((512, 80))],
    )
    found = {holder.bytes: holder.category for holder in device(content).peak.holders}
    assert found == {80: 'gradient', 1: 'activation'}


def test_a_tensor_that_was_seen_counts_more_than_phase_and_stack() -> None:
    content = plain(
        event('alloc', 512, 100, [FORWARD, FRAME], 11),
        event('alloc', 1024, 50, [FORWARD, FRAME], 12),
        *freed(1024, 50, time=13),
        event('alloc', 1024, 60, [FORWARD, FRAME], 14),
        segments=[segment((512, 100), (1024, 60), (2048, 9))],
        phases=PHASES,
        tensors=[
            [0, 2048, 9, 'parameter', 'net.0.weight'],
            [15, 540, 20, 'gradient', 'net.1.weight'],  # a view into the block
            [15, 1024, 60, 'optimizer_state', 'net.1.weight.exp_avg'],
            [15, 4096, 60, 'input', 'of another device'],
        ],
    )
    peak = device(content).peak
    assert {share.category: share.bytes for share in peak.categories} == {
        'gradient': 100,
        'optimizer_state': 60,
        'parameter': 9,
    }
    assert {share.rules[0].rule for share in peak.categories} == {'a tensor of this category was seen in it'}
    assert {share.module: share.bytes for share in peak.modules} == {'net.1': 100, 'net.1.weight': 60, 'net.0': 9}


def test_a_block_belongs_to_the_module_that_ran() -> None:
    content = plain(
        event('alloc', 512, 3, time=5),
        {**event('alloc', 1024, 5, time=6), 'module': 'head'},
        event('alloc', 2048, 7, time=15),
        modules=[[4, 'net.0'], [10, '']],
    )
    assert {share.module: share.bytes for share in device(content).peak.modules} == {'net.0': 3, 'head': 5, '': 7}


@pytest.mark.parametrize(
    ('path', 'own'),
    [
        ('/w/site-packages/composer_memprof/callbacks/framework/closing/broken_fit.py', False),
        ('/w/composer_memprof/composer_memprof/callbacks/framework/closing/broken_fit.py', False),
        ('/w/composer_memprof/composer_memprof/cli.py', False),
        ('/w/composer_memprof/composer_memprof/examples/models.py', True),
        ('/w/composer_memprof/train.py', True),
    ],
)
def test_no_file_of_this_package_but_its_examples_is_the_users(path: str, own: bool) -> None:
    stack = (Frame(path, 1, 'f'), Frame('/w/job.py', 2, 'g'))
    assert (own_frames(stack)[0].filename == path) == own


MODULE = Frame('/v/site-packages/torch/nn/modules/module.py', 1750, '_call_impl')
BERT = Frame('/v/site-packages/transformers/models/bert/modeling_bert.py', 440, 'forward')
ENCODER = Frame('/v/site-packages/transformers/models/bert/modeling_bert.py', 669, 'forward')
LINEAR = Frame('/v/site-packages/torch/nn/modules/linear.py', 125, 'forward')
EINOPS = Frame('/v/site-packages/einops/einops.py', 80, 'rearrange')
FIT = Frame('/me/train.py', 9, 'main')


@pytest.mark.parametrize(
    ('stack', 'shown'),
    [
        ((LINEAR, MODULE, BERT, MODULE, ENCODER, MODULE, FIT), (BERT, ENCODER, FIT)),
        ((EINOPS, FIT), (FIT,)),
        ((EINOPS, MODULE, BERT, MODULE, FIT), (EINOPS, BERT, FIT)),
        ((LINEAR, MODULE, FIT, MODULE, BERT), (FIT,)),
    ],
    ids=['model', 'function', 'function of a model', 'own layer in a model'],
)
def test_the_line_of_an_installed_model_comes_before_the_line_that_trains_it(
    stack: tuple[Frame, ...], shown: tuple[Frame, ...]
) -> None:
    assert own_frames(stack) == shown


def test_the_users_own_frames_come_first_and_torchs_are_folded() -> None:
    frames = [Frame(frame['filename'], frame['line'], frame['name']) for frame in (TORCH, FRAME, BACKWARD)]
    assert own_frames(tuple(frames)) == (frames[1],)
    (holder,) = device(plain(event('alloc', 512, 8, [TORCH, FRAME, BACKWARD]))).peak.holders
    assert (len(holder.frames), holder.folded) == (1, 2)


def test_a_line_that_steps_an_optimizer_is_told_with_the_frame_of_torch_that_asked() -> None:
    state = {**OPTIMIZER, 'line': 120, 'name': '_init_group'}
    content = plain(
        event('alloc', 512, 8, [state, OPTIMIZER, FRAME]),
        event('alloc', 1024, 4, [OPTIMIZER, FRAME]),
        event('alloc', 2048, 2, [TORCH, FORWARD, FRAME]),
    )
    holders = device(content).peak.holders
    assert [(holder.bytes, holder.within and holder.within.name) for holder in holders] == [
        *((8, '_init_group'), (4, 'step'), (2, None))
    ]
    assert {holder.frames[0].name for holder in holders} == {FRAME['name']}
    assert [holder.folded for holder in holders] == [1, 0, 2]
    assert summary_of(answer(content)).devices[0].holders[0].at == [
        'adamw.py:120 _init_group',
        'train.py:7 step',
    ]


@pytest.mark.parametrize(
    'generated',
    [
        '/tmp/torchinductor_me/x4/cx4hy6kvewxjq5ioxvllhsdq5yzyrmkygpd3ww4j5vjqmcz7pvkl.py',
        '/scratch/cache/4v/c4vq2ulvwzmvyt4lrnvyhiimm27hqjlxjf2zxsfrpufrm2hzl6te.py',
        '/home/me/.triton/cache/ab12/kernel.py',
        '<eval_with_key>.3',
    ],
)
def test_code_that_a_compiler_generated_is_folded(generated: str) -> None:
    call = {'filename': generated, 'line': 7, 'name': 'call'}
    inductor = {'filename': f'{SITE}/_inductor/utils.py', 'line': 1, 'name': 'run'}
    (holder,) = device(plain(event('alloc', 512, 8, [call, inductor, FORWARD, FRAME]))).peak.holders
    assert [frame.filename for frame in holder.frames] == [FRAME['filename']]
    assert holder.category == 'activation' and holder.within is not None and holder.within.name == 'run'


def test_a_function_that_autograd_calls_in_its_thread_is_backward() -> None:
    applies = {'filename': f'{SITE}/autograd/function.py', 'line': 1, 'name': 'apply'}
    runs = {'filename': f'{SITE}/_functorch/_aot_autograd/runtime_wrappers.py', 'line': 1, 'name': 'call_func'}
    call = {'filename': '/tmp/torchinductor_me/ab/x.py', 'line': 7, 'name': 'call'}
    assert category_of(plain(event('alloc', 512, 8, [call, runs, applies])))[0] == 'gradient'
    assert category_of(plain(event('alloc', 512, 8, [applies, FRAME])))[0] == 'unknown', 'called by the user'


def test_backward_without_python_frames_is_told_by_its_node() -> None:
    names = (
        'at::_ops::bmm::call(x)',
        'torch::autograd::VariableType::bmm(x)',
        'torch::autograd::MmBackward0::apply(x)',
    )
    cpp = [{'filename': '??', 'line': 0, 'name': name} for name in names]
    (holder,) = device(plain(event('alloc', 512, 8, cpp))).peak.holders
    assert holder.within is not None and holder.within.name == 'torch::autograd::MmBackward0::apply'


def test_inspect_prints_the_frame_that_asked() -> None:
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(report_text(answer(plain(event('alloc', 512, 8, [OPTIMIZER, FRAME]), oom={'message': 'none left'}))))
    printed = console.export_text()
    assert '(in torch: torch/optim/adamw.py:1 step)' in printed
    assert 'none left' in printed


def test_where_there_is_no_stack_the_module_that_ran_is_named() -> None:
    found = answer(without_stacks())
    (device,) = found.devices
    assert [(holder.bytes >> 20, holder.category, holder.module, holder.before) for holder in device.peak.holders] == [
        (8, 'temporary', 'blocks.1', False),
        (6, 'gradient', '', False),
        (4, 'parameter', '', True),
        (2, 'temporary', 'blocks.0', False),
    ]
    console = Console(file=io.StringIO(), width=80)
    console.print(report_text(found))
    assert 'no stack; module blocks.1 ran' in console.file.getvalue()
