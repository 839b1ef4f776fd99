"""The ``.2`` before a name's suffix. Apart from the other names, so that ``push`` needs no Composer."""

import re

# TensorBoard's plugin knows a trace by `.pt.trace.json`, which must stay whole.
_SUFFIX = re.compile(r'(\.pt\.trace(\.\w+)?|\.summary)?\.[A-Za-z]\w*(\.gz)?$')


def counted(number: int) -> str:
    """What the ``number``-th file of a name carries: nothing for the first, then ``.2``, ``.3``."""
    return '' if number < 2 else f'.{number}'


def before_suffix(name: str, insertion: str) -> str:
    """``'a/b.2.json'`` from ``'a/b.json'`` and ``'.2'``; ``'b.2.pt.trace.json.gz'`` from ``'b.pt.trace.json.gz'``."""
    head, slash, last = name.rpartition('/')
    match = _SUFFIX.search(last)
    cut = match.start() if match is not None and match.start() > 0 else len(last)
    return f'{head}{slash}{last[:cut]}{insertion}{last[cut:]}'
