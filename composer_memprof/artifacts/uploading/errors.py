"""Explains errors of stores' clients in one sentence each: what happened, and what to do next.

Errors are recognized by the names of their classes, so that no client has to be imported.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator
from typing import Any, Optional

from composer_memprof.redaction import one_line

_CREDENTIALS = "in the environment, the client's own config or storage_options"
NO_BUCKET = 'the bucket or container does not exist. Create it, or correct remote_file_name or the endpoint'
NO_CREDENTIALS = f'there are no credentials. Give them {_CREDENTIALS}'
WRONG_KEY = f'the store does not know the key, or its secret is wrong. Correct the credentials {_CREDENTIALS}'
EXPIRED = f'the credentials have expired. Renew them {_CREDENTIALS}'
NO_PERMISSION = 'these credentials have no permission there. Ask for the right to list and write, or use other ones'
NOT_AUTHORIZED = (
    'the store does not authorize this: the key is wrong, has no permission there, or this node is not allowed in. '
    f'Correct the credentials {_CREDENTIALS}, or the rules of the store'
)
WRONG_REGION = 'the bucket is in another region. Set AWS_DEFAULT_REGION to it'
WRONG_CLOCK = "this machine's clock differs from the store's. Set it"
NO_HOST = "the host's name cannot be resolved (DNS). Check the endpoint's spelling, and the name server of this node"
NO_TLS = (
    'the TLS connection failed. Check that the endpoint speaks https, and name the certificate authority, '
    'as in AWS_CA_BUNDLE, if it is your own'
)
REFUSED = 'the host refuses the connection. Check the port of the endpoint, and that the store runs'
NO_ROUTE = 'there is no route to the host. Check the network of this node, and its proxy'
NO_ANSWER = 'the store does not answer. Check that this node may reach it: its firewall, proxy and endpoint'

_CODES = {
    **dict.fromkeys(('NoSuchBucket', 'ContainerNotFound', 'BucketNotFound', '404'), NO_BUCKET),
    **dict.fromkeys(
        ('InvalidAccessKeyId', 'SignatureDoesNotMatch', 'AuthenticationFailed', 'InvalidAuthenticationInfo', '401'),
        WRONG_KEY,
    ),
    **dict.fromkeys(('ExpiredToken', 'InvalidToken', 'RequestExpired', 'TokenRefreshRequired'), EXPIRED),
    **dict.fromkeys(
        (
            *('AccessDenied', 'AllAccessDisabled', 'AuthorizationPermissionMismatch'),
            *('InsufficientAccountPermissions', '403'),
        ),
        NO_PERMISSION,
    ),
    **dict.fromkeys(
        ('PermanentRedirect', 'AuthorizationHeaderMalformed', 'IllegalLocationConstraintException'), WRONG_REGION
    ),
    'AuthorizationFailure': NOT_AUTHORIZED,
    'RequestTimeTooSkewed': WRONG_CLOCK,
}
#: Sentences by the name of an error's class, or of a class that it inherits from.
_NAMES = {
    **dict.fromkeys(
        (
            *('NoCredentialsError', 'PartialCredentialsError', 'CredentialRetrievalError', 'ProfileNotFound'),
            *('DefaultCredentialsError', 'CredentialUnavailableError'),
        ),
        NO_CREDENTIALS,
    ),
    **dict.fromkeys(('ClientConnectorCertificateError', 'SSLError'), NO_TLS),
    **dict.fromkeys(('ConnectTimeoutError', 'ReadTimeoutError', 'TimeoutError'), NO_ANSWER),
}
_ERRNOS = {
    errno.ECONNREFUSED: REFUSED,
    errno.ENETUNREACH: NO_ROUTE,
    errno.EHOSTUNREACH: NO_ROUTE,
    errno.ETIMEDOUT: NO_ANSWER,
}


def explain(error: BaseException) -> Optional[str]:
    """The sentence for ``error``; None if the store is only busy, and another attempt may succeed."""
    chain = list(_chain(error))
    codes = sorted(map(_code, chain), key=str.isdigit)  # a store's own code tells more than the status of its answer
    if any(code.startswith('5') or code in ('SlowDown', 'InternalError') for code in codes):
        return None
    for code in codes:
        if code in _CODES:
            return _CODES[code]
    for each in reversed(chain):
        meaning = _meaning(each)
        if meaning is not None:
            return meaning
    return f'{one_line(error)}. Check remote_file_name, storage_options and the environment'


def _meaning(error: BaseException) -> Optional[str]:
    if isinstance(error, socket.gaierror):
        return NO_HOST
    if isinstance(error, ssl.SSLError):
        return NO_TLS
    for base in type(error).__mro__:
        if base.__name__ in _NAMES:
            return _NAMES[base.__name__]
    if isinstance(error, OSError) and error.errno in _ERRNOS:
        return _ERRNOS[error.errno]
    if isinstance(error, PermissionError):
        return NO_PERMISSION
    if isinstance(error, FileNotFoundError):
        return NO_BUCKET
    return None


def _code(error: Any) -> str:
    """The store's own code: botocore's, Azure's, or the status of an HTTP answer."""
    response = getattr(error, 'response', None)
    if isinstance(response, dict):
        return str(response.get('Error', {}).get('Code', ''))
    code = getattr(error, 'error_code', None) or getattr(error, 'status_code', None) or getattr(error, 'code', None)
    return str(getattr(code, 'value', code)) if code is not None else ''


def _chain(error: Optional[BaseException]) -> Iterator[BaseException]:
    """An error, its cause, the cause of that, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        inner = getattr(error, 'inner_exception', None) or getattr(error, 'os_error', None)
        error = inner if isinstance(inner, BaseException) else error.__cause__ or error.__context__
