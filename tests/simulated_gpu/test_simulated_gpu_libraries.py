"""What a training calls in cuDNN, cuFFT, cuSOLVER, cuBLAS and cuSPARSE runs on the simulated GPU.

The calls run in one child process, which this file is the script of; each has a test of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from composer_memprof.simulated_gpu.building import CannotSimulateError
from composer_memprof.simulated_gpu.devices import find_device
from composer_memprof.simulated_gpu.environment import environment_with

_calls: dict[str, Callable[[], None]] = {}


def call(function: Callable[[], None]) -> Callable[[], None]:
    """Has a test of the function's name, which passes if the function returns on the simulated GPU."""
    _calls[function.__name__] = function
    return function


def random(*shape: int, **options: Any) -> torch.Tensor:
    return torch.randn(*shape, device='cuda', requires_grad=True, **options)


def has_gradients(*tensors: torch.Tensor) -> bool:
    return all(tensor.grad is not None and tensor.grad.shape == tensor.shape for tensor in tensors)


def train(model: nn.Module, *inputs: Any) -> None:
    """One step forward and backward; every parameter gets a gradient."""
    output = model.cuda()(*inputs)
    output = output[0] if isinstance(output, tuple) else output
    output.sum().backward()
    assert has_gradients(*model.parameters()), type(model).__name__


# -- cuDNN --


@call
def convolutions_of_every_kind() -> None:
    for benchmark in (False, True):
        torch.backends.cudnn.benchmark = benchmark
        for dimensions in (1, 2, 3):
            for name in (f'Conv{dimensions}d', f'ConvTranspose{dimensions}d'):
                image = random(2, 4, *[8] * dimensions)
                train(getattr(nn, name)(4, 6, 3, stride=2, groups=2), image)
                assert has_gradients(image), name
    torch.backends.cudnn.benchmark = False


@call
def convolutions_allocate_only_what_torch_does() -> None:
    convolution, image = nn.Conv2d(3, 64, 7, padding=3, device='cuda'), random(8, 3, 64, 64)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    output = convolution(image)
    assert output.nbytes == 8 * 64 * 64 * 64 * 4
    assert torch.cuda.max_memory_allocated() - before == output.nbytes


@call
def fused_convolutions() -> None:
    image, weight, bias = random(2, 4, 8, 8).detach(), random(4, 4, 3, 3).detach(), random(4).detach()
    ones, zeros = (1, 1), (0, 0)
    rectified = torch.cudnn_convolution_relu(image, weight, bias, ones, zeros, ones, 1)
    assert rectified.shape == (2, 4, 6, 6)
    added = torch.cudnn_convolution_add_relu(image, weight, rectified, 1.0, bias, ones, zeros, ones, 1)
    assert added.shape == (2, 4, 6, 6)


@call
def batch_norm_in_each_layout_and_type() -> None:
    for layout in (torch.contiguous_format, torch.channels_last):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            norm = nn.BatchNorm2d(8)
            image = random(4, 8, 16, 16).detach().to(dtype=dtype, memory_format=layout).requires_grad_()
            train(norm, image)
            assert image.grad is not None and image.grad.is_contiguous(memory_format=layout)
            norm.eval()(image).sum().backward()


@call
def recurrent_networks() -> None:
    variants: list[dict[str, Any]] = [{}, {'bidirectional': True, 'num_layers': 3, 'dropout': 0.1}, {'bias': False}]
    for options in variants:
        for kind in (nn.RNN, nn.LSTM, nn.GRU):
            network = kind(10, 20, **options)
            data = random(7, 3, 10)
            train(network, data)
            assert has_gradients(data), kind
            network(nn.utils.rnn.pack_padded_sequence(data, [7, 5, 2]))[0].data.sum().backward()
            with torch.no_grad():
                network.eval()(data)


@call
def a_recurrent_networks_weights_lie_in_one_buffer() -> None:
    for options in ({'num_layers': 2, 'bidirectional': True}, {'num_layers': 2, 'proj_size': 5}):
        weights = list(nn.LSTM(10, 20, **options).cuda().parameters())
        buffer = weights[0].untyped_storage()
        assert {weight.untyped_storage().data_ptr() for weight in weights} == {buffer.data_ptr()}
        assert buffer.nbytes() == sum(weight.nbytes for weight in weights)
        ranges = sorted((weight.storage_offset(), weight.storage_offset() + weight.numel()) for weight in weights)
        assert all(end == start for (_, end), (start, _) in zip(ranges, ranges[1:]))


@call
def a_recurrent_network_keeps_what_cudnn_was_measured_to_keep() -> None:
    for kind, measured in ((nn.LSTM, 736_000_000), (nn.GRU, 864_000_000)):
        network, data = kind(123, 320, 4).cuda(), torch.empty(1000, 25, 123, device='cuda')
        before = torch.cuda.memory_allocated()
        output, states = network(data)
        kept = torch.cuda.memory_allocated() - before - output.nbytes
        assert measured <= kept < measured + (4 << 20), kind
        del output, states


@call
def attention_of_cudnn() -> None:
    for causal in (False, True):
        query, key, value = (random(2, 4, 128, 64, dtype=torch.bfloat16) for _ in range(3))
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            output = F.scaled_dot_product_attention(query, key, value, is_causal=causal, dropout_p=0.125)
        assert output.grad_fn is not None and 'Cudnn' in output.grad_fn.name()
        output.sum().backward()
        assert has_gradients(query, key, value)


@call
def ctc_loss_of_cudnn() -> None:
    likelihoods = random(50, 4, 20)
    labels = torch.randint(1, 20, (40,), dtype=torch.int32)
    F.ctc_loss(likelihoods.log_softmax(2), labels, (50,) * 4, (10,) * 4).backward()
    assert has_gradients(likelihoods)


@call
def spatial_transformers_and_pooling() -> None:
    image, angles = random(4, 8, 16, 16), random(4, 2, 3)
    grid = F.affine_grid(angles, [4, 8, 16, 16], align_corners=True)
    sampled = F.grid_sample(image, grid, align_corners=True)
    (F.max_pool2d(sampled, 2) + F.avg_pool2d(sampled, 2)).sum().backward()
    assert has_gradients(image, angles)


@call
def resnets_in_mixed_precision_and_each_layout() -> None:
    import torchvision

    for name in ('resnet18', 'resnet50'):
        for layout in (torch.contiguous_format, torch.channels_last):
            model = getattr(torchvision.models, name)().cuda().to(memory_format=layout)
            optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), torch.amp.GradScaler()
            image = torch.randn(4, 3, 64, 64, device='cuda').to(memory_format=layout)
            with torch.autocast('cuda', dtype=torch.float16):
                loss = F.cross_entropy(model(image), torch.zeros(4, dtype=torch.long, device='cuda'))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            assert has_gradients(*model.parameters()), name


# -- cuFFT --


@call
def fourier_transforms() -> None:
    for name in ('fft', 'rfft', 'fft2', 'rfft2', 'fftn'):
        signal = random(8, 100)
        getattr(torch.fft, name)(signal).real.sum().backward()
        assert has_gradients(signal), name
    signal = random(8, 100)
    torch.fft.irfft(torch.fft.rfft(signal)).sum().backward()
    assert has_gradients(signal)


@call
def a_transforms_work_area_is_one_copy() -> None:
    signal = torch.zeros(1024, 1024, dtype=torch.complex64, device='cuda')
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    output = torch.fft.fft(signal)
    assert torch.cuda.max_memory_allocated() - before == output.nbytes + signal.nbytes


# -- cuSOLVER, cuBLAS and MAGMA --

_FACTORIZATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor | tuple[torch.Tensor, ...]]] = {
    'cholesky': lambda a: torch.linalg.cholesky(a @ a.mT),
    'qr': torch.linalg.qr,
    'svd': lambda a: torch.linalg.svd(a, full_matrices=False),
    'eigh': torch.linalg.eigh,
    'solve': lambda a: torch.linalg.solve(a, a),
    'inv': torch.linalg.inv,
    'lstsq': lambda a: torch.linalg.lstsq(a, a).solution,
    'det': torch.linalg.det,
    'logdet': torch.logdet,
    'slogdet': torch.linalg.slogdet,
    'lu': torch.linalg.lu,
    'pinv': torch.linalg.pinv,
    'triangular solve': lambda a: torch.linalg.solve_triangular(a, a, upper=True),
}


@call
def factorizations_of_one_matrix_and_of_batches() -> None:
    for name, factorize in _FACTORIZATIONS.items():
        for shape in ((6, 6), (3, 6, 6), (40, 6, 6), (2, 600, 600)):
            for dtype in (torch.float32, torch.float64):
                matrix = random(*shape, dtype=dtype)
                found = factorize(matrix)
                parts = found if isinstance(found, tuple) else (found,)
                sum(part.sum() for part in parts if part.requires_grad).backward()  # type: ignore[union-attr]
                assert has_gradients(matrix), (name, shape, dtype)


@call
def factorizations_by_magma() -> None:
    torch.backends.cuda.preferred_linalg_library('magma')
    for shape in ((6, 6), (3, 6, 6)):
        matrix = random(*shape)
        (torch.linalg.cholesky(matrix) + torch.linalg.eigh(matrix)[1]).sum().backward()
        assert has_gradients(matrix)
    torch.backends.cuda.preferred_linalg_library('default')


@call
def the_exponential_of_a_matrix() -> None:
    matrix = random(6, 6)
    torch.linalg.matrix_exp(matrix).sum().backward()
    assert has_gradients(matrix)


# -- cuSPARSE --


def sparse_rows() -> torch.Tensor:
    rows, columns = torch.tensor([0, 1, 2, 3]), torch.tensor([2, 0, 1])
    return torch.sparse_csr_tensor(rows, columns, torch.ones(3), (3, 3), device='cuda')


@call
def products_with_sparse_matrices() -> None:
    places = torch.tensor([[0, 1, 2], [2, 0, 1]])
    for sparse in (torch.sparse_coo_tensor(places, torch.ones(3), (3, 3), device='cuda'), sparse_rows()):
        dense = random(3, 4)
        torch.sparse.mm(sparse, dense).sum().backward()
        assert has_gradients(dense)


@call
def sparse_sums_and_products_have_as_many_elements_as_assumed() -> None:
    assert (sparse_rows() + sparse_rows())._nnz() == 6
    assert (sparse_rows() @ sparse_rows())._nnz() == 3


@call
def sparse_gradients_of_an_embedding() -> None:
    for module in (nn.Embedding, nn.EmbeddingBag):
        layer = module(100, 8, sparse=True, device='cuda')
        optimizer = torch.optim.SparseAdam(list(layer.parameters()))
        for _ in range(2):
            optimizer.zero_grad()
            layer(torch.randint(100, (4, 5), device='cuda')).sum().backward()
            assert layer.weight.grad is not None and layer.weight.grad.is_sparse
            optimizer.step()


# -- what is not simulated --


@call
def what_is_not_simulated_ends_in_an_exception() -> None:
    matrix = torch.tensor([0, 0, 1, 1], device='cuda').tile((128, 32)).half()
    with pytest.raises(RuntimeError, match='not supported'):
        torch._cslt_compress(matrix)


# -- the child process and its tests --


@dataclass(frozen=True)
class Ran:
    results: dict[str, str]  # 'passed' or the traceback, by the call's name
    notes: list[str]
    stderr: str
    returncode: int


def ran_on_gpu(folder: Path, *names: str, **variables: str) -> Ran:
    try:
        environment = environment_with(find_device('h100-80gb'))
    except CannotSimulateError as reason:
        pytest.skip(str(reason))
    notes, results_file = folder / 'notes', folder / 'results'
    environment |= {'SIMULATED_GPU_NOTES': str(notes), **variables}
    child = subprocess.run(
        [sys.executable, '-m', 'tests.simulated_gpu.test_simulated_gpu_libraries', str(results_file), *names],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    results = dict(json.loads(line) for line in lines_of(results_file))
    return Ran(results, lines_of(notes), child.stderr, child.returncode)


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope='module')
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    yield ran_on_gpu(tmp_path_factory.mktemp('libraries'))


@pytest.mark.parametrize('name', _calls)
def test_it_runs(ran: Ran, name: str) -> None:
    assert name in ran.results, f'the process ended with {ran.returncode} before: {ran.stderr[-2000:]}'
    assert ran.results[name] == 'passed', ran.results[name]


def test_the_process_ends_by_itself(ran: Ran) -> None:
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_convolutions_run_by_cudnn_7s_functions_too(tmp_path: Path) -> None:
    ran = ran_on_gpu(tmp_path, 'convolutions_of_every_kind', TORCH_CUDNN_V8_API_DISABLED='1')
    assert ran.results == {'convolutions_of_every_kind': 'passed'}
    assert "assumed: cuDNN's convolutions take no workspace" in ran.notes


def test_what_was_assumed_is_noted_once(ran: Ran) -> None:
    assert {note.split()[1] for note in ran.notes} >= {"cuDNN's", "cuFFT's", "cuSOLVER's", 'cuSPARSE'}
    assert len(ran.notes) == len(set(ran.notes))
    assert "assumed: cuDNN's convolutions and attention take no workspace of their own" in ran.notes


def test_what_is_not_simulated_is_named(ran: Ran) -> None:
    assert 'simulated GPU: cusparseLtInit is not simulated; what called it fails' in ran.stderr.splitlines()
    assert 'not simulated: cusparseLtInit' in ran.notes


def main(results_file: str, *names: str) -> None:
    with Path(results_file).open('w') as results:
        for name in names or _calls:
            try:
                _calls[name]()
                result = 'passed'
            except Exception:
                result = traceback.format_exc()
            print(json.dumps([name, result]), file=results, flush=True)


if __name__ == '__main__':
    main(*sys.argv[1:])
