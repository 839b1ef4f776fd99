"""The clocks of a simulated GPU: what overlaps, what waits, and what a launch costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from composer_memprof.simulated_gpu.devices import device_names, find_device
from composer_memprof.simulated_gpu.durations.collectives import collective_seconds
from composer_memprof.simulated_gpu.durations.memory import Memory
from composer_memprof.simulated_gpu.durations.operators import Durations
from composer_memprof.simulated_gpu.durations.products import Products
from composer_memprof.simulated_gpu.rates import (
    KERNEL,
    LAUNCH,
    MEMORY_REACHED,
    OPERATOR,
    UNALIGNED_REACHED,
    UnknownRateError,
    rates_of,
)
from tests.support.processes.simulated_runs import on_simulated_gpu

STREAMS = """
from composer_memprof.simulated_gpu import clocks
from composer_memprof.simulated_gpu.clocks import Kind
from composer_memprof.simulated_gpu.rates import rates_of

x, side = torch.zeros(8, device='cuda'), torch.cuda.Stream()
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record(), end.record()
found['without clocks'] = start.elapsed_time(end)

def launch(seconds, of_operator=True):
    x + 1
    _, operated, took = clocks.of_operators()
    (operated if of_operator else took)(seconds, Kind.OTHER_KERNELS, 0)

clocks.start(rates_of('a100-80gb'))
start.record()
launch(2.0)
with torch.cuda.stream(side):
    launch(3.0)
end.record()
found['one stream'] = start.elapsed_time(end) / 1000
found['both'] = clocks.elapsed()
torch.cuda.current_stream().wait_stream(side)
launch(1.0)
end.record()
found['after waiting'] = start.elapsed_time(end) / 1000
x.view(2, 4)
clocks.of_operators()[1](9.0, Kind.OTHER_KERNELS, 0)
found['a view'] = clocks.elapsed()
torch.cuda.synchronize()
launch(0.0)
found['after a synchronization'] = clocks.elapsed()
stream = torch.cuda.current_stream().cuda_stream
found['waited'] = clocks.spent(stream)[Kind.WAITING_FOR_STREAMS]

clocks.start(rates_of('a100-80gb'))
for _ in range(1000):
    launch(0.0)
found['bound by operators'] = clocks.elapsed()
found['launches'], found['unknown'] = clocks.counts()
for _ in range(1000):
    launch(0.0, of_operator=False)
found['bound by launches'] = clocks.elapsed() - found['bound by operators']
before = clocks.elapsed()
end = clocks.collective(7, stream, 0.5)
launch(0.25)
found['overlaps a collective'] = clocks.elapsed() - before
clocks.wait(stream, end)
launch(0.25)
found['waits for it'] = clocks.elapsed() - before
clocks.stop()
"""


def test_streams_overlap_unless_they_wait_and_events_and_the_host_see_it(tmp_path: Path) -> None:
    found = on_simulated_gpu(tmp_path, STREAMS)
    assert found['without clocks'] == pytest.approx(0.01)
    seconds = {
        'one stream': 2.0,
        'both': 3.0,
        'after waiting': 4.0,
        'a view': 4.0,
        'after a synchronization': 4.0,
        'waited': 1.0,
    }
    assert {name: found[name] for name in seconds} == pytest.approx(seconds, abs=0.001)
    assert found['bound by operators'] == pytest.approx(1000 * (LAUNCH + OPERATOR), rel=0.01)
    assert found['bound by launches'] == pytest.approx(1000 * LAUNCH, rel=0.01)
    assert (found['launches'], found['unknown']) == (1000, 0)
    assert found['overlaps a collective'] == pytest.approx(0.5, abs=0.001)
    assert found['waits for it'] == pytest.approx(0.75, abs=0.001)


def products(key: str) -> Products:
    device, rates = find_device(key), rates_of(key)
    return Products(rates, device.multiprocessors, Memory(rates, device.multiprocessors, device.l2_cache))


@pytest.mark.parametrize('key', device_names())
def test_every_device_of_the_table_has_rates_and_reaches_no_more_than_its_peak(key: str) -> None:
    rates = rates_of(key)
    for dtype, itemsize in (('float16', 2), ('bfloat16', 2), ('float32', 4), ('float64', 8)):
        seconds = products(key).seconds(1, 8192, 8192, 8192, dtype, itemsize, False)
        assert 0.4 * rates.peak(dtype) < 2 * 8192**3 / seconds < rates.peak(dtype)


def test_a_product_takes_whole_waves_of_tiles_and_a_small_one_the_shortest_kernel() -> None:
    seconds = products('a100-80gb').seconds
    one_wave, one_tile_more = (seconds(1, 256 * 108 + 256 * more, 128, 65536, 'bfloat16', 2, False) for more in (0, 1))
    assert 1.05 < one_tile_more / one_wave < 2
    assert seconds(1, 1, 1, 1, 'bfloat16', 2, False) < 3 * KERNEL


def test_products_outside_of_tensor_cores_reach_more_of_their_peak_and_rows_of_odd_bytes_less() -> None:
    rates, seconds = rates_of('a100-80gb'), products('a100-80gb').seconds
    sizes = (1, 8192, 8192, 8192)
    reached = {
        dtype: 2 * 8192**3 / seconds(*sizes, dtype, itemsize, False) / rates.peak(dtype)
        for dtype, itemsize in (('float32', 4), ('bfloat16', 2))
    }
    assert reached['bfloat16'] < rates.reached < reached['float32'] < rates.reached_in_float32
    odd = seconds(*sizes, 'bfloat16', 2, False, 2) / seconds(*sizes, 'bfloat16', 2, False, 16)
    assert odd == pytest.approx(1 / UNALIGNED_REACHED, rel=0.1)
    assert seconds(*sizes, 'float32', 4, False, 4) == seconds(*sizes, 'float32', 4, False, 16)


def test_bytes_that_fit_the_cache_are_quicker_the_fewer_they_are_and_others_take_the_memory_s_time() -> None:
    device, rates = find_device('l4'), rates_of('l4')
    memory = Memory(rates, device.multiprocessors, device.l2_cache)
    sizes = [1 << power for power in range(16, 32)]
    rate = [size / memory.seconds(size) for size in sizes]
    assert rate == sorted(rate, reverse=True) and rate[0] > 4 * rate[-1]
    assert rate[-1] == pytest.approx(rates.memory * MEMORY_REACHED)
    assert Memory(rates, device.multiprocessors, 0).seconds(1) == pytest.approx(1 / rate[-1])


def test_compiled_code_pads_rows_of_odd_bytes_where_that_is_quicker() -> None:
    durations = Durations(rates_of('a100-80gb'), 108, 8, 40 << 20)

    def seconds(operation: Any, rows: int, columns: int) -> float:
        left, right = (
            torch.empty(*sizes, dtype=torch.bfloat16, device='meta') for sizes in ((rows, 768), (768, columns))
        )
        result = torch.empty(rows, columns, dtype=torch.bfloat16, device='meta')
        keywords = {'out': result} if operation is torch.ops.aten.mm.out else {}
        return durations.of(operation, (left, right), keywords, result)[0]

    mm = torch.ops.aten.mm
    assert seconds(mm.out, 16384, 50257) < 1.2 * seconds(mm.out, 16384, 50304) < seconds(mm.default, 16384, 50257)
    assert seconds(mm.out, 16, 65) == seconds(mm.default, 16, 65)


def test_a_convolution_on_tensor_cores_is_quicker_with_the_channels_last() -> None:
    durations = Durations(rates_of('a100-80gb'), 108, 8, 40 << 20)

    def seconds(dtype: torch.dtype, layout: torch.memory_format) -> float:
        images = torch.empty(64, 64, 56, 56, dtype=dtype, device='meta').to(memory_format=layout)
        return durations.convolution(images, torch.empty(64, 64, 3, 3, dtype=dtype, device='meta'), images, 1)[0]

    half, double = (
        seconds(dtype, torch.contiguous_format) / seconds(dtype, torch.channels_last)
        for dtype in (torch.float16, torch.float64)
    )
    assert half > 1.3 and double == 1


def test_a_collective_takes_longer_between_nodes_and_with_more_ranks() -> None:
    rates = rates_of('a100-80gb')
    within = collective_seconds(rates, 10**9, 8, between_nodes=False)
    assert within < collective_seconds(rates, 10**9, 8, between_nodes=True)
    assert within < collective_seconds(rates, 10**9, 64, between_nodes=False)


def test_nothing_is_known_of_a_data_type_that_a_device_has_not_or_of_a_device_by_hand() -> None:
    with pytest.raises(UnknownRateError, match='float8_e4m3fn'):
        rates_of('a100-80gb').peak('float8_e4m3fn')
    with pytest.raises(UnknownRateError):
        rates_of('24gb-sm80')


WATCHED = """
from composer_memprof.simulated_gpu.launches import launching

def names_of(function):
    seen = []
    stop = launching.watch(lambda operator: lambda *call: seen.append((operator.name(), call)))
    try:
        function()
    finally:
        stop()
    return seen

x = torch.zeros(4, 4, device='cuda', requires_grad=True)
found['views'] = [name for name, _ in names_of(lambda: (x.t(), x[0], torch.empty(2, device='cuda'), x.detach()))]
found['parts'] = [name for name, _ in names_of(lambda: torch.nn.functional.linear(x, x))]
found['backward'] = [name for name, _ in names_of(lambda: (2 * x).sum().backward())]
with torch.autocast('cuda', dtype=torch.bfloat16):
    found['autocast'] = [str(call[0][0].dtype) for name, call in names_of(lambda: x @ x) if name == 'aten::mm']
found['afterwards'] = [name for name, _ in names_of(lambda: None)]
"""


def test_operators_that_launch_are_seen_once_in_backward_too_and_with_the_types_of_autocast(tmp_path: Path) -> None:
    found = on_simulated_gpu(tmp_path, WATCHED)
    assert found['views'] == [] and found['afterwards'] == []
    assert found['parts'] == ['aten::mm']
    assert {'aten::mul.Tensor', 'aten::sum', 'aten::ones_like'} <= set(found['backward'])
    assert found['backward'].count('aten::mul.Tensor') == 2
    assert found['autocast'] == ['torch.bfloat16']
