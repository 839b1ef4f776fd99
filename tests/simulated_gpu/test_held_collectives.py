"""What an asynchronous collective keeps on a simulated GPU while nobody waits for it, and operators that take functions."""

from __future__ import annotations

from pathlib import Path

from tests.support.processes.simulated_runs import MIB, on_simulated_gpu


def test_a_collective_without_a_wait_holds_its_tensors_for_two_steps(tmp_path: Path) -> None:
    found = on_simulated_gpu(
        tmp_path,
        """
from composer_memprof.simulated_gpu.ranks import held
held._HOLDS = True  # torch 2.8 and newer
group = held.Held()
weight = torch.ones(1, requires_grad=True)

def collective():
    return group.hold([torch.empty(1 << 18, device='cuda'), torch.empty(1)])

def after(name):
    found[name] = torch.cuda.memory_allocated()

collective(), collective()
after('a step of two')
weight * 2  # recorded for backward
collective()
after('a second step')
shelf = collective()
shelf.clear()  # as a wait does
after('a wait')
weight * 2
collective()
after('a third step')
torch.compile(lambda value: value + 1, backend='aot_eager')(weight)
after('not yet let go')
collective()
after('after a compile')
for _ in range(1000):
    collective()
after('many')
""",
    )
    assert found['a step of two'] == 2 * MIB
    assert found['a second step'] == found['a wait'] == 3 * MIB
    assert found['a third step'] == found['not yet let go'] == 2 * MIB
    assert found['after a compile'] == MIB
    assert found['many'] == 256 * MIB


def test_operators_that_take_functions_run_where_values_are_followed(tmp_path: Path) -> None:
    found = on_simulated_gpu(
        tmp_path,
        """
from torch import _ops
import torch._higher_order_ops.triton_kernel_wrap
keys = [torch._C._dispatch_key_parse(name) for name in ('AutocastIPU', 'AutocastHPU', 'AutocastXLA')]
found['stopped'] = [
    name for name, operator in _ops._higher_order_ops.items()
    for key in keys if operator.non_fallthrough_keys.has(key)
]
found['there'] = 'triton_kernel_wrapper_mutation' in _ops._higher_order_ops
""",
        values=True,
    )
    assert found['there'] and found['stopped'] == []
