"""A config without its credentials, so that it can be kept in a file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Optional

from composer_memprof.redaction import names_credential, redacted

#: Stands for a value that was left out.
LEFT_OUT = '(left out)'
#: A name with one of these words is a credential's.
_WORDS = {
    *('secret', 'secrets', 'password', 'passwd', 'passphrase', 'credential', 'credentials', 'key', 'keys', 'apikey'),
    *('token', 'auth', 'authtoken', 'accesskey', 'secretkey', 'account', 'authorization', 'bearer', 'cookie'),
    *('signature', 'sas', 'dsn', 'webhook', 'headers'),
}
#: A name that ends with one of these is of a text's token, such as ``pad_token``.
_TEXT_TOKENS = re.compile(r'(^|_)(pad|eos|bos|unk|mask|sep|cls|image)_token$')
_NAME_PARTS = re.compile(r'[A-Z]+(?![a-z])|[A-Z]?[a-z]+')
_USER_IN_ADDRESS = re.compile(r'(\b[a-z][a-z0-9+.-]*://)[^/@\s]+@', re.IGNORECASE)
_QUERY_OF_ADDRESS = re.compile(r'(\b[a-z][a-z0-9+.-]*://[^\s?]*)\?[^\s]*=[^\s]*', re.IGNORECASE)
_ASSIGNMENT = re.compile(r'([A-Za-z][\w-]*)[=:]\s*\S')
#: Shorter values of the environment are no credentials, and may be anywhere in a config.
_LEAST_LETTERS = 6


def without_credentials(config: Mapping[str, Any], environment: Optional[Mapping[str, str]] = None) -> dict[str, Any]:
    """A copy of ``config`` without ``storage_options`` and loggers, and with a mark for what may be a credential.

    That is the value of a name such as ``api_key``, the value of such a variable of the environment, and a text that
    looks like a credential or has one in its address.

    Args:
        config (Mapping): of plain values.
        environment (Mapping, optional): Default: that of this process.

    >>> without_credentials({'hub': {'access_token': 'abc', 'path': 's3://me:pw@host/x'}}, {})
    {'hub': {'access_token': '(left out)', 'path': 's3://host/x'}}
    """
    variables = os.environ if environment is None else environment
    secrets = [value for name, value in variables.items() if _is_secret(name) and len(value) >= _LEAST_LETTERS]
    return {name: _clean(name, value, secrets) for name, value in config.items() if name != 'loggers'}


def _clean(name: Any, value: Any, secrets: list[str]) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if _is_secret(str(name)):
        return LEFT_OUT
    if isinstance(value, Mapping):
        if _is_secret(str(value.get('key', ''))) and 'value' in value:  # a variable of an environment
            value = {**value, 'value': LEFT_OUT}
        return {key: _clean(key, each, secrets) for key, each in value.items() if key != 'storage_options'}
    if isinstance(value, (list, tuple)):
        return [_clean('', each, secrets) for each in value]
    return _clean_text(value, secrets) if isinstance(value, str) else value


def _clean_text(text: str, secrets: list[str]) -> str:
    named = any(_is_secret(name) for name in _ASSIGNMENT.findall(text) if '://' not in text)
    if named or any(secret in text for secret in secrets):
        return LEFT_OUT
    text = _QUERY_OF_ADDRESS.sub(r'\1', _USER_IN_ADDRESS.sub(r'\1', text))
    return text if redacted(text) == text else LEFT_OUT


def _is_secret(name: str) -> bool:
    words = map(str.lower, _NAME_PARTS.findall(name))
    return not _TEXT_TOKENS.search(name) and (names_credential(name) or not _WORDS.isdisjoint(words))
