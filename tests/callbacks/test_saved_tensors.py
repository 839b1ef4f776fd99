"""SavedTensorsHook: bytes match calculations by hand, training is not changed, and no hooks are left behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
from composer import Trainer
from composer.core import Callback, State
from composer.loggers import Logger
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from composer_memprof import SavedTensorsHook
from composer_memprof.messages import MemprofWarning
from composer_memprof.recorders.modules.names import OUTSIDE
from composer_memprof.recorders.saved_tensors.recorder import SavedTensorsRecorder
from composer_memprof.recorders.saved_tensors.result import SavedTensors
from tests.conftest import Regression, entries, loader, train

JSON = Path('test-run/memprof/rank0.3.saved_tensors.json')
SOON = {'skip': '1ba', 'active': '1ba'}
each_dtype = pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=['fp32', 'bf16'])


def record(model: nn.Module, run: Callable[[], Any], **more: Any) -> SavedTensors:
    recorder = SavedTensorsRecorder(model, **more)
    with recorder:
        run()
    assert recorder.error is None
    result = recorder.result()()
    for rows in (result.modules, result.operations, result.shapes):
        assert sum(row.bytes for row in rows) == result.total_bytes  # type: ignore[attr-defined]
    return result


@pytest.fixture(autouse=True)
def no_hooks_are_left() -> Iterator[None]:
    yield
    assert torch._C._autograd._saved_tensors_hooks_is_enabled()
    torch._C._autograd._saved_tensors_hooks_disable('raises where there are hooks')
    torch._C._autograd._saved_tensors_hooks_enable()


def bytes_by_module(result: SavedTensors) -> dict[str, int]:
    return {row.name: row.bytes for row in result.modules if row.bytes}


# -- to the byte --------------------------------------------------------------------------------------------------


@each_dtype
def test_linear_layers_keep_their_inputs_and_relu_its_output(dtype: torch.dtype) -> None:
    size = dtype.itemsize
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(dtype)
    x = torch.randn(2, 8, dtype=dtype)
    result = record(model, lambda: model(x).pow(2).mean().backward())
    # ReLU keeps its output (2, 16), which is the second layer's input too, and counts for ReLU alone;
    # pow keeps the model's output (2, 4).
    assert bytes_by_module(result) == {'1': 2 * 16 * size, OUTSIDE: 2 * 4 * size}
    assert result.input_bytes == 2 * 8 * size  # kept by the first layer
    assert result.parameter_bytes == 16 * 4 * size  # the second weight, for its input's gradient
    assert result.peak_bytes == result.total_bytes
    assert result.left_bytes == 0
    assert {row.name: row.bytes for row in result.operations} == {
        'ReluBackward0': 2 * 16 * size,
        'PowBackward0': 2 * 4 * size,
    }
    assert [(row.dtype, row.shape) for row in result.shapes] == [(str(dtype)[6:], (2, 16)), (str(dtype)[6:], (2, 4))]


@each_dtype
def test_layer_norm_keeps_its_input_mean_and_deviation_and_dropout_its_mask(dtype: torch.dtype) -> None:
    size = dtype.itemsize
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Dropout(0.5)).to(dtype)
    x = torch.randn(2, 8, dtype=dtype)
    result = record(model, lambda: model(x).sum().backward())
    # The norm: its input (2, 16), one mean and one deviation a row. Dropout on a CPU multiplies by a scaled mask in
    # the input's dtype, and keeps that.
    assert bytes_by_module(result) == {'1': (2 * 16 + 2 + 2) * size, '2': 2 * 16 * size}
    # The norm's weight and bias; the first layer's weight is not needed, because x has no gradient.
    assert result.parameter_bytes == 2 * 16 * size
    # What checkpointing the norm would free: mean and deviation, but not its input.
    assert {row.name: row.frees_bytes for row in result.checkpoints} == {'1': 4 * size}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(attended.transpose(1, 2).reshape(batch, length, width))


@each_dtype
def test_attention_keeps_one_storage_for_q_k_and_v_its_output_and_a_float_a_row(dtype: torch.dtype) -> None:
    size = dtype.itemsize
    model = Attention().to(dtype)
    x = torch.randn(2, 5, 16, dtype=dtype)
    result = record(model, lambda: model(x).sum().backward())
    qkv = 2 * 5 * 48 * size  # three views of one storage
    output = 2 * 5 * 16 * size  # the out layer's input is a view of it
    logsumexp = 2 * 2 * 5 * 4  # batch, heads, length; always fp32
    assert bytes_by_module(result) == {'': qkv + output + logsumexp}


@pytest.mark.parametrize('use_reentrant', [False, True])
@each_dtype
def test_a_checkpointed_block_keeps_only_its_input(use_reentrant: bool, dtype: torch.dtype) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 16)
            self.block = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
            self.last = nn.Linear(16, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(checkpoint(self.block, self.first(x), use_reentrant=use_reentrant))

    size = dtype.itemsize
    model = Checkpointed().to(dtype)
    x = torch.randn(2, 8, dtype=dtype)
    result = record(model, lambda: model(x).sum().backward())
    # The checkpoint keeps the block's input (2, 16), which counts for the calling module; the last layer keeps its own.
    assert bytes_by_module(result) == {'': 2 * 16 * size, 'last': 2 * 16 * size}
    # Run again, GELU keeps its input and the layer after it GELU's output, both (2, 64).
    assert result.recomputed_bytes == (2 * 2 * 64 * size if use_reentrant else 0)
    unseen = [name for names in result.unseen.values() for name in names]
    assert ('block.1' in unseen) == (not use_reentrant)
    assert result.left_bytes == 0


def test_checkpointing_a_block_frees_the_bytes_that_were_predicted() -> None:
    class Blocks(nn.Module):
        def __init__(self, checkpointed: Optional[int]) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(3)
            )
            self.checkpointed = checkpointed

        def forward(self, x: Tensor) -> Tensor:
            for number, block in enumerate(self.blocks):
                x = x + (checkpoint(block, x, use_reentrant=False) if number == self.checkpointed else block(x))
            return x

    x = torch.randn(4, 16, requires_grad=True)
    plain, less = (Blocks(checkpointed) for checkpointed in (None, 1))
    before = record(plain, lambda: plain(x).sum().backward())
    after = record(less, lambda: less(x).sum().backward())
    said = {row.name: row.frees_bytes for row in before.checkpoints}
    assert said['blocks.1'] == before.total_bytes - after.total_bytes > 0
    assert max(said, key=lambda name: said[name]).startswith('blocks.')


def test_buffers_are_counted_on_their_own() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16))
    x = torch.randn(2, 8)
    result = record(model, lambda: model(x).sum().backward())
    assert result.buffer_bytes == 2 * 16 * 4  # running mean and variance
    assert bytes_by_module(result) == {'1': (2 * 16 + 2 * 16) * 4}  # the input, and the batch's mean and deviation


def test_a_storage_counts_once_for_tied_weights_views_and_several_modules() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(32, 8)
            self.head = nn.Linear(8, 32, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: Tensor) -> Tensor:
            hidden = self.embedding(ids).tanh()
            return (self.head(hidden) * 1).sum() + hidden[:2].mul(hidden[:2]).sum()

    model = Tied()
    ids = torch.arange(6)
    result = record(model, lambda: model(ids).backward())
    assert bytes_by_module(result) == {'': 6 * 8 * 4}
    assert result.parameter_bytes == 32 * 8 * 4
    assert result.input_bytes == 6 * 8  # the ids


def test_packed_bytes_follow_finetuning_schedulers_rule() -> None:
    model = Attention()
    x = torch.randn(2, 5, 16)
    packed = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal packed
        if not isinstance(tensor, nn.Parameter):
            packed += tensor.nbytes
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x).sum().backward()
    assert record(model, lambda: model(x).sum().backward()).packed_bytes == packed


def test_live_bytes_fall_as_backward_consumes_them() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Sigmoid()) for _ in range(8)))
    x = torch.randn(32, 64)
    result = record(model, lambda: model(x).sum().backward())
    sizes = [size for _, size in result.live]
    top = sizes.index(max(sizes))
    assert max(sizes) == result.peak_bytes == 8 * 32 * 64 * 4
    assert sizes[: top + 1] == sorted(sizes[: top + 1])
    assert sizes[top:] == sorted(sizes[top:], reverse=True)
    assert sizes[-1] == 0


# -- training is not changed --------------------------------------------------------------------------------------


def test_gradients_are_bit_identical() -> None:
    def gradients(recorded: bool) -> list[Tensor]:
        torch.manual_seed(3)
        model = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        x = torch.randn(2, 7, 32)
        recorder = SavedTensorsRecorder(model)
        if recorded:
            recorder.begin()
        first = torch.autograd.grad(model(x).pow(2).sum(), list(model.parameters()), create_graph=True)
        torch.stack([gradient.pow(2).sum() for gradient in first]).sum().backward()
        if recorded:
            recorder.end()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    bare, recorded = gradients(False), gradients(True)
    assert len(bare) == len(recorded) > 0
    assert all(torch.equal(one, other) for one, other in zip(bare, recorded))


@pytest.mark.parametrize('what', ['activation', 'output', 'parameter'])
def test_modification_in_place_is_an_error_as_without_hooks(what: str) -> None:
    model = nn.Linear(4, 4)

    def run() -> None:
        x = torch.randn(2, 4, requires_grad=True)
        hidden = model(x)
        result = (hidden.exp() if what == 'output' else hidden * hidden) if what != 'parameter' else model(hidden)
        with torch.no_grad():
            {'activation': hidden, 'output': result, 'parameter': model.weight}[what].add_(1)
        result.sum().backward()

    for recorder in (nullcontext(), SavedTensorsRecorder(model)):
        with pytest.raises(RuntimeError, match=r'modified by an inplace operation: .* expected version'), recorder:
            run()


def test_dropped_graphs_free_their_memory() -> None:
    model = nn.Linear(4, 4)
    recorder = SavedTensorsRecorder(model)
    with recorder:
        output = model(torch.randn(2, 4)).exp()
        storage = StorageWeakRef(output.untyped_storage())
        assert not storage.expired()
        del output
        assert storage.expired(), 'without the garbage collector'
    assert recorder.result()().left_bytes == 0


def test_an_error_in_a_hook_does_not_reach_the_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from composer_memprof.recorders.saved_tensors.ledger import Ledger

    def fail(*args: Any) -> Any:
        raise RuntimeError('a bug of ours')

    for method in ('_add_storage', 'note_arguments'):
        monkeypatch.setattr(Ledger, method, fail)
        with pytest.warns(MemprofWarning, match='is disabled.*a bug of ours'):
            trainer = train(SavedTensorsHook(schedule=SOON), batches=4)
        assert trainer.state.timestamp.batch.value == 4


def test_an_exception_of_the_training_passes_through_and_no_hooks_are_left() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5))
    recorder = SavedTensorsRecorder(model)
    with pytest.raises(RuntimeError, match='shapes cannot be multiplied'), recorder:
        model(torch.randn(2, 4))
    _assert_bare(model)


def _assert_bare(model: nn.Module) -> None:
    for module in model.modules():
        for hooks in (
            *(module._forward_hooks, module._forward_pre_hooks, module._forward_hooks_always_called),
            module._forward_pre_hooks_with_kwargs,
        ):
            assert not hooks
    torch._C._autograd._saved_tensors_hooks_disable('raises where there are hooks')
    torch._C._autograd._saved_tensors_hooks_enable()
    assert torch.autograd.graph.saved_tensors_hooks.__enter__.__module__ == 'torch.autograd.graph'
    assert torch.autograd.graph.disable_saved_tensors_hooks.__module__ == 'torch.autograd.graph'


def test_after_the_window_the_model_is_as_it_was() -> None:
    class Look(Callback):
        looked = 0

        def batch_start(self, state: State, logger: Logger) -> None:
            if state.timestamp.batch.value == 3:
                _assert_bare(state.model)
                self.looked += 1

    look = Look()
    train(SavedTensorsHook(schedule=SOON), look, batches=5)
    assert look.looked == 1


# -- other hooks --------------------------------------------------------------------------------------------------


def test_inside_of_a_users_pair_nothing_is_changed_and_the_result_lists_the_module() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 4))
    packed: list[Tensor] = []

    def run() -> None:
        hidden = model[0](torch.randn(2, 4))
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: packed.append(t) or len(packed) - 1, packed.__getitem__
        ):
            hidden = model[1](hidden)
        model[2](hidden).sum().backward()

    result = record(model, run)
    assert len(packed) == 1
    (names,) = result.unseen.values()
    assert '1' in names and '2' not in names


def test_nothing_is_recorded_under_a_pair_around_the_whole_batch() -> None:
    model = nn.Linear(4, 4)
    packed: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or len(packed) - 1, packed.__getitem__):
        result = record(model, lambda: model(torch.randn(2, 4)).exp().sum().backward())
    assert len(packed) > 0
    assert result.total_bytes == 0
    assert any('around the whole batch' in what for what in result.unseen)


def test_functions_that_refuse_saved_tensor_hooks_run_in_a_window() -> None:
    model = nn.Linear(4, 4)

    def run() -> None:
        x = torch.randn(2, 4)
        scaled = torch.vmap(lambda row: row * 2)(x) + torch.func.grad(lambda value: (value * value).sum())(x)
        with torch.autograd.graph.save_on_cpu():
            hidden = model(scaled)
        hidden.exp().sum().backward()

    result = record(model, run)
    assert any('torch.func' in what for what in result.unseen)
    assert any('save_on_cpu' in what for what in result.unseen)
    assert result.total_bytes == 2 * 4 * 4  # exp's output


@pytest.mark.parametrize('way', ['whole', 'in place'])
def test_a_compiled_model_is_recorded_as_a_whole_and_not_compiled_again(way: str) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x).sin()

    torch._dynamo.reset()
    model: Any = Two()
    if way == 'whole':
        model = torch.compile(model, backend='aot_eager')
    else:
        model.compile(backend='aot_eager')
    x = torch.randn(2, 8)
    compiled = torch._dynamo.utils.counters['frames']
    model(x).sum().backward()
    before = dict(compiled)
    for _ in range(3):
        result = record(model, lambda: model(x).sum().backward())
    model(x).sum().backward()
    assert dict(compiled) == before
    assert {row.name for row in result.operations} == {'CompiledFunctionBackward'}
    assert any('compiled' in what for what in result.unseen)


def doubling_pack(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor.clone()


def single_unpack(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def test_what_a_pack_function_returns_is_counted() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
    x = torch.randn(2, 8)
    paths = ['tests.callbacks.test_saved_tensors.doubling_pack', 'tests.callbacks.test_saved_tensors.single_unpack']
    result = record(model, lambda: model(x).sum().backward(), functions=paths)
    assert result.total_bytes == (2 * 8 + 2 * 16) * 8  # copies in double of the input and ReLU's output
    identity = record(model, lambda: model(x).sum().backward(), functions=['identity_lambda', 'identity_lambda'])
    assert identity.total_bytes == 2 * 16 * 4


NOT_A_FUNCTION = 3


@pytest.mark.parametrize(
    ('functions', 'words'),
    [
        (['no_such_module.pack', 'identity_lambda'], 'no_such_module.pack'),
        (['tests.callbacks.test_saved_tensors.doubling_pak', 'identity_lambda'], "did you mean 'doubling_pack'"),
        (['tests.callbacks.test_saved_tensors.NOT_A_FUNCTION', 'identity_lambda'], 'is a int, not a function'),
        (['pack', 'identity_lambda'], 'dotted path'),
        (['identity_lambda'], 'a list of two'),
        ('identity_lambda', 'a list of two'),
        ([3, 4], "must be a function, its dotted path, or 'identity_lambda', not 3"),
    ],
)
def test_functions_that_can_not_be_found_are_refused_at_construction(functions: Any, words: str) -> None:
    with pytest.raises(ValueError, match='saved_tensors_funcs') as caught:
        SavedTensorsHook(saved_tensors_funcs=functions)
    assert words in str(caught.value)
    assert '\n' not in str(caught.value)


def test_a_model_without_parameters_is_refused_before_training() -> None:
    class Nothing(Regression):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential()

    settings = {'model': Nothing(), 'optimizers': torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)}
    with pytest.raises(ValueError, match='Nothing has no parameters'):
        Trainer(callbacks=SavedTensorsHook(), train_dataloader=loader(2), max_duration='1ep', device='cpu', **settings)


# -- in a Trainer -------------------------------------------------------------------------------------------------


def written(path: Path = JSON) -> dict[str, Any]:
    return json.loads(path.read_text())


def test_a_window_writes_json_and_a_table() -> None:
    train(SavedTensorsHook(), batches=5)
    data = written()
    assert (data['rank'], data['epoch'], data['batch'], data['largest_batch']) == (0, 0, 3, 2)
    # ReLU's output (8, 32); pow keeps the difference (8, 1).
    assert {row['name']: row['bytes'] for row in data['modules'] if row['bytes']} == {
        'net.1': 8 * 32 * 4,
        OUTSIDE: 8 * 4,
    }
    assert data['input_bytes'] == 8 * 16 * 4
    for rows in ('modules', 'operations', 'shapes'):
        assert sum(row['bytes'] for row in data[rows]) == data['total_bytes']
    text = JSON.with_suffix('.txt').read_text()
    assert 'ReluBackward0' in text and 'net.1' in text
    assert {entry.kind for entry in entries(Path('test-run'))} == {'saved_tensors_hook', 'saved_tensors_hook.table'}


def test_four_microbatches_keep_the_same_total_and_a_quarter_at_a_time() -> None:
    train(SavedTensorsHook(), batches=5)
    whole = written()
    train(SavedTensorsHook(folder='micro'), batches=5, device_train_microbatch_size=2)
    micro = written(Path('micro') / JSON.name)
    assert (whole['forwards'], micro['forwards']) == (1, 4)
    for name in ('total_bytes', 'parameter_bytes', 'input_bytes'):
        assert micro[name] == whole[name]
    assert micro['peak_bytes'] * 4 == whole['peak_bytes']


@pytest.mark.parametrize('kind', [None, *CheckpointImpl])
@pytest.mark.parametrize('microbatch', [8, 2])
def test_each_list_sums_to_its_total_with_checkpoints_and_microbatches(
    microbatch: int, kind: Optional[CheckpointImpl]
) -> None:
    model = Regression()
    model.net = nn.Sequential(nn.Linear(16, 16), model.net)
    if kind is not None:
        model.net[1] = checkpoint_wrapper(model.net[1], checkpoint_impl=kind)
    train(SavedTensorsHook(), model=model, batches=5, device_train_microbatch_size=microbatch)
    data = written()
    assert data['total_bytes'] > 0
    for rows in ('modules', 'operations', 'shapes'):
        assert sum(row['bytes'] for row in data[rows]) == data['total_bytes']
    modules = {row['name']: row for row in data['modules']}
    assert sum(row['parameter_bytes'] for row in modules.values()) == data['parameter_bytes']
    assert modules['']['inclusive_bytes'] + modules[OUTSIDE]['bytes'] == data['total_bytes']
    assert {name: row['calls'] for name, row in modules.items() if name != OUTSIDE} == dict.fromkeys(
        ('', 'net', 'net.0', 'net.1', 'net.1.0', 'net.1.1', 'net.1.2'), 8 // microbatch
    )
    assert f'{data["total_bytes"]} B, each storage once; forward calls: {8 // microbatch}' in (
        JSON.with_suffix('.txt').read_text()
    )


def test_the_largest_batch_is_reported_in_full_and_the_others_by_their_totals() -> None:
    train(SavedTensorsHook(schedule={'skip': '1ba', 'active': '3ba'}), batches=5, train_dataloader=loader(5))
    data = written(JSON.with_name('rank0.4.saved_tensors.json'))
    assert [row['batch'] for row in data['batches']] == [1, 2, 3]
    assert all(row['total_bytes'] == data['total_bytes'] for row in data['batches'])


def test_without_gradients_nothing_is_saved_and_no_hooks_are_set() -> None:
    class Look(Callback):
        def eval_batch_end(self, state: State, logger: Logger) -> None:
            _assert_bare(state.model)

    callback = SavedTensorsHook(schedule={'active': '2ba', 'stages': ['eval']})
    train(callback, Look(), batches=3, eval_dataloader=loader(2), eval_interval='1ep')
    (entry,) = entries(Path('test-run'), 'saved_tensors_hook')
    data = written(Path('test-run/memprof') / entry.path)
    assert data['total_bytes'] == data['packed_bytes'] == 0
    assert any('gradients are off' in what for what in data['unseen'])


def test_two_recorders_of_one_model_see_the_same() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
    one, other = SavedTensorsRecorder(model), SavedTensorsRecorder(model)
    one.begin()
    other.begin()
    model(torch.randn(2, 8)).sum().backward()
    one.end()
    other.end()
    assert one.result()() == other.result()()
    assert one.result()().total_bytes == 2 * 16 * 4
    _assert_bare(model)


def test_a_graph_that_outlives_its_window_still_runs_backward() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Sigmoid())
    recorder = SavedTensorsRecorder(model)
    with recorder:
        output = model(torch.randn(2, 8))
    assert recorder.result()().left_bytes == 2 * 16 * 4
    storage = StorageWeakRef(output.untyped_storage())
    output.sum().backward()
    del output
    assert model[0].weight.grad is not None
    assert storage.expired()
