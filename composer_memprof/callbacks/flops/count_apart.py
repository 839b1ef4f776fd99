"""Count a step of a compiled model in a forked process, which takes all that the step has changed with it.

Code of a model may keep tensors anywhere: in tables of its module, in ``lru_cache``. Those of the copy have no data, and
the training would go on with them.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Optional

import torch
from torch import nn

from composer_memprof.artifacts.writing.child.fork import Child, fork, is_own_child
from composer_memprof.messages import log_error
from composer_memprof.recorders.flops.result import BatchFlops
from composer_memprof.recorders.flops.without_data import count_without_data
from composer_memprof.signals import DeferredSignals

#: The training waits for a count no longer than this.
TIMEOUT_S = 60.0


class CountError(Exception):
    """There is no count; the message is the reason."""


def count_apart(model: nn.Module, batch: Any, step: Callable[[nn.Module, Any], Any]) -> BatchFlops:
    """:func:`count_without_data` in a process of its own, which can write neither to a terminal nor to a log.

    A signal that stops the job ends the count first.

    Args:
        model (Module): as it is trained, on the CPU.
        batch (Any): tensors, in any nesting of lists, tuples and dicts.
        step (Callable): as for :func:`count_without_data`.

    Raises:
        CountError: if the process gives no count, or can't be started.
    """
    # torch refuses gradients in a child of a process that has computed some with a device at hand.
    if torch.cuda.is_available() or any(each.device.type != 'cpu' for each in model.parameters()):
        raise CountError('it is counted in a forked process, where torch cannot compute beside a GPU')
    child: Optional[Child] = None
    signalled = False

    def end_count(number: int, frame: Any) -> bool:
        nonlocal signalled
        del number, frame  # unused
        signalled = True
        if child is not None and is_own_child(child.pid):
            os.kill(child.pid, signal.SIGKILL)
        return True

    signals = DeferredSignals(end_count)
    signals.begin()
    try:
        child = fork(lambda: _count(model, batch, step), in_background=False)
        results = [] if child is None else child.results(TIMEOUT_S)
    finally:
        signals.end()
    if child is None:
        raise CountError('no process could be forked')
    if not results and signalled:
        raise CountError('a signal ended the process that counted it')
    if not results:
        raise CountError(f'the process that counted it gave no result within {TIMEOUT_S:g} seconds')
    if 'error' in results[0]:
        log_error('no copy of the compiled model could be counted', results[0]['traceback'])
        raise CountError(results[0]['error'])
    return BatchFlops.from_dict(results[0])


def _count(model: nn.Module, batch: Any, step: Callable[[nn.Module, Any], Any]) -> Iterator[dict[str, Any]]:
    """In the child."""
    _fall_silent()
    torch.set_num_threads(1)  # the threads of the parent's pools are not in this process, and would be waited for
    try:
        yield count_without_data(model, batch, step).as_dict()
    except BaseException as error:
        reason = ' '.join([type(error).__name__, *str(error).splitlines()[:1]])
        yield {'error': reason, 'traceback': traceback.format_exc()}


def _fall_silent() -> None:
    """What the model prints or logs would come twice."""
    sys.stdout = sys.stderr = open(os.devnull, 'w')  # noqa: SIM115
    logging.disable()
