"""Private names of torch: the installed torch has them, they are used in one folder only, and a missing one is told."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import composer_memprof
from composer_memprof import HostRSS, SavedTensorsHook
from composer_memprof.messages import MemprofWarning
from composer_memprof.recorders import compiled, dispatch, kineto, torch_private
from composer_memprof.recorders.allocations import (
    allocator_history,
    annotations,
    cpu_allocations,
    keepers,
    out_of_memory,
)
from composer_memprof.recorders.flops import matmul_peak, without_data
from composer_memprof.recorders.flops import recorder as flops
from composer_memprof.recorders.modules import names
from composer_memprof.recorders.modules import recorder as modules
from composer_memprof.recorders.saved_tensors import ledger
from composer_memprof.recorders.saved_tensors import recorder as saved_tensors
from composer_memprof.recorders.saved_tensors.recorder import SavedTensorsRecorder
from composer_memprof.recorders.step_times import data_wait, pauses
from composer_memprof.recorders.tensors import parts_of
from composer_memprof.recorders.torch_private import (
    MissingTorchNameError,
    PrivateName,
    graph_tasks,
    private,
    private_attribute,
    require,
    saved_tensor_hooks,
)
from tests.conftest import child_environment, entries, train
from tests.support.processes import warm_python
from tests.support.processes.python_code import PACKAGE_ANEW

#: The modules of torch_private that each recorder needs.
NEEDS: dict[str, tuple[ModuleType, ...]] = {
    'dispatch': dispatch.NEEDS,
    'compiled': compiled.NEEDS,
    'modules (FSDPMemTracker)': modules.NEEDS,
    'modules under FSDP2': modules.FSDP2_NEEDS,
    'names of modules': names.NEEDS,
    'modules under DDP': modules.DDP_NEEDS,
    'saved_tensors (SavedTensorsHook)': saved_tensors.NEEDS,
    'flops (Flops)': flops.NEEDS,
    "flops: a CPU's peak": matmul_peak.NEEDS,
    'flops: compiled models': without_data.NEEDS,
    'kineto (TorchProfiler)': kineto.NEEDS,
    'kineto: the event tree': kineto.EVENT_TREE_NEEDS,
    'kineto: memory_filename': kineto.MEMORY_TIMELINE_NEEDS,
    'kineto: experimental_config': kineto.EXPERIMENTAL_CONFIG_NEEDS,
    'allocator_history (MemorySnapshot)': allocator_history.NEEDS,
    'out_of_memory (MemorySnapshot)': out_of_memory.NEEDS,
    'annotations (MemorySnapshot)': annotations.NEEDS,
    'annotations under FSDP2': annotations.FSDP2_NEEDS,
    'step_times (StepTimes)': data_wait.NEEDS,
    'pauses (StepTimes)': pauses.NEEDS,
    'keepers (MemorySnapshot)': keepers.NEEDS,
    'cpu_allocations (MemorySnapshot on CPU)': cpu_allocations.NEEDS,
}

PACKAGE = Path(composer_memprof.__file__).parent
PRIVATE_FOLDER = PACKAGE / 'recorders/torch_private'
#: These replace functions of torch, in processes on a simulated GPU only, and say what a version lacks.
REPLACING_FOLDERS = {PACKAGE / 'simulated_gpu' / name for name in ('launches', 'ranks', 'values')}


def _modules_of_torch_private() -> list[ModuleType]:
    names = [module.name for module in pkgutil.iter_modules(torch_private.__path__)]
    return [importlib.import_module(f'{torch_private.__name__}.{name}') for name in names]


def test_the_installed_torch_has_every_private_name() -> None:
    _modules_of_torch_private()
    lacking = []
    for name in torch_private.missing():
        recorders = [recorder for recorder, needs in NEEDS.items() if name.module in {each.__name__ for each in needs}]
        lacking.append(f'{name.path}, seen in torch {name.seen}, needed by {", ".join(recorders) or name.module}')
    assert not lacking, f'torch {torch.__version__} has no\n' + '\n'.join(lacking)


def test_each_module_is_needed_by_a_recorder() -> None:
    with_names = {name.module for name in torch_private.NAMES}
    wanted = {module.__name__ for needs in NEEDS.values() for module in needs}
    assert with_names == wanted


# -- used in one folder only ------------------------------------------------------------------------------------------

#: Further attributes of torch's private objects: set by torch at run time, or named by a protocol.
ATTRIBUTES = {
    *('_torchdynamo_orig_callable', '_torchdynamo_disable', '_local_tensor', '_stance', '_forward_pre_hooks'),
    *('__tensor_flatten__', 'action_map', 'kineto_results', 'experimental_event_tree', 'python_key_table'),
    *('old_dispatch_mode_flags', 'old_non_infra_dispatch_mode_flags', '_checkpoint_wrapped_module'),
    '_fsdp_wrapped_module',
}


def test_private_names_of_torch_stand_in_one_folder() -> None:
    _modules_of_torch_private()
    found = [
        f'{path.relative_to(PACKAGE)}:{line}: {name}'
        for path in sorted(PACKAGE.rglob('*.py'))
        if PRIVATE_FOLDER not in path.parents and REPLACING_FOLDERS.isdisjoint(path.parents)
        for line, name in private_names_in(path.read_text())
    ]
    assert not found, 'use composer_memprof.recorders.torch_private for\n' + '\n'.join(found)


def private_names_in(source: str) -> Iterator[tuple[int, str]]:
    """The lines that use a private name of torch, and the names."""
    paths = {name.path for name in torch_private.NAMES}
    lasts = {path.rpartition('.')[2] for path in paths}
    attributes = ATTRIBUTES | {last for last in lasts if last.startswith('_')}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f'{node.module}.{alias.name}' for alias in node.names] if not node.level else []
        elif isinstance(node, ast.Attribute):
            names = [_dotted(node)]
            if node.attr in attributes and not (isinstance(node.value, ast.Name) and node.value.id in ('self', 'cls')):
                yield node.lineno, node.attr
                continue
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = []
            if node.value in attributes:
                yield node.lineno, repr(node.value)
        else:
            continue
        for name in names:
            if name.split('.')[0] == 'torch' and (name in paths or _is_private(name)):
                yield node.lineno, name


def _is_private(path: str) -> bool:
    return any(part.startswith('_') and not part.startswith('__') for part in path.split('.'))


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f'{_dotted(node.value)}.{node.attr}'
    return node.id if isinstance(node, ast.Name) else ''


@pytest.mark.parametrize(
    'line',
    [
        'torch._C._current_graph_task_id()',
        'from torch._dynamo.eval_frame import skip_code',
        'import torch._dynamo',
        'from torch.utils._pytree import tree_map',
        'from torch.utils.flop_counter import flop_registry',
        'storage._cdata',
        'node.tensor._version',
        "hasattr(function, '_torchdynamo_disable')",
        'operator.python_key_table',
        'module._forward_hooks[3] = hook',
    ],
)
def test_the_check_finds(line: str) -> None:
    _modules_of_torch_private()
    assert list(private_names_in(line))


@pytest.mark.parametrize('line', ['torch.ones(2)', 'str(torch.__version__)', 'self._version', 'aten._flash_attention'])
def test_the_check_lets_pass(line: str) -> None:
    assert not list(private_names_in(line))


# -- a missing name ---------------------------------------------------------------------------------------------------


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[PrivateName]:
    """Names that a test adds are forgotten."""
    names = list(torch_private.NAMES)
    monkeypatch.setattr(torch_private, 'NAMES', names)
    return names


def test_a_missing_name_raises_what_is_missing_and_where_it_was_seen_when_used(names: list[PrivateName]) -> None:
    message = f'torch {torch.__version__} has no torch._C._gone (seen in torch 2.6)'.replace('+', r'\+')
    gone = private('torch._C._gone', seen='2.6', module=__name__)
    for use in (gone, lambda: gone.part, lambda: isinstance(3, gone), type('Derived', (object,), {'__init__': gone})):
        with pytest.raises(MissingTorchNameError, match=message.replace('(', r'\(').replace(')', r'\)')):
            use()
    assert not hasattr(gone, '__wrapped__')


def test_a_class_may_be_derived_from_a_missing_one_but_not_made(names: list[PrivateName]) -> None:
    class Derived(private('torch._C._Gone', seen='2.6', module=__name__)):  # type: ignore[misc]
        pass

    with pytest.raises(MissingTorchNameError, match='_Gone'):
        Derived()


def test_a_missing_attribute_is_told(names: list[PrivateName]) -> None:
    of_class = private_attribute('torch.Tensor._gone', seen='2.6', module=__name__)
    private_attribute('torch.nn.Module._gone_too', seen='2.6', module=__name__, owner=torch.nn.Module)
    with pytest.raises(MissingTorchNameError, match=r'torch\.Tensor\._gone'):
        of_class(torch.ones(1))
    this = sys.modules[__name__]
    assert [name.path for name in torch_private.missing(this)] == ['torch.Tensor._gone', 'torch.nn.Module._gone_too']
    assert torch_private.missing(graph_tasks) == []
    with pytest.raises(MissingTorchNameError, match=r'_gone \(seen in torch 2\.6\), torch\.nn\.Module\._gone_too'):
        require(graph_tasks, this)


def test_a_callback_whose_names_are_missing_is_disabled_alone_with_one_warning(names: list[PrivateName]) -> None:
    private('torch._C._gone', seen='2.6 to 2.7', module=saved_tensor_hooks.__name__)
    message = r'SavedTensorsHook is disabled for the rest of this run.* has no torch\._C\._gone \(seen in torch 2\.6 to 2\.7\)'
    with pytest.warns(MemprofWarning, match=message) as caught:
        trainer = train(SavedTensorsHook(), HostRSS())
    assert trainer.state.timestamp.batch.value == 12
    assert len([warning for warning in caught if warning.category is MemprofWarning]) == 1
    assert entries(Path('test-run'), 'saved_tensors_hook') == []
    assert len(entries(Path('test-run'), 'host_rss')) == 1


# -- what differs between versions of torch ----------------------------------------------------------------------------


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        sine = x.sin()
        ctx.save_for_backward(sine)
        return 2 * sine

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (sine,) = ctx.saved_tensors
        return gradient * sine


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Doubled.apply(self.linear(x))


@pytest.mark.parametrize('apply_leaves_a_frame', [True, False])
def test_what_a_custom_function_saves_has_its_name_where_apply_leaves_no_frame_too(
    apply_leaves_a_frame: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not apply_leaves_a_frame:  # as from torch 2.14 on
        monkeypatch.setattr(ledger, 'APPLY_CODE', None)
    model = _Model()
    with SavedTensorsRecorder(model) as recorder:
        model(torch.ones(4, 8)).sum().backward()
    assert '_DoubledBackward' in {operation.name for operation in recorder.result()().operations}


def test_of_what_a_wrapper_lists_only_the_tensors_are_its_parts() -> None:
    class Sharded(torch.Tensor):  # as a DTensor, which lists its mesh from torch 2.12 on
        shard = torch.ones(3)
        mesh = object()

        def __tensor_flatten__(self) -> Any:
            return ['shard', 'mesh'], None

    assert [part is Sharded.shard for part in parts_of(Sharded())] == [True]


# -- a torch without private names ------------------------------------------------------------------------------------

#: Deletes every private name that can be deleted, then imports the package.
WITHOUT_PRIVATE_NAMES = """
import importlib, pkgutil, sys
import composer, torch, torch._dynamo, torch.distributed.fsdp, torch.profiler._memory_profiler, torch.utils.flop_counter
from composer_memprof.recorders import torch_private
for module in pkgutil.iter_modules(torch_private.__path__):
    importlib.import_module(f'{torch_private.__name__}.{module.name}')
paths = [name.path for name in torch_private.NAMES if name.owner is None]
for name in [name for name in sys.modules if name.startswith('composer_memprof')]:
    del sys.modules[name]
deleted = []
for path in paths:
    owner, _, name = path.rpartition('.')
    try:
        delattr(torch_private._look_up(owner), name)
    except (AttributeError, TypeError):  # an inherited attribute, or one of a class of C
        continue
    try:
        torch_private._look_up(path)
    except AttributeError:
        deleted.append(path)
import composer_memprof
for name in composer_memprof.__all__:
    getattr(composer_memprof, name)
from composer_memprof.recorders import torch_private
for module in pkgutil.iter_modules(torch_private.__path__):
    importlib.import_module(f'{torch_private.__name__}.{module.name}')
from composer_memprof.recorders.flops import recorder as flops
from composer_memprof.recorders.modules import recorder as modules
from composer_memprof.recorders.saved_tensors import recorder as saved_tensors
lacking = {name.path for name in torch_private.missing()}
assert lacking >= set(deleted), set(deleted) - lacking
assert len(deleted) > 30, deleted
assert 'torch._C._current_graph_task_id' in deleted and 'torch._dynamo.eval_frame.skip_code' in deleted
for recorder in (flops, modules, saved_tensors):
    assert 'torch._C._current_graph_task_id' in {name.path for name in torch_private.missing(*recorder.NEEDS)}
try:
    torch_private.graph_tasks.in_backward()
except torch_private.MissingTorchNameError as error:
    print(error)
"""


def test_without_private_names_the_package_imports_and_each_recorder_tells_what_it_lacks() -> None:
    command = [sys.executable, '-c', WITHOUT_PRIVATE_NAMES]
    run = warm_python.run(command, capture_output=True, text=True, check=False, env=child_environment())
    assert run.returncode == 0, run.stderr
    told = f'torch {torch.__version__} has no torch._C._current_graph_task_id (seen in torch {torch_private.CHECKED})'
    assert f'{told}; install a torch that has it, or a newer composer_memprof' in run.stdout


#: In a process of its own for each module of torch_private that is named: trains on a torch that lacks the module's names.
EACH_MISSING = """
import json, os, sys, warnings
import composer, torch, torch._dynamo, torch.distributed.fsdp, torch.profiler._memory_profiler
from composer_memprof.recorders import torch_private
from composer_memprof.recorders.torch_private import MissingTorchNameError, PrivateName
from tests.conftest import train

assert 'composer_memprof.recorders.torch_private.tensors' not in sys.modules  # else it would be too late

composer.utils.collect_env.get_cpu_model()  # takes a second; a Trainer asks for it once in each process

def train_without(lacking):
    find = PrivateName.find
    def find_others(self):
        if self.module.endswith(f'.{lacking}'):
            raise MissingTorchNameError(f'torch has no {self.path}')
        return find(self)
    PrivateName.find = find_others
    import composer_memprof
    from composer_memprof.callbacks.registry import CALLBACKS
    from composer_memprof.schedule import window
    own = {'TorchProfiler': {'schedule': window('1ba', skip='1ba')}, 'MemorySnapshot': {'interval': '1ba', 'skip_batches': 3}}
    watching = [each(**own.get(each.__name__, {})) for each in CALLBACKS.values() if each.torch_needs or each.kind == 'host_rss']
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        trainer = train(*watching, batches=6, run_name=f'without {lacking}')
    needed = {type(each).__name__ for each in watching for module in each._torch_needs(trainer.state)
              if module.__name__.endswith(f'.{lacking}')}
    told = [str(warning.message) for warning in caught if 'is disabled for the rest of this run' in str(warning.message)]
    weights = [float(parameter.double().sum()) for parameter in trainer.state.model.parameters()]
    return {'needed': sorted(needed), 'told': told, 'weights': weights}

for lacking in sys.argv[1:]:
    sys.stdout.flush()
    child = os.fork()
    if not child:
        print(json.dumps([lacking, train_without(lacking)]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.slow
def test_without_the_names_of_one_area_the_callbacks_that_need_none_of_them_record_and_training_is_the_same() -> None:
    _modules_of_torch_private()
    areas = sorted({name.module.rpartition('.')[2] for name in torch_private.NAMES})
    run = warm_python.run(
        [sys.executable, '-c', PACKAGE_ANEW + EACH_MISSING, 'nothing', *areas],
        capture_output=True, text=True, check=False, env=child_environment(),
    )  # fmt: skip
    found = dict(json.loads(line) for line in run.stdout.splitlines() if line.startswith('['))
    assert list(found) == ['nothing', *areas], run.stderr
    for area, result in found.items():
        assert result['weights'] == found['nothing']['weights'], area
        disabled = sorted(message.split()[1] for message in result['told'])
        assert disabled == result['needed'], (area, result['told'])
        assert all('has no torch.' in message for message in result['told'])
    assert found['nothing']['needed'] == [] and found['graph_tasks']['needed']
