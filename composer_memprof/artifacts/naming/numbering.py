"""The ``.2`` before a name's suffix. Separate from ``names``, which needs Composer; ``push`` must not."""

import re

from composer_memprof.artifacts.naming.compression import suffixes

_COMPRESSION = '|'.join(map(re.escape, suffixes()))
# `.pt.trace.json` stays whole: TensorBoard's plugin finds traces by it.
_SUFFIX = re.compile(rf'(\.pt\.trace(\.\w+)?|\.summary)?\.[A-Za-z]\w*({_COMPRESSION})?$')


def counted(number: int) -> str:
    """The mark of the ``number``-th file of one name: ``''`` for the first, then ``'.2'``, ``'.3'``."""
    return '' if number < 2 else f'.{number}'


def before_suffix(name: str, insertion: str) -> str:
    """``name`` with ``insertion`` before its suffix.

    >>> before_suffix('a/b.json', '.2'), before_suffix('b.pt.trace.json.gz', '.2')
    ('a/b.2.json', 'b.2.pt.trace.json.gz')
    """
    head, slash, last = name.rpartition('/')
    match = _SUFFIX.search(last)
    cut = match.start() if match is not None and match.start() > 0 else len(last)
    return f'{head}{slash}{last[:cut]}{insertion}{last[cut:]}'
