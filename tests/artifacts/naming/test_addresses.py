"""Addresses: which are refused before the first batch, and that no credential reaches a message, a log or a file."""

from __future__ import annotations

import http.server
import importlib.util
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from composer.loggers import InMemoryLogger
from fsspec.implementations.memory import MemoryFileSystem

from composer_memprof import HostRSS
from composer_memprof.artifacts.naming.addresses import check_scheme, is_served_by_composer, scheme_of
from composer_memprof.artifacts.naming.names import Naming
from composer_memprof.artifacts.uploading.composer_stores import ComposerStoreFileSystem
from composer_memprof.artifacts.uploading.destinations import FsspecDestination
from composer_memprof.artifacts.uploading.push.push import push
from composer_memprof.redaction import hide_values, redacted
from tests.conftest import entries, make_trainer, train
from tests.support.stores import stamp

SECRET = 'SeCrEt0123'


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'address',
    [
        f's3://KEY:{SECRET}/RET@bucket/x',
        f's3://{SECRET}@bucket/x',
        f's3:/KEY:{SECRET}@bucket/x',
        f'KEY:{SECRET}@bucket/x',
        f'simplecache::s3://KEY:{SECRET}@bucket/x',
        'simplecache::s3://bucket/x',
        f'memory://b/a::s3://KEY:{SECRET}@bucket',
        f'az://container/x?sv=2024&sig={SECRET}',
        f's3://bucket/x?X-Amz-Signature={SECRET}',
        f's3://bucket/x?anything={SECRET}',
        f'https://user:{SECRET}@host/x',
        f'sftp://me:{SECRET}@host/x',
        f'abfs://container@account.dfs.core.windows.net/x;AccountKey={SECRET}',
        's3://bucket/AKIAIOSFODNN7EXAMPLE/x',
    ],
)
def test_an_address_with_a_credential_is_refused_and_the_error_does_not_repeat_it(address: str) -> None:
    for settings in ({'remote_file_name': address}, {'remote_file_name': f'{address}/{{no_such_variable}}'}):
        with pytest.raises(ValueError, match='must be the address of one store without credentials') as caught:
            HostRSS(**settings)
        assert SECRET not in str(caught.value) and 'AKIA' not in str(caught.value)


@pytest.mark.parametrize(
    'address',
    [
        's3://training-runs/{run_name}',
        's3://bucket/hf_finetune_mpt_7b_instruct_again/x',
        'gs://asiasoutheast1bucket/x',
        's3://bucket/token={token}/{batch}',
        'file:///workspace/runs',
    ],
)
def test_an_ordinary_word_is_no_credential_whatever_the_environment_has(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {'DB_PASSWORD': 'training', 'APPTAINER_PWD': '/workspace', 'A_SECRET': 'research1'}.items():
        monkeypatch.setenv(name, value)
    hide_values({'profile': 'research', 'username': 'bucket'})
    if not address.startswith('gs'):  # its package is not among those of the tests
        HostRSS(remote_file_name=address)
    assert redacted(address) == address


def test_a_text_is_redacted_soon_and_whatever_bytes_the_environment_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, 'MY_PASSWORD', os.fsdecode(b'p\xe4ssw\xf6rd1'))
    assert redacted('ok ' + 'a-' * 50_000).startswith('ok a-')


@pytest.mark.parametrize(
    ('address', 'words'),
    [
        ('s3:/bucket/x', "did you mean 's3://bucket/x'"),
        ('s3//bucket/x', "did you mean 's3://bucket/x'"),
        ('s3:bucket/x', "did you mean 's3://bucket/x'"),
        ('s3://', 'it has no bucket'),
        ('s3:///folder', 'it has no bucket'),
        ('S3://bucket/x', 'lower case: s3://'),
        ('http://host/x', 'nothing can be uploaded to http://'),
        ('zip://file.zip', 'nothing can be uploaded to zip://'),
        ('simplecache://x', 'nothing can be uploaded to simplecache://'),
        ('dbfs:/Volumes/main', 'it has no volume'),
        ('dbfs:/somewhere', 'only volumes are served: dbfs:/Volumes/'),
        ('s4://bucket', 's4:// is unknown'),
    ],
)
def test_an_address_that_nobody_serves_is_refused_with_what_to_write(address: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        HostRSS(remote_file_name=address)
    assert f'HostRSS: remote_file_name={address!r}: ' in str(caught.value) and words in str(caught.value)


@pytest.mark.parametrize(
    'address',
    ('runs/x', '/traces', 'run:1/x', 's3/x', 'memory://', 'file:///tmp/x', 's3://{run_name}/x', 's3://b/x@y'),
)
def test_other_names_are_taken(address: str) -> None:
    check_scheme(address, 'remote_file_name')


def test_a_container_may_have_its_account_and_a_host_its_user() -> None:
    for address in ('abfs://container@account.dfs.core.windows.net/x', 'sftp://me@host/x'):
        try:
            check_scheme(address, 'remote_file_name')
        except ValueError as error:  # its package may be missing here
            assert 'needs a package that is not installed' in str(error)


@pytest.mark.parametrize(
    ('address', 'module', 'package'),
    [
        ('dbfs:/Volumes/main/default/runs/x', 'databricks', 'databricks-sdk'),
        ('oci://bucket/x', 'oci', 'oci'),
        ('azure://container/x', 'libcloud', 'apache-libcloud'),
    ],
)
def test_a_store_of_composers_names_the_package_that_it_needs(address: str, module: str, package: str) -> None:
    assert scheme_of(address) == address.partition(':')[0]
    assert is_served_by_composer(address)
    try:
        __import__(module)
    except ImportError:
        with pytest.raises(ValueError, match=f'pip install {package}'):
            check_scheme(address, 'remote_file_name')
    else:
        check_scheme(address, 'remote_file_name')
        with pytest.raises(ValueError, match='takes none here; its credentials come from'):
            HostRSS(remote_file_name=address, storage_options={'token': SECRET})


def test_azure_is_led_to_az_too() -> None:
    if importlib.util.find_spec('libcloud') is not None:
        pytest.skip("Composer's own store serves azure:// here")
    with pytest.raises(ValueError, match='or write az://'):
        check_scheme('azure://container/x', 'remote_file_name')


def test_a_folder_that_is_an_address_is_refused() -> None:
    with pytest.raises(ValueError, match='folder must be a folder on this machine') as caught:
        HostRSS(folder=f's3://KEY:{SECRET}@bucket/x')
    assert SECRET not in str(caught.value)


def test_an_unknown_storage_option_is_refused_without_a_connection() -> None:
    pytest.importorskip('s3fs')
    with pytest.raises(ValueError, match=r"s3:// has no option 'scret'.* did you mean 'secret'") as caught:
        HostRSS(remote_file_name='s3://runs/x', storage_options={'scret': SECRET})
    assert SECRET not in str(caught.value)
    HostRSS(remote_file_name='s3://runs/x', storage_options={'key': 'k', 'profile': 'p', 'use_listings_cache': False})


def test_the_root_of_a_store_is_a_folder_too() -> None:
    naming = Naming('a.json', 'memory://', '.json')
    assert naming.in_store(stamp(), '.json', 1, 'a.json') == 'memory:///a.json'
    naming = Naming('a.json', 'file:///', '.json')
    assert naming.in_store(stamp(), '.json', 1, 'a.json') == 'file:///a.json'


# -- what is said at the start ------------------------------------------------------------------------------------


def test_a_plain_name_that_no_logger_takes_is_said_at_the_start() -> None:
    with pytest.warns(
        UserWarning, match="HostRSS uploads nothing: remote_file_name='runs/x' is not the address"
    ) as told:
        trainer = make_trainer(HostRSS(remote_file_name='runs/x'), loggers=[InMemoryLogger()])
    assert sum('uploads nothing' in str(warning.message) for warning in told) == 1
    trainer.close()


def test_nothing_is_said_where_uploads_were_not_asked_for(recwarn: pytest.WarningsRecorder) -> None:
    from composer_memprof import MemorySnapshot

    make_trainer(MemorySnapshot(), HostRSS()).close()
    assert not [warning for warning in recwarn if 'uploads nothing' in str(warning.message)]


def test_mlflow_takes_files_through_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip('mlflow')
    from composer.loggers import MLFlowLogger

    monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')  # MLflow 3 asks for it
    uri = f'file://{tmp_path}/mlflow'
    monkeypatch.chdir(tmp_path)
    run_id = None
    for name in ('first', 'second'):
        logger = MLFlowLogger(experiment_name='memprof', tracking_uri=uri, log_system_metrics=False)
        if name == 'second':
            monkeypatch.setenv('MLFLOW_RUN_ID', str(run_id))  # a resumed run
        train(HostRSS(folder=name, remote_file_name='memprof/{batch}.host_rss.jsonl'), loggers=[logger])
        run_id = logger._run_id
    assert {entry.status for entry in entries(Path())} == {'uploaded'}
    client = mlflow.MlflowClient(uri)
    stored = sorted(found.path for found in client.list_artifacts(run_id, 'memprof'))
    assert stored == sorted(entry.remote for entry in entries(Path()))
    assert {'memprof/0.host_rss.jsonl', 'memprof/0.host_rss.2.jsonl'} <= set(stored)
    for entry in entries(Path('first')):
        downloaded = Path(client.download_artifacts(run_id, entry.remote))
        assert downloaded.read_bytes() == Path('first', entry.path).read_bytes()


# -- what is hidden -----------------------------------------------------------------------------------------------


class _Indiscreet(http.server.BaseHTTPRequestHandler):
    """An S3 API whose errors repeat what it was sent."""

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get('Content-Length', 0)))
        told = f'{self.headers.get("Authorization")} at https://host/x?X-Amz-Signature={SECRET} s3://K:{SECRET}@b'
        body = f'<Error><Code>Odd</Code><Message>{SECRET} {told.replace("&", "&amp;")}</Message></Error>'.encode()
        self.send_response(400)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer

    def log_message(self, *arguments: Any) -> None:
        del arguments  # not to stderr


@pytest.fixture
def indiscreet_store() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), _Indiscreet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{server.server_address[1]}'
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize('given', ['options', 'environment'])
def test_no_secret_reaches_output_logs_or_files(
    given: str,
    indiscreet_store: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
) -> None:
    pytest.importorskip('s3fs')
    monkeypatch.setenv('AWS_EC2_METADATA_DISABLED', 'true')
    monkeypatch.setattr(
        'composer_memprof.artifacts.uploading.destinations._ATTEMPTS', 2
    )  # each waits longer than the last
    options: dict[str, Any] = {'endpoint_url': indiscreet_store}
    key = f'a-key-of-{given}'
    if given == 'options':
        options.update(key=key, secret=SECRET)
    else:
        monkeypatch.setenv('AWS_ACCESS_KEY_ID', f'key-{given}')
        monkeypatch.setenv('AWS_SECRET_ACCESS_KEY', SECRET)
    with caplog.at_level(logging.DEBUG, logger='composer_memprof'):
        train(HostRSS(remote_file_name='s3://runs/x', storage_options=options))
        for result in push(Path('test-run'), options):
            print(redacted(str(result.error)))
        for thread in threading.enumerate():
            if thread.name == 'memprof-probe':
                thread.join(30)
    records = [record for record in caplog.records if record.name == 'composer_memprof']
    logs = '\n'.join(logging.Formatter().format(record) for record in records)
    printed = capfd.readouterr()
    files = b''.join(path.read_bytes() for path in Path().rglob('*') if path.is_file())
    told = '\n'.join([logs, printed.out, printed.err, *(str(warning.message) for warning in recwarn)])
    assert 'uploading' in told and 'failed' in told and '***' in told and 'Traceback' in told
    for secret in (SECRET, key):
        assert secret not in told and secret.encode() not in files


@pytest.mark.parametrize(
    ('text', 'shown'),
    [
        ('GET https://a.blob/x?sv=1&sig=a%2Fb%3D failed', 'GET https://a.blob/x?sv=1&sig=*** failed'),
        ("{'aws_secret_access_key': 'abcdefgh'}", "{'aws_secret_access_key': '***'}"),
        ('AccountName=a;AccountKey=abcd==;EndpointSuffix=x', 'AccountName=a;AccountKey=***;EndpointSuffix=x'),
        ('Authorization: Bearer abcdefgh.ijkl', 'Authorization: Bearer ***'),
        ('s3://k:p@ss/w@bucket/x and more', 's3://***@bucket/x and more'),
        ('max_tokens=4096 must be 1 to 8, tokens_per_second', 'max_tokens=4096 must be 1 to 8, tokens_per_second'),
        ('abfs://container@account/x', 'abfs://container@account/x'),
        ('token=None, secret=None', 'token=None, secret=None'),
    ],
)
def test_credentials_are_hidden_in_a_text_and_the_rest_stays(text: str, shown: str) -> None:
    assert redacted(text) == shown


# -- stores -------------------------------------------------------------------------------------------------------


class _TakesNoMode(MemoryFileSystem):
    """A store whose client knows no ``mode``, as webdav4's."""

    protocol = 'modeless'

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace('modeless://', 'memory://'))

    def put_file(self, lpath: str, rpath: str, callback: Any = None) -> None:
        super().put_file(lpath, rpath)


def test_a_store_whose_client_knows_no_mode_takes_files() -> None:
    fsspec.register_implementation('modeless', _TakesNoMode, clobber=True)
    destination = FsspecDestination()
    for content, name in (('abc', 'modeless://folder/a.txt'), ('defg', 'modeless://folder/a.2.txt')):
        Path('a.txt').write_text(content)
        assert destination.upload(Path('a.txt'), 'modeless://folder/a.txt').name == name
    assert _TakesNoMode().cat('/folder/a.2.txt') == b'defg'


def test_a_store_of_composers_is_a_filesystem(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Composer's S3 store stands for its others: all have one interface."""
    pytest.importorskip('boto3')
    monkeypatch.setenv('S3_ENDPOINT_URL', os.environ['AWS_ENDPOINT_URL'])
    Path('a.txt').write_text('abc')
    store = ComposerStoreFileSystem('s3')
    assert not store.exists('runs/x/a.txt')
    with pytest.raises(NotImplementedError):
        store.put_file('a.txt', 'runs/x/a.txt', mode='create')
    store.put_file('a.txt', 'runs/x/a.txt')
    assert store.exists('runs/x/a.txt') and s3.cat('runs/x/a.txt') == b'abc'
    assert store.info('runs/x/a.txt')['size'] == 3
    assert store.find('runs/x') == ['runs/x/a.txt']
    store.get_file('runs/x/a.txt', 'b.txt')
    assert Path('b.txt').read_text() == 'abc'
