"""Hides credentials in text that others can read: messages, logs, manifests and pages.

An error of a store's client may contain an address with its signature, a request's headers, or the value of an option.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import quote

HIDDEN = '***'

#: The ends of names whose values are hidden: ``AccountKey``, ``X-Amz-Signature``, ``aws_secret_access_key``.
_NAME = r'[\w-]{0,40}(?:sig|signature|secret|token|passw(?:or)?d|pwd|credentials?|(?:api|access|account|private|sas|storage)[_-]?key)'
_CREDENTIAL = re.compile(_NAME, re.IGNORECASE)
#: No credential, but a placeholder, a number or a word of a language.
_ORDINARY = r'(?!\{|(?:\d+|None|True|False|null|true|false)\b)'
#: What stands before a credential, as a group, and the credential.
_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        # A name and a password before a host. The password may contain a slash or an @.
        r'(:/{1,2})[^\s/@]*:\S*(?=@)',
        # In an address or a connection string: ?sig=…, &X-Amz-Signature=…, ;AccountKey=…
        rf'([?&;]{_NAME}=)[^\s&;\'"<>]+',
        # Elsewhere: Signature=…, 'secret': '…'
        rf'(?<![\w-])({_NAME}(?:=["\']?|["\']:\s*["\'])){_ORDINARY}[^\s&;,\'"<>]{{6,}}',
        r'\b(Bearer\s|SharedKey\s)(?=[^\s\'"]*[\d.])[^\s\'"]{8,}',
        r'()-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)',
        # What is known by how it begins: of AWS, Google, Databricks, Hugging Face, GitHub, OpenAI; JSON Web Tokens.
        r'()\b(?-i:A[KS]IA[A-Z0-9]{16}|ya29\.[\w-]{10,}|dapi[0-9a-f]{32}|(?:hf|gh[opsru])_[A-Za-z0-9]{20,}'
        r'|sk-[\w-]{20,}|eyJ[\w-]{10,}\.[\w-]{10,})\b',
    )
)

#: Options whose values are no secret, and needed in a message: to which server did it go?
_OPEN_OPTIONS = frozenset(
    (
        *('endpoint_url', 'endpoint', 'region_name', 'region', 'project', 'account_name', 'account_host', 'host'),
        *('location', 'profile', 'StorageClass'),
    )
)
#: Shorter values are no credentials, and would be found in every text.
_SHORTEST = 6
#: So much of an error's text is looked at.
_LONGEST = 20_000
_values: set[str] = set()
#: Not a credential, whatever it is called: a folder, or a word that may stand in any text.
_FOLDER_OR_WORD = re.compile(r'[/~.].*|[A-Za-z]{1,15}', re.DOTALL)


def names_credential(name: str) -> bool:
    """Whether a setting or a variable of that name is a credential.

    >>> names_credential('db_pwd'), names_credential('aws_secret_access_key'), names_credential('region')
    (True, True, False)
    """
    return _CREDENTIAL.fullmatch(name) is not None


def hide_values(options: object, name: str = '') -> None:
    """From now on :func:`redacted` hides the texts in ``options``, a filesystem's options, and below.

    >>> hide_values({'key': 'an-open-key', 'client_kwargs': {'region_name': 'us-east-1', 'proxy': 'a-proxy'}})
    >>> redacted('an-open-key does not exist in us-east-1, says a-proxy')
    '*** does not exist in us-east-1, says ***'
    """
    if isinstance(options, Mapping):
        for key, value in options.items():
            hide_values(value, str(key))
    elif isinstance(options, (list, tuple)):
        for value in options:
            hide_values(value, name)
    elif isinstance(options, str) and _is_hidden(name, options):
        _values.update(_forms(options))


def _is_hidden(name: str, value: str) -> bool:
    return names_credential(name) or (name not in _OPEN_OPTIONS and not _FOLDER_OR_WORD.fullmatch(value))


def redacted(text: str) -> str:
    """``text`` with ``***`` in place of each credential in it: what looks like one, and what is known to be one.

    >>> redacted("'s3://key:sec/ret@bucket/x' and https://host/x?sv=1&sig=abc%3D")
    "'s3://***@bucket/x' and https://host/x?sv=1&sig=***"
    """
    for value in sorted(_values.union(*map(_forms, _environment())), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return without_patterns(text)


def without_patterns(text: str) -> str:
    """``text`` with ``***`` in place of what looks like a credential, whatever is known.

    >>> without_patterns('dapi' + 32 * '0')
    '***'
    """
    for pattern in _PATTERNS:
        text = pattern.sub(_hide, text)
    return text


def _hide(match: re.Match[str]) -> str:
    # A function, because a template of groups needs an import, which fails at interpreter exit.
    return f'{match.group(1)}{HIDDEN}'


def _environment() -> list[str]:
    # Not items(): another thread may remove a variable in the meantime.
    values = [os.environ.get(name, '') for name in list(os.environ) if names_credential(name)]
    return [value for value in values if not _FOLDER_OR_WORD.fullmatch(value)]


def _forms(value: str) -> set[str]:
    """How a value may stand in a text: as it is, in quotes, in an address."""
    if len(value) < _SHORTEST:
        return set()
    return {value, repr(value)[1:-1], quote(value, safe='', errors='surrogateescape')}


def one_line(error: BaseException, limit: int = 300) -> str:
    """The type and text of an error that comes from a library, on one line, redacted.

    >>> one_line(ValueError('no such\\nhost: https://me:pass@host'))
    'ValueError: no such host: https://***@host'
    """
    text = as_one_line(str(error), limit)
    return f'{type(error).__name__}: {text}' if text else type(error).__name__


def as_one_line(text: str, limit: int = 300) -> str:
    """A text that comes from a library, on one line, redacted."""
    text = redacted(' '.join(text[:_LONGEST].split()))
    return text if len(text) <= limit else f'{text[:limit]}…'
