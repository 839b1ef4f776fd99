"""Throughputs of MPT that LLM Foundry published: of its table for A100, every third row.

Source: mosaicml/llm-foundry, scripts/train/benchmarking/README.md. Those of 40 GB were trained in pure bfloat16, those of
80 GB with gradients reduced in float32; on nodes of 8, with NVLink and 1,600 Gbit/s between nodes; with FlashAttention.
A whole table as CSV with the columns of :func:`read` may be given in its place.
"""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

from tests.benchmarks.simulation.mpt_training import Training

#: GPU, model, length, ranks, microbatch, microbatches, checkpointed, tokens a second on each GPU, MFU in per cent.
_ROWS = """
80gb 70b 2048 64 8 4 yes 410 53.33
80gb 30b 4096 8 1 21 yes 814 51.37
80gb 30b 512 8 12 21 yes 967 56.4
80gb 13b 8192 8 5 3 yes 1795 56.07
80gb 13b 1024 8 40 3 yes 2330 59.48
80gb 7b 16384 8 4 2 yes 2453 51.96
80gb 7b 2048 8 6 2 no 4641 64.23
80gb 3b 32768 8 3 6 yes 3029 47.18
80gb 3b 4096 8 5 6 no 9457 60.53
80gb 3b 512 8 40 6 no 12127 63.71
80gb 1b 16384 8 2 4 no 9956 56.6
80gb 1b 2048 8 14 4 no 20513 59.86
80gb 760m 65536 8 1 2 yes 4143 45.34
80gb 760m 8192 8 6 2 no 20933 55.31
80gb 760m 1024 8 48 2 no 29765 47.76
80gb 350m 32768 8 2 2 no 13652 52.46
80gb 350m 4096 8 16 2 no 49555 53.31
80gb 350m 512 8 128 2 no 69330 50.61
80gb 125m 16384 8 4 2 no 60040 50.61
80gb 125m 2048 8 40 2 no 142830 44.79
80gb 125m 512 8 128 2 no 165681 42.56
40gb 30b 2048 128 6 1 yes 865 52.25
40gb 13b 4096 8 2 16 yes 1603 44.85
40gb 13b 2048 32 14 1 yes 1998 52.62
40gb 13b 1024 8 8 16 yes 1727 44.07
40gb 7b 8192 8 3 4 yes 2887 49.04
40gb 7b 2048 64 18 1 yes 3665 50.73
40gb 7b 2048 8 12 4 yes 3679 50.92
40gb 3b 32768 8 1 4 yes 2955 46.03
40gb 3b 4096 8 2 8 no 8777 56.18
40gb 3b 2048 32 6 1 no 9914 56.96
40gb 3b 1024 8 10 8 no 10731 58.14
40gb 1b 16384 8 1 8 no 9715 55.23
40gb 1b 2048 128 10 1 no 18647 54.41
40gb 1b 2048 16 8 1 no 19085 55.69
40gb 1b 512 8 32 8 no 21782 57.1
40gb 760m 8192 8 3 4 no 20106 53.12
40gb 760m 2048 64 12 1 no 29344 51.44
40gb 760m 2048 8 12 4 no 30173 52.89
40gb 350m 32768 8 1 4 no 13416 51.55
40gb 350m 4096 8 8 4 no 46833 50.38
40gb 350m 2048 32 18 1 no 53811 47.26
40gb 350m 1024 8 32 4 no 62523 48.73
40gb 125m 16384 8 2 3 no 55484 46.77
40gb 125m 2048 128 26 1 no 123936 38.86
40gb 125m 2048 16 26 1 no 130535 40.93
40gb 125m 512 8 104 3 no 156735 40.26
"""


@dataclasses.dataclass(frozen=True)
class Published:
    """A training and what was measured of it."""

    gpu: str
    training: Training
    tokens_per_second: float
    mfu: float


def published() -> list[Published]:
    """The rows of this file."""
    return [_row(*line.split()) for line in _ROWS.strip().splitlines()]


def read(path: Path) -> list[Published]:
    """Those of a CSV file."""
    with path.open(encoding='utf-8') as file:
        return [
            _row(
                row['gpu'].removeprefix('a100_'),
                row['model'],
                row['sequence_length'],
                row['gpus'],
                row['microbatch'],
                row['gradient_accumulation'],
                'yes' if row['activation_checkpointing'] == 'True' else 'no',
                row['tokens_per_second_per_gpu'],
                row['mfu_percent'],
            )
            for row in csv.DictReader(file)
        ]


def _row(
    memory: str,
    model: str,
    length: str,
    ranks: str,
    microbatch: str,
    microbatches: str,
    checkpointed: str,
    tokens: str,
    mfu: str,
) -> Published:
    sizes = int(length), int(ranks), int(microbatch), int(microbatches)
    training = Training(model, *sizes, pure=memory == '40gb', checkpointed=checkpointed == 'yes')
    return Published(f'a100-{memory}', training, float(tokens), float(mfu))
