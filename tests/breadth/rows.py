"""All configurations by name, and one of them trained on the GPU: ``python -m tests.breadth.rows NAME``."""

from __future__ import annotations

import sys

import torch

from tests.breadth import examples, irregular, language, methods, pretraining, vision
from tests.breadth.row import Row, train

ROOMS = (language, vision, examples, methods, irregular, pretraining)
ROWS: dict[str, Row] = {row.name: row for room in ROOMS for row in room.rows()}
#: More than the steps that are judged.
_STEPS = 5


def main(name: str) -> None:
    with torch.device('cuda'):
        training = ROWS[name].make()
    train(training, _STEPS)


if __name__ == '__main__':
    main(*sys.argv[1:])
