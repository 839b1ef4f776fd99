"""Reads damaged snapshots by the ten thousand: ``python -m tests.benchmarks.analysis.fuzz_snapshots --count 20000``.

In turn, bytes and values are damaged. Each snapshot is either read and analyzed, or refused in one line. Anything else
ends the run with the input's seed. Prints how many were read and refused.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import os
import random
import resource
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.memory.summary import summary_of
from composer_memprof.analysis.snapshot.loading import SnapshotError, load_snapshot
from tests.support.recordings.damage import a_whole_snapshot, damaged, mangled


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--count', type=int, default=20_000, help='inputs to read')
    parser.add_argument('--seed', type=int, default=0, help='seed of the first input; the next ones count up')
    options = parser.parse_args()
    wholes = [a_whole_snapshot(protocol) for protocol in (0, 2, 4, 5)]
    refusals: collections.Counter[str] = collections.Counter()
    read, slowest, began = 0, 0.0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        path = Path('damaged')
        for seed in range(options.seed, options.seed + options.count):
            random_ = random.Random(seed)
            path.write_bytes(mangled(random_) if seed % 2 else damaged(random_.choice(wholes), random_))
            start = time.monotonic()
            try:
                with contextlib.redirect_stderr(
                    io.StringIO()
                ):  # Python prints a line of its own if a buffer gets no memory
                    report = report_on(load_snapshot(path, limit_memory=True))
                json.dumps(asdict(report))
                assert len(json.dumps(summary_of(report).as_dict()).encode()) <= 4096
                read += 1
            except SnapshotError as error:
                assert '\n' not in str(error), seed
                refusals[str(error).partition(': ')[2].partition(':')[0][:40]] += 1
            except BaseException:
                sys.stderr.write(f'seed {seed}\n')
                raise
            slowest = max(slowest, time.monotonic() - start)
            assert set(os.listdir()) == {'damaged'}, f'seed {seed} wrote a file'
        os.chdir('/')
    refused = sum(refusals.values())
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f'{options.count} damaged snapshots: {read} read, {refused} refused in one line')
    print(f'{time.monotonic() - began:.0f} s, the slowest {slowest:.2f} s, {held:.0f} MB at most')
    for reason, count in refusals.most_common(8):
        print(f'  {count:6d} {reason}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
