"""``--calibrate``: factors for the durations of the simulated GPU, from the trace or the step times of a real one."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from composer_memprof.recorders.step_times.summary import BatchTimes, StepTimesTally
from composer_memprof.simulated_gpu.calibration import Factors
from composer_memprof.simulation.calibration.calibrating import recorded_step, trace_of
from composer_memprof.simulation.calibration.classes import seconds_by_class
from tests.simulation.test_step_time import TRAINING
from tests.support.made_up_runs import write_files
from tests.support.processes.simulated_runs import plan_on_a_server, result_of, simulate


def event(category: str, name: str, start: float, duration: float, **arguments: Any) -> dict[str, Any]:
    row = {'pid': 0, 'tid': 7} if category in ('kernel', 'gpu_memcpy') else {'pid': 1, 'tid': 1}
    return {'ph': 'X', 'cat': category, 'name': name, 'ts': start, 'dur': duration, 'args': arguments, **row}


def made_up(*events: dict[str, Any]) -> Path:
    path = Path('real.json')
    path.write_text(json.dumps({'traceEvents': [{'ph': 'M', 'name': 'process_name'}, *events]}))
    return path


def test_kernels_are_told_by_the_names_that_real_ones_have() -> None:
    path = made_up(
        event('user_annotation', 'ProfilerStep#4', 0, 50),
        event('user_annotation', 'ProfilerStep#5', 50, 50),
        event('kernel', 'ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn', 0, 10),
        event('kernel', 'void cutlass::Kernel2<cutlass_80_tensorop_bf16>(Params)', 20, 15),
        event('kernel', 'cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1', 20, 5),
        event('kernel', 'void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>(Flash_fwd_params)', 30, 8),
        event('kernel', 'fmha_cutlassB_bf16_aligned_64x64_k64_sm80', 40, 2),
        event('kernel', 'ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)', 40, 6),
        event('kernel', 'void at::native::vectorized_elementwise_kernel<4>', 50, 3),
        event('kernel', 'void split_embedding_backward_kernel<fbgemm_gpu::FixedDivisor>(float)', 55, 1),
        event('gpu_memcpy', 'Memcpy HtoD (Pinned -> Device)', 60, 12),
        event('gpu_memcpy', 'Memcpy DtoD (Device -> Device)', 60, 99),
        *(event('cuda_runtime', 'cudaLaunchKernel', start, 2) for start in (0, 5, 10, 15, 80)),
    )
    found = {name: round(1e6 * seconds, 6) for name, seconds in seconds_by_class(path).items()}
    assert found == {
        'matrix_products': 15,
        'attention': 5,
        'collectives': 3,
        'other_operators': 2,
        'copies': 6,
        'host': 5,
    }


@pytest.mark.slow
def test_a_run_is_calibrated_by_the_trace_of_a_real_one_and_its_factors_are_used_again() -> None:
    Path('train.py').write_text(TRAINING)
    command = ('--', 'python', 'train.py', '9')
    plain = result_of('--gpu', 'a100-80gb', *command)
    products = plain['time']['shares']['matrix_products'] * plain['time']['step_seconds']
    others = plain['time']['shares']['other_operators'] * plain['time']['step_seconds']
    real = made_up(
        event('kernel', 'sm80_xmma_gemm_bf16bf16', 0, 2e6 * products), event('kernel', 'elementwise', 0, 1e6 * others)
    )
    ran = simulate('--gpu', 'a100-80gb', '--trace', 'step.json', '--calibrate', str(real), *command)
    assert ran.returncode == 0 and 'matrix products 2.00' in ran.stderr, ran.stderr
    kept = json.loads(Path('calibration.json').read_text())
    assert (kept['gpu'], kept['from']) == ('a100-80gb', 'real.json')
    assert kept['factors']['matrix_products'] == pytest.approx(2, rel=1e-3)
    assert kept['factors'] == {
        **asdict(Factors()),
        **{k: kept['factors'][k] for k in ('matrix_products', 'other_operators')},
    }

    again = result_of('--gpu', 'a100-80gb', '--calibrate', 'calibration.json', *command)
    calibrated = again['time']['shares']['matrix_products'] * again['time']['step_seconds']
    assert calibrated == pytest.approx(2 * products, rel=1e-3)
    assert again['processes'][0]['devices'] == plain['processes'][0]['devices'], 'memory is what it was'


def test_a_plan_takes_the_factors_too() -> None:
    Path('twice.json').write_text(json.dumps({'factors': asdict(Factors(2, 2, 2, 2, 2, 2))}))
    arguments = ('quickstart', 'model.d_model=512', '--gpu', 'a100-80gb', '--no-changes', '--json')
    once, twice = (
        json.loads(plan_on_a_server(*arguments, *more).stdout)['outcome']
        for more in ((), ('--calibrate', 'twice.json'))
    )
    assert 1.6 < twice['time']['step_seconds'] / once['time']['step_seconds'] <= 2.01
    assert twice['reserved'] == once['reserved']


def test_the_trace_of_a_run_is_that_in_its_manifest_and_a_run_without_one_says_what_is_needed() -> None:
    for name in ('run', 'other'):
        Path(name).mkdir()
    write_files(Path('run'), 0, {'torch_profiler': ('rank0.3.torch_trace.json', {'traceEvents': []})})
    found = trace_of(Path('run'))
    assert found is not None and found.name == 'rank0.3.torch_trace.json'
    write_files(Path('other'), 0, {'flops': ('rank0.3.flops.json', {})})
    assert trace_of(Path('other')) is None
    with pytest.raises(ValueError, match='must be a run with a torch trace or step times of a GPU, a trace, or a file'):
        recorded_step(Path('other'))


def step_times(clock: str, forward: float) -> dict[str, Any]:
    tally = StepTimesTally()
    for batch in range(9):
        tally.add(
            BatchTimes(batch, 0, 0.0, clock, forward + 9, None, 8.0, [forward], [0.5], 0.25, 0.0, 0.0, 0.25, 4, None)
        )
    return tally.summary(clock).as_dict()


@pytest.mark.slow
def test_the_step_times_of_a_real_run_give_one_factor_by_which_a_step_takes_as_long() -> None:
    Path('train.py').write_text(TRAINING)
    command = ('--gpu', 'a100-80gb', '--', 'python', 'train.py', '9')
    Path('run').mkdir()
    for rank, forward in enumerate((1.0, 1.25, 9.0)):
        times = step_times('cuda' if rank < 2 else 'host', forward)
        write_files(Path('run'), rank, {'step_times.summary': (f'rank{rank}.step_times.summary.json', times)})
    ran = simulate('--calibrate', 'run', *command)
    assert 'a real step takes 1.88 s' in ran.stderr, ran.stderr
    again = result_of('--calibrate', 'calibration.json', *command)
    assert again['time']['step_seconds'] == pytest.approx((1.0 + 1.25) / 2 + 0.75, rel=1e-3)


@pytest.mark.parametrize(
    ('content', 'words'),
    [
        ('{"factors": {"gemm": 2}}', "'gemm' is no class of kernels"),
        ('{"factors": {"copies": -1}}', 'copies must be 0.01 to 100, not -1'),
        ('[]', 'must hold {"factors"'),
        ('{', 'cannot be read'),
        ('{"traceEvents": []}', 'has no kernels of a GPU'),
        (None, 'has neither a manifest of a run nor a memory snapshot'),
    ],
)
def test_a_mistake_is_one_line(content: str | None, words: str) -> None:
    Path('train.py').write_text(TRAINING)
    Path('run').mkdir()
    if content is not None:
        Path('x.json').write_text(content)
    missing = simulate('--calibrate', 'nowhere', '--', 'python', 'train.py', '1')
    assert (missing.returncode, missing.stderr.count('\n')) == (2, 1) and "'nowhere' is no file" in missing.stderr
    ran = simulate('--calibrate', 'run' if content is None else 'x.json', '--', 'python', 'train.py', '1')
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1) and words in ran.stderr, ran.stderr
