"""What uploads cost: handing a file over, their speed against awscli's, and a step of the training while they go on."""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from composer.core import Timestamp

from composer_memprof.artifacts.naming.names import Naming, Stamp
from composer_memprof.artifacts.reading.manifest import find_manifests, read_manifest
from composer_memprof.artifacts.store import ArtifactStore
from composer_memprof.artifacts.uploading.destinations import FsspecDestination
from composer_memprof.artifacts.uploading.process.start import UploadFailedError, UploadProcess
from tests.benchmarks.figures import Report
from tests.benchmarks.trainers import BatchTimer, quickstart_trainer
from tests.conftest import s3_environment
from tests.support.sink import start_sink

_ROOT = Path(__file__).parents[3]
#: awscli has pins of its own.
_AWS_VENV = _ROOT / '.venv-awscli'
_FILES, _BYTES = 10, 100 << 20
_STEPS = 40
_RATE = 50_000_000


def uploads(rounds: int, report: Report) -> None:
    for number in range(_FILES):
        Path(f'file{number}').write_bytes(os.urandom(_BYTES))
    hand_over(report)
    with _moto() as endpoint:
        os.environ.update(s3_environment(endpoint))
        against_awscli(min(rounds, 3), endpoint, report)


def _store(folder: str, remote: str, options: dict[str, Any]) -> ArtifactStore:
    return ArtifactStore(Path(folder), Naming('{rank}.{batch}', remote, '.bin'), FsspecDestination(options))


def _hand_over(store: ArtifactStore, number: int) -> float:
    """Give the store a whole file; returns the seconds that it took the calling thread."""
    growing = store.grow('thing', '.bin', Stamp('run', Timestamp(batch=number)))
    growing.path.unlink()
    os.link(f'file{number % _FILES}', growing.path)
    begin = time.perf_counter()
    growing.close()
    return time.perf_counter() - begin


def hand_over(report: Report) -> None:
    """The calling thread's time to give a file of 100 MB to the store, which syncs, hashes and uploads it."""
    process, endpoint = start_sink()
    os.environ.update(s3_environment(endpoint))
    store = _store('handed', 's3://bench/handed', {'endpoint_url': endpoint})
    seconds = []
    for number in range(_FILES):
        seconds.append(_hand_over(store, number))
        time.sleep(0.5)
    store.close(120)
    process.kill()
    shutil.rmtree('handed')
    print(f'  handing over 100 MB: the first {seconds[0] * 1e3:.2f} ms, then {statistics.median(seconds) * 1e3:.2f} ms')
    report('the longest hand-over of 100 MB, in ms', max(seconds) * 1e3, 1.0)


@contextmanager
def _moto() -> Iterator[str]:
    """A real S3 API in a process of its own."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    code = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    process = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            try:
                socket.create_connection(('127.0.0.1', port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f'http://127.0.0.1:{port}'
    finally:
        process.kill()
        process.wait()


def _awscli() -> Path:
    """awscli, in an environment of its own."""
    program = _AWS_VENV / 'bin' / 'aws'
    if not program.exists():
        subprocess.run([sys.executable, '-m', 'venv', _AWS_VENV], check=True)
        subprocess.run([_AWS_VENV / 'bin' / 'pip', 'install', '--quiet', 'awscli'], check=True)
    return program


def against_awscli(rounds: int, endpoint: str, report: Report) -> None:
    """1 GB in 10 files to the same store, ours and awscli's in turn."""
    import s3fs

    try:
        program = _awscli()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f'  awscli could not be installed: {error}')
        return
    s3 = s3fs.S3FileSystem(endpoint_url=endpoint, skip_instance_cache=True)

    def ours() -> None:
        store = _store('sent', 's3://bench/ours', {'endpoint_url': endpoint})
        for number in range(_FILES):
            _hand_over(store, number)
        store.close(600)
        (manifest,) = find_manifests(Path('sent'))
        assert [entry.status for entry in read_manifest(manifest)] == ['uploaded'] * _FILES

    def theirs() -> None:
        filters = ['--exclude', '*', '--include', 'file*']
        subprocess.run([program, 's3', 'cp', '--recursive', '--quiet', *filters, '.', 's3://bench/aws'], check=True)

    taken: dict[str, list[float]] = {'ours': [], 'aws': []}
    for number in range(rounds + 1):
        for name, send in (('ours', ours), ('aws', theirs)):
            shutil.rmtree('sent', ignore_errors=True)
            if s3.exists('bench'):
                s3.rm('bench', recursive=True)
            s3.mkdir('bench')
            begin = time.perf_counter()
            send()
            if number:
                taken[name].append(time.perf_counter() - begin)
    ratio = statistics.median(mine / done for mine, done in zip(taken['ours'], taken['aws']))
    print('  1 GB in 10 files: ' + ', '.join(f'{name} {statistics.median(s):.1f} s' for name, s in taken.items()))
    report("the time to hash and upload 1 GB against awscli's to upload it", ratio, 1 / 0.9)


@contextmanager
def _uploading(process: UploadProcess, endpoint: str, rate: int) -> Iterator[None]:
    """Upload a file again and again, ``rate`` bytes a second, or as fast as can be with 0."""
    destination = FsspecDestination({'endpoint_url': endpoint}, overwrite=True)
    over, ended = threading.Event(), {'whole': 0, 'failed': 0}

    def send() -> None:
        while not over.is_set():
            begin = time.perf_counter()
            try:
                process.upload(destination, Path('file0').absolute(), 's3://bench/training/file')
                ended['whole'] += 1
            except (OSError, UploadFailedError):  # a store with faults
                ended['failed'] += 1
            over.wait(max(0.0, _BYTES / rate - (time.perf_counter() - begin)) if rate else 0)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        print(f'    uploads of 100 MB: {ended["whole"]} whole, {ended["failed"]} failed')


def while_training(rounds: int, report: Report) -> None:
    """A step with uploads going on all the time, against one without; then with faults, against one without faults.

    The store costs no CPU.
    """
    Path('file0').write_bytes(os.urandom(_BYTES))
    (store, sink), (faulty_store, faulty) = start_sink(), start_sink('faults')
    os.environ.update(s3_environment(sink))
    process = UploadProcess()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # else the step takes each core there is, and anything else slows it down
    times = BatchTimer()
    trainer = quickstart_trainer([times])
    trainer.fit(duration=f'{_STEPS}ba')

    def step(around: AbstractContextManager[None]) -> float:
        with around:
            trainer.fit(duration=f'{_STEPS}ba')
            return statistics.fmean(times.seconds[-_STEPS + 2 :])

    full, limited = partial(_uploading, process, sink, 0), partial(_uploading, process, sink, _RATE)
    failing = partial(_uploading, process, faulty, _RATE)
    for name, uploading, without, goal in (
        ('a step while files are uploaded at full speed against one without', full, nullcontext, 1.03),
        ('a step while files are uploaded at 50 MB/s against one without', limited, nullcontext, 1.03),
        ('a step while uploads meet faults against one while they meet none', failing, limited, 1.05),
    ):
        ratios = [step(uploading()) / step(without()) for _ in range(rounds)]
        report(name, statistics.median(ratios), goal)
    trainer.close()
    torch.set_num_threads(threads)
    process.stop()
    store.kill()
    faulty_store.kill()
