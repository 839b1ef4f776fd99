"""Which lines of the user's code take the time of each phase: samples of the training thread's stack.

>>> import time
>>> lines = LineSampler(lambda: 'forward', lambda filename: not filename.endswith('threading.py'), interval=0.001)
>>> lines.start()
>>> time.sleep(0.05)
>>> lines.stop()
>>> 'forward' in lines.found()
True
"""

from __future__ import annotations

import collections
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Optional

from composer_memprof.recorders.host.sampler import Sampler
from composer_memprof.recorders.step_times.summary import REST
from composer_memprof.vocabulary import DATALOADER, WITHIN_BATCH

#: Seconds between two samples on average: each takes some twenty microseconds of the interpreter.
_INTERVAL_S = 0.05
#: Frames that a sample looks at; lines that are counted; lines of a phase that are found.
_FRAMES, _MOST_LINES, _FOUND = 100, 1000, 3
#: The file of the Trainer: what called it is no part of a phase. It calls callbacks through the engine.
_TRAINER = os.path.join('composer', 'trainer', 'trainer.py')
_ENGINE = os.path.join('composer', 'core', 'engine.py')
#: The file of torch that calls a module's forward.
_MODULE = os.path.join('torch', 'nn', 'modules', 'module.py')
#: Other Trainers: the file of Transformers', and the folders of Lightning's.
_OTHER_TRAINERS = (
    os.path.join('transformers', 'trainer.py'),
    *(os.path.join(name, '') for name in ('lightning/pytorch', 'pytorch_lightning')),
)
#: The file of torch that begins a backward pass.
_BACKWARD = os.path.join('torch', 'autograd', '__init__.py')
#: The base of metrics, and the folder of optimizers, whose methods call the user's.
_METRIC, _OPTIMIZERS = os.path.join('torchmetrics', 'metric.py'), os.path.join('torch', 'optim') + os.sep
#: Whose code runs within a phase that is training's own.
CALLBACKS, METRICS, LOSS, STEP = 'callbacks', 'metrics', 'loss', 'step'
#: Algorithms of Composer's, by the engine's function that runs them; the sampler, by the DataLoader's function that asks it.
ALGORITHMS, SAMPLER = 'algorithms', 'sampler'
_RUNS_ALGORITHMS, _ASKS_SAMPLER = '_run_algorithms', '_next_index'
_DATALOADER = os.path.join('torch', 'utils', 'data', 'dataloader.py')
#: In a loop without Composer's Trainer: its other code within such a phase; and training's own work between the phases.
LOOP, OF_MODEL = 'loop', 'model'
#: What runs beside the loading of data in its phase.
_BESIDE_LOADING = (ALGORITHMS, CALLBACKS, SAMPLER)


class LineSampler:
    """Counts the innermost line of the user's code, on the thread that makes it, by phase.

    Args:
        phase (Callable): the phase that the training is in; called on another thread.
        is_own (Callable): True if a file is of the user's code.
        interval (float): seconds between samples, on average.
    """

    def __init__(self, phase: Callable[[], str], is_own: Callable[[str], bool], interval: float = _INTERVAL_S) -> None:
        self._phase, self._is_own = phase, is_own
        self._thread = threading.get_ident()
        self._counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self._of_whom: collections.Counter[tuple[str, str]] = collections.Counter()
        self._sampler = Sampler('memprof-lines', interval, self._sample, uneven=True)

    def start(self) -> None:
        """Begin to sample."""
        self._sampler.start()

    def stop(self) -> None:
        """End. An error of a sample leaves what was found before it."""
        self._sampler.stop()

    def found(self) -> dict[str, dict[str, float]]:
        """By phase the lines that take most of it, each with its share of the phase's samples; callbacks,
        algorithms, the sampler, metrics, the loss and the optimizer's step are phases too.
        """
        counts = [*self._counts.most_common(), *self._of_whom.most_common()]
        sums: collections.Counter[str] = collections.Counter()
        for (phase, _), count in counts:
            sums[phase] += count
        found: dict[str, dict[str, float]] = {}
        for (phase, line), count in counts:
            if line and len(found.setdefault(phase, {})) < _FOUND:
                found[phase][line] = count / sums[phase]
        return found

    def shares(self) -> dict[str, float]:
        """Of callbacks, algorithms, the sampler, metrics, the loss, the user's own optimizer and a loop's other code within training's phases, and
        of training's own work between them: the share of all samples.
        """
        whole = sum(self._counts.values())
        found: collections.Counter[str] = collections.Counter()
        of_model = ((key, count) for key, count in self._counts.items() if key[0] == OF_MODEL)
        for (whose, _), count in [*self._of_whom.items(), *of_model]:
            found[whose] += count
        return {whose: count / whole for whose, count in found.items()}

    def _sample(self) -> None:
        phase = self._phase()
        line, whose = self._line(sys._current_frames().get(self._thread))
        if phase == REST and whose == OF_MODEL:
            phase = OF_MODEL
        found = (phase, line)
        if found not in self._counts and len(self._counts) >= _MOST_LINES:
            return
        self._counts[found] += 1
        is_within = phase in WITHIN_BATCH or (phase == DATALOADER and whose in _BESIDE_LOADING)
        if is_within and whose and whose != OF_MODEL:
            self._of_whom[whose, line] += 1

    def _line(self, frame: Optional[FrameType]) -> tuple[str, str]:
        """The innermost line of the user's code below the Trainer, such as ``data.py:30 __getitem__``; ``''`` without.
        Also whose it is: of a callback, a metric, the loss or an optimizer; in a loop without the Trainer, of training's own
        work or of the loop; else ``''``.
        """
        line, whose, below, runs_model, trains = '', '', '', False, False
        for _ in range(_FRAMES):
            if frame is None:
                break
            filename = frame.f_code.co_filename
            if filename.endswith(_TRAINER):
                # A loss that runs a model does training's own work.
                return line, whose or (LOSS if below == 'loss' and not runs_model else '')
            trains = trains or filename.endswith((_MODULE, _BACKWARD)) or _OPTIMIZERS in filename
            if any(each in filename for each in _OTHER_TRAINERS):
                break
            if not line and self._is_own(filename):
                line = f'{os.path.basename(filename)}:{frame.f_lineno} {frame.f_code.co_name}'
            elif line:
                whose = whose or self._caller(filename, frame.f_code.co_name)
                runs_model = runs_model or filename.endswith(_MODULE)
            below = frame.f_code.co_name
            frame = frame.f_back
        return line, whose or (OF_MODEL if trains else LOOP if line else '')

    def _caller(self, filename: str, function: str) -> str:
        if filename.endswith(_ENGINE):
            return ALGORITHMS if function == _RUNS_ALGORITHMS else CALLBACKS
        if filename.endswith(_DATALOADER):
            return SAMPLER if function == _ASKS_SAMPLER else ''
        if filename.endswith(_METRIC):
            return METRICS
        return STEP if _OPTIMIZERS in filename else ''
