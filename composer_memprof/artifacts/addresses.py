"""The addresses that artifacts are uploaded to: what is read from one, and which are refused.

No address may contain a credential, because addresses are written to manifests and logs.
"""

from __future__ import annotations

import re
from typing import Optional

import fsspec

from composer_memprof.messages import allowed_are

_SCHEME = re.compile(r'^([a-zA-Z][a-zA-Z0-9+.-]*)://')
#: The extra of this package that installs a scheme's filesystem.
_EXTRAS = {'s3': 's3', 's3a': 's3', 'gs': 'gcs', 'gcs': 'gcs', 'az': 'azure', 'abfs': 'azure', 'abfss': 'azure'}


def scheme_of(name: str) -> Optional[str]:
    """The scheme of an address, None if it has none.

    >>> scheme_of('s3://bucket/key')
    's3'
    """
    match = _SCHEME.match(name)
    return match.group(1).lower() if match else None


def check_scheme(name: str, parameter: str) -> None:
    """Refuse an address that can't be reached from here.

    Raises:
        ValueError: if the scheme is unknown, its package is missing, or the address has credentials or several stores.
    """
    scheme = scheme_of(name)
    if scheme is None:
        return
    known = sorted({*fsspec.available_protocols(), *_EXTRAS})
    if '::' in name or (':' in name.split('/')[2].partition('@')[0] and '@' in name.split('/')[2]):
        raise ValueError(
            f'{parameter} must be the address of one store without credentials; give those in the environment, '
            "fsspec's config or storage_options"
        )
    if scheme not in known:
        raise ValueError(f'{parameter}={name!r}: {scheme}:// is unknown; {allowed_are(known, scheme)}')
    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        extra = _EXTRAS.get(scheme)
        hint = f"pip install 'composer_memprof[{extra}]'" if extra else str(error)
        raise ValueError(f'{parameter}={name!r}: {scheme}:// needs a package that is not installed: {hint}') from error
