"""The options of a store's filesystem: unknown ones are refused before a connection is made."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Optional

import fsspec

from composer_memprof.artifacts.naming.addresses import is_served_by_composer, scheme_of
from composer_memprof.artifacts.uploading.composer_stores import COMPOSER_STORES
from composer_memprof.messages import allowed_are
from composer_memprof.redaction import hide_values

#: Filesystems whose signatures list all options, and the further options that they pass on to another library.
_PASSED_ON = {
    **dict.fromkeys(('s3', 's3a'), ('profile', 'session_vars', 'event_hooks', 'include_builtin_handlers', 'loader')),
    **dict.fromkeys(('gs', 'gcs', 'az', 'abfs', 'abfss'), ()),
}
#: Options of every filesystem, which fsspec does not list in a signature.
_OF_EVERY = ('use_listings_cache', 'listings_expiry_time', 'max_paths', 'skip_instance_cache')


def check_options(options: object, address: Optional[str]) -> None:
    """Refuse options that the filesystem of ``address`` does not have. From now on no message shows their values.

    Raises:
        ValueError: naming the option, without its value.
    """
    if options is None:
        return
    if not isinstance(options, Mapping):
        raise ValueError(f'storage_options must be a mapping, not a {type(options).__name__}')
    hide_values(options)
    scheme = scheme_of(address or '')
    if address is None or scheme is None or not options:
        return
    if is_served_by_composer(address):
        raise ValueError(
            f'storage_options: {scheme}: takes none here; its credentials come from {COMPOSER_STORES[scheme].credentials}'
        )
    if scheme not in _PASSED_ON:
        return
    known = sorted({*_parameters(fsspec.get_filesystem_class(scheme)), *_PASSED_ON[scheme], *_OF_EVERY})
    for option in options:
        if option not in known:
            raise ValueError(
                f'storage_options: {scheme}:// has no option {str(option)!r}; {allowed_are(known, option)}'
            )


def _parameters(filesystem: type) -> set[str]:
    """The named parameters of a class and of its base classes."""
    inits = [vars(base)['__init__'] for base in filesystem.__mro__ if '__init__' in vars(base)]
    parameters = [parameter for init in inits for parameter in inspect.signature(init).parameters.values()]
    return {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)} - {'self'}
