"""The store is asked before the first batch: each thing that can be wrong is a sentence, and training does not wait."""

from __future__ import annotations

import contextlib
import inspect
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import s3fs

from composer_memprof import HostRSS, StepTimes
from composer_memprof.artifacts.uploading import errors as store_errors
from composer_memprof.artifacts.uploading.destinations import FsspecDestination
from composer_memprof.artifacts.uploading.probe import find_problem
from tests.conftest import entries, make_trainer, train, wait_for

BEGINNING = 'nothing can be uploaded to s3://'


@pytest.fixture(autouse=True)
def no_metadata_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a client without credentials asks for them at a fixed address."""
    monkeypatch.setenv('AWS_EC2_METADATA_DISABLED', 'true')


@contextlib.contextmanager
def authentication() -> Iterator[None]:
    """The loopback S3 checks keys and permissions meanwhile."""
    authorization = pytest.importorskip('moto.core.authorization')
    with authorization.enable_iam_authentication():
        yield


def key_that_may(endpoint: str, *actions: str) -> dict[str, str]:
    boto3 = pytest.importorskip('boto3')
    iam = boto3.client('iam', endpoint_url=endpoint)
    user = f'user-{"-".join(actions).replace(":", "-")}'
    with contextlib.suppress(iam.exceptions.EntityAlreadyExistsException):
        iam.create_user(UserName=user)
    if actions:
        statement = {'Effect': 'Allow', 'Action': actions, 'Resource': '*'}
        policy = json.dumps({'Version': '2012-10-17', 'Statement': [statement]})
        iam.put_user_policy(UserName=user, PolicyName='rights', PolicyDocument=policy)
    made = iam.create_access_key(UserName=user)['AccessKey']
    return {'key': made['AccessKeyId'], 'secret': made['SecretAccessKey']}


def wait_for_probes() -> None:
    wait_for(lambda: not any(thread.name == 'memprof-probe' for thread in threading.enumerate()), 40)


def messages(recwarn: pytest.WarningsRecorder) -> list[str]:
    return [str(warning.message) for warning in recwarn if BEGINNING in str(warning.message)]


def test_nothing_is_found_where_nothing_is_wrong_and_nothing_is_left_there(s3: Any) -> None:
    assert find_problem('s3://runs/folder/x') is None
    assert s3.find('runs') == [] and s3.call_s3('list_multipart_uploads', Bucket='runs').get('Uploads', []) == []


def test_a_missing_bucket_is_found(s3: Any) -> None:
    assert find_problem('s3://no-such-bucket/x') == store_errors.NO_BUCKET


def test_a_wrong_key_and_a_missing_permission_are_found(s3: Any, s3_endpoint: str) -> None:
    powerless = key_that_may(s3_endpoint)
    with authentication():
        assert find_problem('s3://runs/x') == store_errors.WRONG_KEY
        assert find_problem('s3://runs/x', {**powerless, 'secret': 'another'}) == store_errors.WRONG_KEY
        assert find_problem('s3://runs/x', powerless) == store_errors.NO_PERMISSION


def test_a_key_that_may_only_read_is_found(s3: Any, s3_endpoint: str) -> None:
    reads = key_that_may(s3_endpoint, 's3:GetObject', 's3:ListBucket')
    with authentication():
        assert find_problem('s3://runs/x', reads) == store_errors.NO_PERMISSION


def test_a_key_that_may_only_write_is_enough_and_replaces_nothing(s3: Any, s3_endpoint: str, tmp_path: Path) -> None:
    if 'mode' not in inspect.signature(s3fs.S3FileSystem._put_file).parameters:
        pytest.skip('this s3fs cannot upload on the condition that there is no such file')
    writes = key_that_may(s3_endpoint, 's3:PutObject')
    path = tmp_path / 'file.bin'
    with authentication():
        assert find_problem('s3://runs/x/file.bin', writes) is None
        for content in (b'first', b'second'):
            path.write_bytes(content)
            FsspecDestination(writes).upload(path, 's3://runs/x/file.bin')
    assert {name: s3.cat(name) for name in s3.find('runs')} == {
        'runs/x/file.bin': b'first',
        'runs/x/file.2.bin': b'second',
    }


def test_missing_credentials_are_found(s3: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ('AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY'):
        monkeypatch.delenv(name)
    monkeypatch.setenv('AWS_SHARED_CREDENTIALS_FILE', str(tmp_path / 'none'))
    monkeypatch.setenv('AWS_CONFIG_FILE', str(tmp_path / 'none'))
    assert find_problem('s3://runs/x') == store_errors.NO_CREDENTIALS


def test_what_is_wrong_with_the_endpoint_is_found(s3: Any, s3_endpoint: str) -> None:
    with socket.create_server(('127.0.0.1', 0)) as silent:
        address = f'http://127.0.0.1:{silent.getsockname()[1]}'
        assert find_problem('s3://runs/x', {'endpoint_url': address}, patience=2) == store_errors.NO_ANSWER
    for endpoint, problem in (
        (address, store_errors.REFUSED),
        ('http://no-such-host.invalid', store_errors.NO_HOST),
        (s3_endpoint.replace('http:', 'https:'), store_errors.NO_TLS),
    ):
        assert find_problem('s3://runs/x', {'endpoint_url': endpoint}) == problem


def test_options_that_the_client_refuses_are_found(s3: Any) -> None:
    problem = find_problem('s3://runs/x', {'config_kwargs': {'no_such_setting': 1}})
    assert problem is not None and 'no_such_setting' in problem and 'Check remote_file_name, storage_options' in problem


@pytest.mark.parametrize(
    ('error', 'sentence'),
    [
        (OSError(101, 'Network is unreachable'), store_errors.NO_ROUTE),
        (OSError(113, 'No route to host'), store_errors.NO_ROUTE),
        (PermissionError('Forbidden'), store_errors.NO_PERMISSION),
        (TimeoutError(), store_errors.NO_ANSWER),
    ],
)
def test_an_error_has_a_sentence_also_as_the_cause_of_another(error: Exception, sentence: str) -> None:
    outer = RuntimeError('the client gave up')
    outer.__cause__ = error
    assert store_errors.explain(error) == store_errors.explain(outer) == sentence


def test_a_busy_store_is_no_problem() -> None:
    error = OSError('busy')
    error.code = 503  # type: ignore[attr-defined]
    assert store_errors.explain(error) is None


def test_it_is_one_warning_before_the_first_batch_for_all_callbacks(s3: Any, recwarn: pytest.WarningsRecorder) -> None:
    trainer = make_trainer(*(each(remote_file_name='s3://no-such-bucket/x') for each in (HostRSS, StepTimes)))
    wait_for_probes()
    (told,) = messages(recwarn)
    assert store_errors.NO_BUCKET in told and 's3://no-such-bucket: ' in told
    assert 'Training continues' in told and 'composer-memprof push' in told
    trainer.close()


def test_it_can_be_switched_off(s3: Any, recwarn: pytest.WarningsRecorder) -> None:
    make_trainer(HostRSS(remote_file_name='s3://no-such-bucket/x', probe=False)).close()
    wait_for_probes()
    assert messages(recwarn) == []


def test_another_rank_of_the_node_does_not_ask(
    s3: Any, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('composer.utils.dist.get_local_rank', lambda: 1)
    make_trainer(HostRSS(remote_file_name='s3://no-such-bucket/x')).close()
    wait_for_probes()
    assert messages(recwarn) == []


def test_training_does_not_wait_for_the_answer(s3: Any) -> None:
    with socket.create_server(('127.0.0.1', 0)) as silent:
        options = {'endpoint_url': f'http://127.0.0.1:{silent.getsockname()[1]}'}
        callback = HostRSS(remote_file_name='s3://runs/x', storage_options=options, close_timeout=0)
        with pytest.warns(UserWarning, match='not uploaded within'):
            trainer = train(callback)
        assert any(thread.name == 'memprof-probe' for thread in threading.enumerate()), 'it still waits'
    wait_for_probes()
    assert trainer.state.timestamp.batch.value == 12
    assert {entry.status for entry in entries(Path('test-run'))} == {'saved'}


def test_a_folder_of_this_machine_that_cannot_be_written_to_is_found(tmp_path: Path) -> None:
    (tmp_path / 'file').write_text('')
    assert find_problem(f'file://{tmp_path}/new/folder/x') is None
    problem = find_problem(f'file://{tmp_path}/file/folder/x')
    assert problem is not None and 'is not a folder that this user can write to' in problem
