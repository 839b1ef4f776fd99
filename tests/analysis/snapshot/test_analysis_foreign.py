"""Snapshots of other programs, without phases and tensors: what a block is for, by stacks and by counting."""

from __future__ import annotations

from typing import Any

import pytest

from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import load_snapshot
from tests.support.recordings.snapshots import FRAME, event, freed, plain, saved, segment

SITE = '/x/lib/python3.11/site-packages/torch'
BACKWARD_THREAD: list[Any] = []


def at(file: str, name: str) -> dict[str, Any]:
    return {'filename': f'{SITE}/{file}', 'line': 1, 'name': name}


FORWARD = [at('nn/modules/linear.py', 'forward'), FRAME]
OTHER_FORWARD = [at('nn/modules/normalization.py', 'forward'), FRAME]
ADAM = [at('optim/adamw.py', 'step'), FRAME]
SGD = [at('optim/sgd.py', 'step'), FRAME]
ZERO_GRAD = [at('optim/optimizer.py', 'zero_grad'), FRAME]
AUTOCAST_EXIT = [at('amp/autocast_mode.py', '__exit__'), FRAME]
#: Of a GPU's allocator, so that a missing stack means a thread of backward.
GPU = event('segment_alloc', 0, 1 << 30)
#: Addresses of blocks from before the recording.
BEFORE = [(1 << 20) + 4096 * number for number in range(8)]


def a_step(optimizer: Any, *more: dict[str, Any], size: int = 1024) -> list[dict[str, Any]]:
    """An activation, a gradient of ``size`` bytes, a temporary of the optimizer, and the gradient's end."""
    return [
        GPU,
        event('alloc', 1024, 700, FORWARD),
        event('alloc', 4096, size, BACKWARD_THREAD),
        *freed(1024, 700, BACKWARD_THREAD),
        event('alloc', 8192, 512, optimizer),
        *freed(8192, 512, optimizer),
        *more,
        *freed(4096, size, ZERO_GRAD),
    ]


def bytes_by_rule(content: Any) -> dict[tuple[str, str], int]:
    (device,) = report_on(load_snapshot(saved(content))).devices
    return {(share.category, rule.rule): rule.bytes for share in device.peak.categories for rule in share.rules}


def bytes_by_category(content: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for (category, _), size in bytes_by_rule(content).items():
        found[category] = found.get(category, 0) + size
    return found


def there_before(count: int, size: int = 1024) -> list[dict[str, Any]]:
    return [segment((address, size), frames=[]) for address in BEFORE[:count]]


def test_a_block_from_before_is_the_parameter_of_the_gradient_of_its_size() -> None:
    found = bytes_by_rule(plain(*a_step(ADAM), segments=[*there_before(1), segment((1 << 25, 9000), frames=[])]))
    assert found['parameter', 'from before the recording: one block for each gradient of its size'] == 1024
    assert found['unknown', 'allocated before the recording began'] == 9000, 'no gradient is as large'


def test_a_recording_in_which_the_allocator_reserves_nothing_is_of_a_gpu_too() -> None:
    found = bytes_by_category(plain(*a_step(ADAM)[1:], segments=there_before(3)))
    assert (found['parameter'], found['gradient'], found['optimizer_state']) == (1024, 1024, 2048)


def test_two_more_blocks_for_each_gradient_are_adams_state() -> None:
    found = bytes_by_category(plain(*a_step(ADAM), segments=there_before(3)))
    assert (found['parameter'], found['optimizer_state']) == (1024, 2048)


@pytest.mark.parametrize(('optimizer', 'before'), [(SGD, 3), (SGD, 2), (ADAM, 2), (ADAM, 4)])
def test_what_counting_cannot_tell_stays_unknown(optimizer: Any, before: int) -> None:
    """Two more may be a momentum and an average of the weights; with Adam, one more or three more are not its two."""
    found = bytes_by_category(plain(*a_step(optimizer), segments=there_before(before)))
    assert (found['parameter'], found['unknown']) == (1024, 1024 * (before - 1))
    assert 'optimizer_state' not in found


def test_fewer_blocks_than_gradients_are_no_parameters() -> None:
    second = event('alloc', 6144, 1024, BACKWARD_THREAD)
    steps = [*a_step(ADAM)[:3], second, *a_step(ADAM)[3:], *freed(6144, 1024, ZERO_GRAD)]
    found = bytes_by_category(plain(*steps, segments=there_before(1)))
    assert 'parameter' not in found and found['unknown'] == 1024


def test_a_recording_that_ends_in_backward_proves_no_gradient() -> None:
    found = bytes_by_category(plain(*a_step(ADAM)[:3], segments=there_before(1)))
    assert found['unknown'] == 1024


def test_tensors_that_an_optimizer_replaces_are_its_state() -> None:
    own = [{**FRAME, 'name': 'step'}, at('optim/optimizer.py', 'wrapper')]
    renewed = []
    for number, address in enumerate(BEFORE[:2]):
        renewed += [event('alloc', (1 << 22) + 4096 * number, 1024, own), *freed(address, 1024, own)]
    content = plain(*a_step(own, *renewed), segments=[segment((BEFORE[2], 1024), frames=[])])
    found = bytes_by_category(content)
    assert (found['parameter'], found['optimizer_state']) == (1024, 2048 + 1024)


def test_a_tensor_that_an_optimizer_keeps_over_a_batch_is_its_state() -> None:
    content = plain(
        *a_step(ADAM, event('alloc', 1 << 22, 3000, ADAM)),
        *a_step(ADAM)[1:],
        *freed(1 << 22, 3000, ADAM),
    )
    assert bytes_by_rule(content)['optimizer_state', 'by stack: allocated by an optimizer, kept over a batch'] == 3000


def test_what_was_there_before_and_is_freed_by_backward_or_zero_grad_is_told() -> None:
    content = plain(
        GPU,
        event('alloc', 1024, 10, FORWARD),
        event('alloc', 2048, 10, BACKWARD_THREAD),
        *freed(BEFORE[0], 5000, BACKWARD_THREAD),
        *freed(BEFORE[1], 600, ZERO_GRAD),
    )
    found = bytes_by_rule(content)
    assert found['activation', 'from before the recording: freed in backward'] == 5000
    assert found['gradient', 'from before the recording: freed by zero_grad'] == 600


def test_a_gradient_is_one_whoever_frees_it() -> None:
    steps = a_step(ADAM)[:-2] + freed(4096, 1024, [FRAME])
    assert bytes_by_category(plain(*steps, segments=there_before(1)))['gradient'] == 1024


def test_where_frees_have_no_stacks_the_allocations_around_them_tell() -> None:
    steps = a_step(ADAM) + a_step(ADAM)[1:]
    for row in steps:
        if row['action'].startswith('free'):
            row['frames'] = []
    found = bytes_by_category(plain(*steps, segments=there_before(1)))
    assert (found['gradient'], found['activation'], found['parameter']) == (1024, 700, 1024)


def test_a_free_without_a_stack_between_two_parts_decides_nothing() -> None:
    content = plain(
        GPU,
        event('alloc', 1024, 10, FORWARD),
        event('alloc', 4096, 5000, BACKWARD_THREAD),
        *freed(4096, 5000, []),  # a gradient, or the last temporary of backward
        event('alloc', 8192, 10, FORWARD),
    )
    found = bytes_by_rule(content)
    assert found['unknown', 'by stack: allocated in backward, freed in it or after it'] == 5000


def test_the_output_that_a_loop_keeps_through_backward_is_an_activation() -> None:
    content = plain(
        GPU,
        event('alloc', 1024, 5000, FORWARD),
        event('alloc', 8192, 10, BACKWARD_THREAD),
        *freed(1024, 5000, [FRAME]),
    )
    assert bytes_by_category(content)['activation'] == 5000


def test_cublas_workspace_is_a_category_by_its_function_or_its_size() -> None:
    asks = [{'filename': '??', 'line': 0, 'name': name} for name in ('at::cuda::getNewWorkspace()', 'gemm')]
    content = plain(
        GPU,
        event('alloc', 1 << 26, 33_554_432, [*asks, *FORWARD]),
        event('alloc', 1 << 27, 8_519_680, FORWARD),
        event('alloc', 1 << 28, 8_519_680, FORWARD),
        event('alloc', 8192, 10, BACKWARD_THREAD),
        *freed(1 << 28, 8_519_680, BACKWARD_THREAD),
    )
    found = bytes_by_category(content)
    assert found['workspace'] == 33_554_432 + 8_519_680
    assert found['activation'] == 8_519_680, 'it was freed later, which a workspace is not'
    on_a_cpu = plain(event('alloc', 512, 8_519_680, [FRAME]), device='cpu')
    assert bytes_by_category(on_a_cpu) == {'unknown': 8_519_680}


def test_a_weight_and_its_gradient_of_that_size_are_no_workspace() -> None:
    size = 8_519_680
    step = a_step(ADAM, event('alloc', 1 << 27, size, ADAM), event('alloc', 1 << 28, size, ADAM), size=size)
    for content in (plain(*step, segments=there_before(1, size)), plain(*step[:3], segments=there_before(1, size))):
        assert 'workspace' not in bytes_by_category(content)


def test_a_workspace_that_is_allocated_for_each_call_is_freed_by_the_next_event() -> None:
    size = 8_519_680
    call = [event('alloc', 1 << 27, size, BACKWARD_THREAD), *freed(1 << 27, size, BACKWARD_THREAD)]
    step = a_step(ADAM)
    steps = [*step[:3], *call, *step[3:-2], *call, *step[-2:]]
    rule = ('workspace', "exactly as large as cuBLAS' workspace, freed by the next event")
    assert bytes_by_rule(plain(*steps))[rule] == size
    added_to_another = bytes_by_category(plain(*steps, segments=there_before(1, size)))
    assert 'workspace' not in added_to_another, 'a weight has that size, so it may be a gradient'
    assert 'workspace' not in bytes_by_category(plain(*steps, *call[:1])), 'kept'


def test_the_copies_of_autocast_are_named() -> None:
    weight = 200_000  # bytes of its gradient
    copies = [
        event('alloc', 1024, 16, FORWARD),  # of the bias
        event('alloc', 1 << 22, weight // 2, FORWARD),
        event('alloc', 1 << 23, 600, FORWARD),  # of the input
        event('alloc', 1 << 24, weight // 2, FORWARD),  # the result, as large as the weight
        event('alloc', 1 << 25, weight // 2, OTHER_FORWARD),
        *freed(1024, 16, AUTOCAST_EXIT),
    ]
    ends = [row for place in (22, 23, 24, 25) for row in freed(1 << place, 1, BACKWARD_THREAD)]
    found = bytes_by_rule(plain(GPU, *copies, *a_step(ADAM, size=weight)[1:4], *ends, *a_step(ADAM, size=weight)[4:]))
    assert found['autocast_copy', "half of a gradient's size, in a call that copied a bias for autocast"] == weight // 2
    assert found['activation', 'by stack: allocated in forward, freed in backward'] == 600 + weight + 700
    (first,) = bytes_by_rule(plain(GPU, *copies[:1], *copies[-2:]))
    assert first == ('autocast_copy', 'by stack: freed when autocast ended')
    cast = {'filename': '??', 'line': 0, 'name': 'at::autocast::cached_cast(c10::ScalarType)'}
    of_weight, of_input = (event('alloc', 1 << place, size, [cast, *FORWARD]) for place, size in ((21, 500), (22, 64)))
    used = [row for place in (21, 22) for row in freed(1 << place, 1, BACKWARD_THREAD)]
    assert bytes_by_category(
        plain(GPU, of_weight, of_input, *a_step(ADAM, size=1000)[1:4], *used, *a_step(ADAM)[4:])
    ) == {
        'autocast_copy': 500,
        'activation': 64 + 700,
        'gradient': 1000,
    }


def test_a_module_that_moves_to_a_device_allocates_parameters() -> None:
    moves = [at('nn/modules/module.py', 'convert'), at('nn/modules/module.py', '_apply'), FRAME]
    assert bytes_by_category(plain(GPU, event('alloc', 512, 64, moves))) == {'parameter': 64}


def test_a_closure_within_an_optimizers_step_is_not_the_optimizer() -> None:
    closure = [{**FRAME, 'name': 'closure'}, at('optim/lbfgs.py', 'step'), FRAME]
    assert bytes_by_category(plain(GPU, event('alloc', 512, 64, closure))) == {'unknown': 64}
