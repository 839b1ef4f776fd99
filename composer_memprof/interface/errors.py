"""Errors of these functions, which are of one kind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from composer_memprof.messages import MemprofError
from composer_memprof.redaction import redacted


@contextlib.contextmanager
def errors_as_one(*kinds: type[Exception]) -> Iterator[None]:
    """Turn these errors of the block into :class:`MemprofError`."""
    try:
        yield
    except MemprofError:
        raise
    except kinds as error:
        raise MemprofError(redacted(str(error))) from None
