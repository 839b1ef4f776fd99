"""Many numbers in a page: columns as one gzipped base64 text, which ``packed.js`` takes apart.

Nothing of it can be mistaken for HTML, whatever names it holds.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from typing import Any

import numpy as np


def pack(header: Mapping[str, Any], columns: Mapping[str, np.ndarray]) -> str:
    """A header that JSON can hold and named columns: of int32, or of float64 for what may be larger.

    Columns are stored as differences, and all first bytes before all second ones, which gzip makes half as large.
    """
    parts = []
    listed = []
    for name, column in columns.items():
        kind = 'i4' if np.issubdtype(column.dtype, np.integer) and column.dtype.itemsize <= 4 else 'f8'
        values = column.astype(f'<{kind}').ravel()
        steps = np.diff(values, prepend=values.dtype.type(0))
        parts.append(np.ascontiguousarray(steps.view(np.uint8).reshape(len(steps), values.itemsize).T).tobytes())
        listed.append([name, kind, len(values)])
    head = json.dumps({**header, 'columns': listed}, separators=(',', ':')).encode('ascii')
    whole = b''.join([len(head).to_bytes(4, 'little'), head, *parts])
    return base64.b64encode(gzip.compress(whole, compresslevel=6, mtime=0)).decode('ascii')
