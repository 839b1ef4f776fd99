"""The upload test on another store: Azure's blobs, by Azurite on loopback, which npm installs once."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from composer_memprof import HostRSS, MemorySnapshot
from composer_memprof.artifacts.uploading import errors as store_errors
from composer_memprof.artifacts.uploading.probe import find_problem
from tests.conftest import entries, train, wait_for

pytestmark = pytest.mark.slow

AZURITE = 'azurite@3'
#: Azurite's own account; it is in its documentation.
ACCOUNT = 'devstoreaccount1'
KEY = 'Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=='


def _installed() -> Path:
    """Azurite's folder below the user's cache folder, installed if it is not there; skips the tests where it can't be."""
    folder = Path(os.environ.get('XDG_CACHE_HOME', Path.home() / '.cache')) / 'composer-memprof-tests' / 'azurite'
    script = folder / 'node_modules' / 'azurite' / 'dist' / 'src' / 'blob' / 'main.js'
    npm = shutil.which('npm', path=f'{Path(sys.executable).parent}:{os.environ.get("PATH", "")}')
    if npm is None:
        pytest.skip('there is no npm, which installs Azurite')
    if not script.is_file():
        command = [npm, 'install', '--prefix', str(folder), '--no-audit', '--no-fund', '--ignore-scripts', AZURITE]
        environment = {**os.environ, 'PATH': f'{Path(npm).parent}:{os.environ.get("PATH", "")}'}
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
        if done.returncode or not script.is_file():
            pytest.skip(f'Azurite could not be installed: {done.stderr.strip()[-200:]}')
    return script


@pytest.fixture(scope='module')
def azure() -> Iterator[dict[str, Any]]:
    """Storage options of an Azurite on loopback, with an empty container ``runs``."""
    adlfs = pytest.importorskip('adlfs')
    node = shutil.which('node', path=f'{Path(sys.executable).parent}:{os.environ.get("PATH", "")}')
    script = _installed()
    with socket.create_server(('127.0.0.1', 0)) as free:
        port = free.getsockname()[1]
    where = ['--blobHost', '127.0.0.1', '--blobPort', str(port)]
    quiet = ['--inMemoryPersistence', '--skipApiVersionCheck', '--disableTelemetry', '--silent']
    server = subprocess.Popen(
        [str(node), str(script), *where, *quiet], stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        wait_for(lambda: _listens(port), 60)
        endpoint = f'http://127.0.0.1:{port}/{ACCOUNT}'
        connection = f'DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={endpoint};'
        adlfs.AzureBlobFileSystem(connection_string=connection).mkdir('runs')
        yield {'connection_string': connection}
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # node may run below a script that passes no signal on
        server.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(('127.0.0.1', port), 1).close()
    except OSError:
        return False
    return True


def test_every_file_is_uploaded_with_the_sha256_that_the_manifest_lists(azure: dict[str, Any]) -> None:
    adlfs = pytest.importorskip('adlfs')
    for folder in ('first', 'second'):
        train(
            HostRSS(folder=folder, remote_file_name='az://runs/{run_name}', storage_options=azure),
            MemorySnapshot(
                schedule={'active': '1ba'},
                folder=folder,
                remote_file_name='az://runs/{run_name}/snapshots',
                storage_options=azure,
            ),
        )
    filesystem = adlfs.AzureBlobFileSystem(**azure, skip_instance_cache=True)
    listed = entries(Path())
    assert {entry.status for entry in listed} == {'uploaded'}
    assert sorted(filesystem.find('runs')) == sorted(str(entry.remote).removeprefix('az://') for entry in listed)
    for entry in listed:
        assert hashlib.sha256(filesystem.cat(entry.remote)).hexdigest() == entry.sha256
    for path in Path().rglob('*'):
        assert path.is_dir() or KEY.encode() not in path.read_bytes()


def test_what_is_wrong_is_found_before_the_first_batch(azure: dict[str, Any]) -> None:
    connection = azure['connection_string']
    assert find_problem('az://runs/x', azure) is None
    assert find_problem('az://no-such-container/x', azure) == store_errors.NO_BUCKET
    wrong_key = {'connection_string': connection.replace(KEY, KEY.replace('Eby8', 'AAAA'))}
    assert find_problem('az://runs/x', wrong_key) in (store_errors.WRONG_KEY, store_errors.NOT_AUTHORIZED)
    elsewhere = {'connection_string': connection.replace(_port(connection), '9')}
    assert find_problem('az://runs/x', elsewhere) == store_errors.REFUSED


def _port(connection: str) -> str:
    return connection.rpartition('127.0.0.1:')[2].partition('/')[0]
