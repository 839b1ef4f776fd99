"""Addresses of stores: the check of an address, and the filesystem that serves it.

No address may contain a credential, because addresses are written to manifests and logs. All checks work without a
connection; ``uploading.probe`` asks the store.
"""

from __future__ import annotations

import re
from typing import Optional

import fsspec

from composer_memprof.artifacts.uploading.composer_stores import COMPOSER_STORES, VOLUMES
from composer_memprof.messages import allowed_are
from composer_memprof.redaction import without_patterns

_SCHEME = re.compile(r'^([a-zA-Z][a-zA-Z0-9+.-]*)://')
#: A scheme with a slash too few, or without its colon: ``s3:/bucket``, ``s3:bucket``, ``s3//bucket``.
_ALMOST = re.compile(r'^([a-zA-Z][a-zA-Z0-9+.-]*)(:/?|//+)')
#: The extra of this package that installs a scheme's filesystem.
_EXTRAS = {'s3': 's3', 's3a': 's3', 'gs': 'gcs', 'gcs': 'gcs', 'az': 'azure', 'abfs': 'azure', 'abfss': 'azure'}
#: The module that an extra installs.
_CLIENTS = {'s3': 's3fs', 'gcs': 'gcsfs', 'azure': 'adlfs'}
#: Stores whose addresses begin with a bucket or a container.
_WITH_BUCKET = frozenset((*_EXTRAS, 'azure', 'oci', 'ocilake', 'oss', 'tos', 'tosfs'))
#: Addresses that may have ``container@account`` or ``user@host``.
_WITH_AT = frozenset(
    ('az', 'abfs', 'abfss', 'adl', 'oci', 'ocilake', 'sftp', 'ssh', 'ftp', 'smb', 'hdfs', 'webhdfs', 'webdav')
)
#: Filesystems of fsspec that can only be read, or that need another filesystem below them.
_NOT_WRITTEN = frozenset(
    (
        *('http', 'https', 'data', 'git', 'github', 'gist', 'jupyter', 'jlab', 'dvc', 'dask', 'pyscript'),
        *('zip', 'tar', 'libarchive', 'reference', 'generic', 'dir', 'cached', 'blockcache', 'filecache'),
        *('simplecache', 'async_wrapper', 'asyncwrapper', 'asynclocal'),
    )
)


def scheme_of(name: str) -> Optional[str]:
    """The scheme of an address; None for a name without a scheme.

    >>> scheme_of('s3://bucket/key'), scheme_of('dbfs:/Volumes/main/default/runs')
    ('s3', 'dbfs')
    """
    if name.startswith(VOLUMES):
        return 'dbfs'
    match = _SCHEME.match(name)
    return match.group(1).lower() if match else None


def client_of(address: str) -> Optional[str]:
    """The package that an extra of this package installs for the address's store; None if there is no such extra.

    >>> client_of('s3://bucket/key'), client_of('memory://key')
    ('s3fs', None)
    """
    return _CLIENTS.get(_EXTRAS.get(scheme_of(address) or '', ''))


def has_bucket(address: str) -> bool:
    """True if the address begins with a bucket or a container."""
    return scheme_of(address) in _WITH_BUCKET


def is_served_by_composer(address: str) -> bool:
    """True if fsspec does not serve ``address``, and one of Composer's own stores does."""
    scheme = scheme_of(address)
    if scheme not in COMPOSER_STORES or address.startswith('dbfs://'):
        return False
    return address.startswith(VOLUMES) or _filesystem_class(scheme) is None


def check_scheme(name: str, parameter: str, *, to_read: bool = False) -> None:
    """Refuse an address that can't be reached from here, and a name that only looks like one.

    Args:
        name (str): an address, a format string of one, or a name without a scheme.
        parameter (str): the name of the setting, for the error.
        to_read (bool): files are only read from the address.

    Raises:
        ValueError: naming the parameter, and the name unless it has a credential.
    """
    _check_credentials(name, parameter)
    scheme = scheme_of(name)
    try:
        if scheme is None:
            _check_plain(name)
        else:
            _check_form(name, scheme, to_read)
            _check_package(name, scheme)
    except ValueError as error:
        raise ValueError(f'{parameter}={name!r}: {error}') from error.__cause__


def is_address(name: str) -> bool:
    """True if ``name`` is an address of a store that can be written to, without credentials. Imports no client of the store.

    >>> is_address('s3://bucket/key'), is_address('key'), is_address('s3://key:secret@bucket/key')
    (True, False, False)
    """
    scheme = scheme_of(name)
    if scheme is None:
        return False
    try:
        _check_credentials(name, 'address')
        _check_form(name, scheme, to_read=False)
    except ValueError:
        return False
    return True


def check_no_address(name: object, parameter: str) -> None:
    """Refuse an address where a folder on this machine is meant.

    Raises:
        ValueError: naming the parameter, but not the address, which may have a credential.
    """
    if scheme_of(str(name)) is not None:
        raise ValueError(f'{parameter} must be a folder on this machine; remote_file_name takes the address of a store')


def _check_credentials(name: str, parameter: str) -> None:
    scheme, separator, rest = name.removeprefix(VOLUMES).rpartition('://')
    before_at = rest.rpartition('@')[0]
    has_user = '@' in rest.partition('/')[0] and separator and scheme.lower() not in _WITH_AT
    has_query = re.search(r'\?[^/]*=', name) is not None
    if ':' in before_at or has_user or has_query or '::' in name or without_patterns(name) != name:
        raise ValueError(
            f'{parameter} must be the address of one store without credentials; give those in the environment, '
            "fsspec's config or storage_options"
        )


def _check_plain(name: str) -> None:
    match = _ALMOST.match(name)
    if match is None:
        return
    word, separator = match.group(1).lower(), match.group(2)
    rest = name[match.end() :].lstrip('/')
    if word == 'dbfs' and separator == ':/':
        raise ValueError(f'in dbfs:/ only volumes are served: {VOLUMES}<catalog>/<schema>/<volume>/…')
    if word in set(_known()) - _NOT_WRITTEN or separator == ':/':
        raise ValueError(f'it is no address; did you mean {f"{word}://{rest}"!r}?')


def _check_form(name: str, scheme: str, to_read: bool) -> None:
    if scheme not in _known():
        raise ValueError(f'{scheme}:// is unknown; {allowed_are(_known(), scheme)}')
    if not name.startswith(scheme):
        raise ValueError(f'write the scheme in lower case: {scheme}://')
    if scheme in _NOT_WRITTEN and not to_read:
        raise ValueError(f'nothing can be uploaded to {scheme}://; name a store, as s3://…, gs://… or az://…')
    if has_bucket(name) and not name.partition('://')[2].partition('/')[0].strip():
        raise ValueError(f'it has no bucket; write {scheme}://bucket/folder')
    if name.startswith(VOLUMES) and len([part for part in name.removeprefix(VOLUMES).split('/') if part]) < 3:
        raise ValueError(f'it has no volume; write {VOLUMES}<catalog>/<schema>/<volume>/…')


def _check_package(name: str, scheme: str) -> None:
    if is_served_by_composer(name):
        store = COMPOSER_STORES[scheme]
        if not store.is_installed():
            instead = ", or write az:// (pip install 'composer_memprof[azure]')" if scheme == 'azure' else ''
            raise ValueError(f'{scheme}: needs a package that is not installed: pip install {store.package}{instead}')
        return
    try:
        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:
        extra = _EXTRAS.get(scheme)
        hint = f"pip install 'composer_memprof[{extra}]'" if extra else str(error)
        raise ValueError(f'{scheme}:// needs a package that is not installed: {hint}') from error


def _known() -> list[str]:
    return sorted({*fsspec.available_protocols(), *_EXTRAS, *COMPOSER_STORES})


def _filesystem_class(scheme: Optional[str]) -> Optional[type]:
    try:
        return fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError):
        return None
