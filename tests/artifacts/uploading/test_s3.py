"""Callbacks that upload to a real S3 API on loopback, without delaying the training."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import s3fs
from composer.loggers import InMemoryLogger

from composer_memprof import HostRSS, MemorySnapshot, TorchProfiler
from tests.conftest import entries, train

pytestmark = pytest.mark.slow


def test_every_file_is_uploaded_with_the_sha256_that_the_manifest_lists(s3: Any) -> None:
    train(
        MemorySnapshot(schedule={'active': '1ba', 'every': '6ba'}, remote_file_name='s3://runs/{run_name}/snapshots'),
        TorchProfiler(
            schedule={'skip': '2ba', 'warmup': '1ba', 'active': '2ba'},
            remote_file_name='s3://runs/{run_name}/traces/rank{rank}.{batch}.pt.trace.json',
            use_gzip=True,
        ),
        HostRSS(remote_file_name='s3://runs/{run_name}/host'),
        batches=12,
    )
    listed = entries(Path('test-run'))
    assert {entry.kind for entry in listed} >= {'memory_snapshot', 'torch_profiler', 'host_rss'}
    for entry in listed:
        folder = next(Path('test-run').rglob(entry.path)).parent
        content = (folder / entry.path).read_bytes()
        assert entry.status == 'uploaded'
        assert entry.remote is not None
        assert hashlib.sha256(s3.cat(entry.remote)).hexdigest() == entry.sha256 == hashlib.sha256(content).hexdigest()
    last_lines = [line for path in Path('test-run').rglob('*.manifest.jsonl') for line in path.read_text().splitlines()]
    of_artifacts = [line for line in map(json.loads, last_lines) if not line['path'].startswith('.')]
    assert {line['status'] for line in of_artifacts} == {'open', 'saved', 'uploaded'}


def test_credentials_given_as_options_reach_no_file(s3_endpoint: str, s3: Any, monkeypatch: Any) -> None:
    for name in ('AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY', 'AWS_ENDPOINT_URL'):
        monkeypatch.delenv(name)
    s3fs.S3FileSystem.clear_instance_cache()
    options = {'key': 'an-open-key', 'secret': 'a-closed-secret', 'endpoint_url': s3_endpoint}
    train(HostRSS(remote_file_name='s3://runs/x', storage_options=options))
    assert [entry.status for entry in entries(Path('test-run'))] == ['uploaded', 'uploaded']
    for path in Path('test-run').rglob('*'):
        assert path.is_dir() or (
            b'a-closed-secret' not in path.read_bytes() and b'an-open-key' not in path.read_bytes()
        )


def test_a_second_run_into_the_same_store_overwrites_nothing(s3: Any) -> None:
    for folder in ('first', 'second'):
        train(HostRSS(folder=folder, remote_file_name='s3://runs/x'))
    names = ['host_rss.2.jsonl', 'host_rss.2.summary.json', 'host_rss.jsonl', 'host_rss.summary.json']
    assert sorted(s3.find('runs')) == [f'runs/x/rank0.0.{name}' for name in names]
    train(HostRSS(folder='third', remote_file_name='s3://runs/x', overwrite=True))
    assert len(s3.find('runs')) == 4


def test_a_missing_bucket_is_one_warning_and_training_completes(s3: Any) -> None:
    import pytest

    logger = InMemoryLogger()
    with pytest.warns(UserWarning, match='uploading .* failed') as caught:
        trainer = train(HostRSS(remote_file_name='s3://no-such-bucket/x'), loggers=[logger])
    assert trainer.state.timestamp.batch.value == 12
    assert sum('failed' in str(warning.message) for warning in caught) == 1
    assert [entry.status for entry in entries(Path('test-run'))] == ['failed', 'failed']
