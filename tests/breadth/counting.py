"""The peak of configurations as torch's ``MemTracker`` counts it on tensors without data: ``python -m tests.breadth.counting NAME…``.

No allocator takes part: sizes of tensors are added up, each rounded up to 512 B. What an operator allocates within itself it
does not see. A simulated GPU must be there, since torch asks even for tensors without data whether there is one.
"""

from __future__ import annotations

import json
import sys
import traceback

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from tests.breadth.row import train
from tests.breadth.rows import ROWS

_STEPS = 3


def main(names: list[str]) -> None:
    """Print for each name its peak in bytes, or why it could not be counted."""
    for name in names:
        try:
            found = {'name': name, 'bytes': counted(name)}
        except Exception as error:
            traceback.print_exc()
            said = ' '.join(f'{type(error).__name__}: {error}'.split())
            found = {'name': name, 'error': said[:200]}
        print(json.dumps(found), flush=True)


def counted(name: str) -> int:
    tracker = MemTracker()
    with FakeTensorMode(), tracker:
        with torch.device('cuda'):
            training = ROWS[name].make()
        tracker.track_external(training.model, *training.batch.values())
        train(training, _STEPS, tracker.reset_mod_stats)
    (device,) = [device for device in tracker.get_tracker_snapshot('peak') if device.type == 'cuda']
    return tracker.get_tracker_snapshot('peak')[device]['Total']


if __name__ == '__main__':
    main(sys.argv[1:])
