"""``simulate``: a function or a command on a GPU that is not there."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import IO, Any, Optional, Union, overload

from typing_extensions import Unpack

from composer_memprof.interface.errors import errors_as_one
from composer_memprof.interface.functions import command_that_calls, refuse_calls_of_the_called
from composer_memprof.interface.results import Searched, Simulated
from composer_memprof.interface.settings import File, Kept, Settings, check_settings, kept_texts
from composer_memprof.messages import must_be
from composer_memprof.simulated_gpu.building import CannotSimulateError
from composer_memprof.simulated_gpu.devices import device_asked_for
from composer_memprof.simulation.asking import CannotStartError, request
from composer_memprof.simulation.guesses import kept_parts
from composer_memprof.simulation.run import Simulation

#: A function, or a command as a shell takes it or as its words.
What = Union[Callable[..., Any], str, Sequence[str]]
#: Of what the command printed, so many bytes from its end are kept.
_KEPT_OUTPUT = 1 << 16


@overload
def simulate(what: What, *, largest: None = ..., **settings: Unpack[Settings]) -> Simulated: ...


@overload
def simulate(what: What, *, largest: int, **settings: Unpack[Settings]) -> Searched: ...


def simulate(
    what: What,
    *,
    arguments: Optional[Mapping[str, Any]] = None,
    gpu: Optional[str] = None,
    memory: Optional[str] = None,
    compute_capability: str = '9.0',
    ranks: Optional[int] = None,
    rank: int = 0,
    ranks_per_node: Optional[int] = None,
    steps: int = 3,
    evaluation: bool = False,
    devices: Optional[int] = None,
    kept: Kept = 1.0,
    values: bool = True,
    time_limit: float = 0,
    find_need: bool = False,
    versus: Optional[File] = None,
    folder: Optional[File] = None,
    trace: Optional[File] = None,
    largest: Optional[int] = None,
) -> Union[Simulated, Searched]:
    """Run a function or a command on a GPU that is not there, and say whether it fits. Needs no GPU.

    It runs in a process of its own: this one starts no CUDA, and nothing comes back but the figures. A function is called
    there by its module, or by the file of a script, whose code below ``if __name__ == '__main__':`` does not run; of a
    notebook the other process gets the source of the function alone, with what it imports. Lambdas, functions that are
    defined within others, and arguments that JSON has not can't be called so.

    >>> from composer_memprof import simulate
    >>> found = simulate('python -c "import torch; torch.ones(1 << 20, device=0)"', gpu='t4', steps=0)
    >>> found.allocated, found.verdict
    (4194304, 'fits')

    Args:
        what (Callable | str | Sequence[str]): a function, or a command such as ``'python train.py'`` or
            ``['torchrun', '--nproc-per-node', '8', 'train.py']``. No shell takes it.
        arguments (Mapping[str, Any], optional): of the function, by name: numbers, text, and lists and mappings of these.
        gpu (str, optional): the kind of GPU. Default: ``'h100-80gb'``.
        memory (str, optional): its memory, such as ``'24GB'``; without ``gpu``, of one made by hand.
        compute_capability (str): of one made by hand. Default: ``'9.0'``.
        ranks (int, optional): stand for one rank among this many. Default: those that the command launches.
        rank (int): which of the ranks. Default: ``0``.
        ranks_per_node (int, optional): Default: 8, or all if they are fewer.
        steps (int): end it after this many optimizer steps; 0: let it end by itself. Default: ``3``.
        evaluation (bool): go on until one evaluation and one checkpoint were made. Default: ``False``.
        devices (int, optional): GPUs of the machine. Default: one for each rank of a node.
        kept (float | str | Sequence): the part of its elements that a mask keeps where its values are not known; also of
            single lines, ``'train.py:41=0.125'``. Default: ``1.0``.
        values (bool): compute small values that it reads back; otherwise they are zeros. Default: ``True``.
        time_limit (float): seconds until it is ended; 0: no limit. Default: ``0``.
        find_need (bool): if memory runs out, run it a second time, on more memory, to see how much it needs.
            Default: ``False``.
        versus (str | PathLike, optional): a memory snapshot of the same on a real GPU, to compare with.
        folder (str | PathLike, optional): for the recording. Default: ``simulated/…``, a new one each time.
        trace (str | PathLike, optional): a file for the trace of a step, for Perfetto, TensorBoard and HTA.
        largest (int, optional): search the largest number up to this one that fits in the place of ``{}`` in the command,
            or as the first argument of the function.

    Returns:
        Simulated: sizes in bytes; with ``largest``, :class:`~composer_memprof.interface.results.Searched`.

    Raises:
        MemprofError: for what can't be simulated, in one line. A function or command that fails by itself raises nothing:
            the verdict is ``'not seen'``, and ``output`` has its traceback.
    """
    refuse_calls_of_the_called()
    with errors_as_one(ValueError, CannotSimulateError, CannotStartError), contextlib.ExitStack() as stack:
        check_settings(
            {'ranks': ranks, 'ranks_per_node': ranks_per_node, 'devices': devices, 'largest': largest},
            {'rank': rank, 'steps': steps, 'time_limit': time_limit},
            {'evaluation': evaluation, 'values': values, 'find_need': find_need},
        )
        device = device_asked_for(gpu, memory, compute_capability)
        part, kept_at = kept_parts(kept_texts(kept), values)
        name = what.__name__ if isinstance(what, FunctionType) else ''
        if callable(what):
            command = stack.enter_context(command_that_calls(what, arguments or {}, largest is not None))
        else:
            command = _words(what, arguments)
        how = Simulation(
            device,
            ranks,
            rank,
            ranks_per_node,
            steps,
            evaluation,
            time_limit,
            part,
            devices,
            keeps_recording=versus is not None,
            values=values,
            kept_at=kept_at,
            name=name,
            trace=_path(trace),
        )
        asked = request(command, how, folder=_path(folder), versus=_path(versus), largest=largest)
        if largest is not None:
            return Searched(asked.search(largest))
        output = stack.enter_context(tempfile.TemporaryFile())
        result, compared = asked.run(find_need, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        if result.signal:
            raise KeyboardInterrupt
        return Simulated(result, compared, versus is not None, _end_of(output))


def _words(command: Union[str, Sequence[str]], arguments: Optional[Mapping[str, Any]]) -> list[str]:
    if arguments is not None:
        raise ValueError('arguments are those of a function; put those of a command into the command')
    words = shlex.split(command) if isinstance(command, str) else command
    if not words or not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        raise must_be('what', "a function, or a command such as 'python train.py'", command)
    return list(words)


def _path(path: Optional[File]) -> Optional[Path]:
    return None if path is None else Path(path)


def _end_of(output: IO[bytes]) -> str:
    output.seek(max(0, output.seek(0, os.SEEK_END) - _KEPT_OUTPUT))
    return output.read().decode(errors='replace')
