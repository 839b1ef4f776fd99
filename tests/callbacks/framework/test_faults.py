"""A machine that refuses files, processes or memory: training goes on with the same numbers, and one warning says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from composer_memprof.artifacts.reading.manifest import find_manifests, read_manifest
from tests.conftest import child_environment
from tests.support.processes import warm_python

#: One process imports everything and is forked for each fault, which begins at batch 4.
_JOBS = """
import ctypes, json, os, resource, shutil, subprocess, sys, traceback, warnings
from pathlib import Path
from composer.core import Callback
from composer.loggers import InMemoryLogger
from composer_memprof import HostRSS, MemorySnapshot
from composer_memprof.messages import MemprofWarning
from tests.conftest import make_trainer

FOLDER = Path('test-run/memprof')

def limit(name, value):
    resource.setrlimit(name, (value, resource.getrlimit(name)[1]))

def mounted_read_only():
    for options in (['--bind', str(FOLDER)], ['-o', 'remount,bind,ro']):
        subprocess.run(['mount', *options, str(FOLDER)], check=True)

def no_more_processes():
    if os.geteuid() == 0:  # no limit holds for root: another real uid, and neither CAP_SYS_ADMIN nor CAP_SYS_RESOURCE
        os.setresuid(65534, 0, 0)
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        sets = (ctypes.c_uint32 * 6)()
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.capget(header, sets) == 0
        sets[0] &= ~(1 << 21 | 1 << 24)
        assert libc.capset(header, sets) == 0
    limit(resource.RLIMIT_NPROC, 0)
    try:
        os._exit(77) if os.fork() == 0 else sys.exit('the limit does not hold')
    except BlockingIOError:
        pass

FAULTS = {
    'none': lambda: None,
    'a full disk': lambda: (FOLDER / 'filler').write_bytes(b'x' * (shutil.disk_usage(FOLDER).free - 4096)),
    'files that cannot grow': lambda: limit(resource.RLIMIT_FSIZE, 3000),
    'a folder that vanishes': lambda: (shutil.rmtree(FOLDER), FOLDER.write_text('a file')),
    'a read-only folder': mounted_read_only,
    'no more files': lambda: limit(resource.RLIMIT_NOFILE, len(os.listdir('/proc/self/fd')) - 1),
    'no more processes': no_more_processes,
    'no more memory': lambda: limit(
        resource.RLIMIT_AS, int(Path('/proc/self/statm').read_text().split()[0]) * 4096 + (16 << 20)
    ),
}
MOUNTED = ('a full disk', 'a read-only folder')

class Begins(Callback):
    def __init__(self, fault):
        self.fault = fault

    def batch_end(self, state, logger):
        if state.timestamp.batch == 4:
            FAULTS[self.fault]()

def train(fault, callbacks):
    logger = InMemoryLogger()
    trainer = make_trainer(*callbacks, Begins(fault), batches=11, loggers=[logger])
    trainer.fit()
    trainer.close()
    return [float(value) for value in logger.get_timeseries('loss/train/total')['loss/train/total']]

def job(fault):
    if fault in MOUNTED:
        FOLDER.mkdir(parents=True)
        subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=256k', 'tmpfs', str(FOLDER)], check=True)
    windows = {'skip': '2ba', 'active': '1ba', 'every': '3ba'}
    ours = [] if fault == 'none' else [
        HostRSS(interval=0.05), MemorySnapshot(schedule=windows, folder='{run_name}/memprof', page=False)
    ]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        losses = train(fault, ours)
    said = [str(each.message) for each in said if issubclass(each.category, MemprofWarning)]
    os.write(int(sys.argv[1]), json.dumps({'fault': fault, 'losses': losses, 'said': said}).encode() + b'\\n')

if __name__ == '__main__':
    for fault in sys.argv[2:]:
        Path(fault).mkdir()
        child = os.fork()
        if not child:
            try:
                os.chdir(fault)
                if fault in MOUNTED:
                    ctypes.CDLL(None).unshare(0x20000)  # the mounts are this process's own
                    subprocess.run(['mount', '--make-rprivate', '/'], check=True)
                job(fault)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
"""


def can_mount() -> bool:
    """In a name space of its own, so that nothing stays mounted."""
    command = ['unshare', '-m', 'mount', '-t', 'tmpfs', 'tmpfs', '/mnt']
    try:
        return subprocess.run(command, capture_output=True, timeout=30).returncode == 0
    except OSError:
        return False


FAULTS = [
    *('files that cannot grow', 'a folder that vanishes', 'no more files', 'no more processes', 'no more memory'),
    *(['a full disk', 'a read-only folder'] if sys.platform == 'linux' and can_mount() else []),
]


@pytest.fixture(scope='module')
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of each run, by its fault."""
    folder = tmp_path_factory.mktemp('faults')
    (folder / 'jobs.py').write_text(_JOBS)
    read, write = os.pipe()
    with os.fdopen(read) as lines:
        job = warm_python.Popen(
            [sys.executable, 'jobs.py', str(write), 'none', *FAULTS],
            cwd=folder,
            env=child_environment(OMP_NUM_THREADS='1'),
            pass_fds=[write],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(write)
        outcomes = {outcome['fault']: outcome for outcome in map(json.loads, lines)}
    _, errors = job.communicate(timeout=300)
    assert set(outcomes) == {'none', *FAULTS}, errors
    return {**outcomes, 'folder': folder}


@pytest.mark.parametrize('fault', FAULTS)
def test_training_goes_on_with_the_same_numbers_and_one_warning_of_what_is_lost(
    outcomes: dict[str, Any], fault: str
) -> None:
    assert len(outcomes['none']['losses']) == 11
    assert outcomes[fault]['losses'] == outcomes['none']['losses']
    said = [line for line in outcomes[fault]['said'] if 'waiting for the last files' not in line]
    # Without further files or processes the training's own does what it can, so that nothing may be lost.
    assert len(said) in ((0, 1) if fault in ('no more files', 'no more processes') else (1,)), said


@pytest.mark.parametrize('fault', FAULTS)
def test_what_was_listed_before_stays_listed(outcomes: dict[str, Any], fault: str) -> None:
    if fault == 'a folder that vanishes' or fault.startswith('a '):
        pytest.skip('its manifest is gone with its folder')
    listed = [entry for path in find_manifests(outcomes['folder'] / fault) for entry in read_manifest(path)]
    snapshots = [entry.batch for entry in listed if entry.kind == 'memory_snapshot' and entry.status == 'saved']
    assert 3 in snapshots
    if fault in ('no more files', 'no more processes'):
        assert snapshots == [3, 6, 9], 'written in the process of the training'
