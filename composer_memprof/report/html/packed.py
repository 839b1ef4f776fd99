"""Large data in a page: columns of numbers as one gzipped base64 text, which ``script/packed.js`` reads.

Base64 cannot be mistaken for HTML, whatever names the data has.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from typing import Any

import numpy as np


def pack(header: Mapping[str, Any], columns: Mapping[str, np.ndarray]) -> str:
    """A JSON header and named columns as text. Integers of up to 32 bits stay int32, others become float64.

    Columns are stored as differences, all first bytes before all second ones: gzip makes that half as large.
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
    return _zipped(whole)


def pack_text(text: str) -> str:
    """A long text, such as a script."""
    return _zipped(text.encode('utf-8'))


def _zipped(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode('ascii')


def as_json(values: Any) -> str:
    """``values`` as JSON for a ``<script type="application/json">``: no text in it can end the element."""
    text = json.dumps(values, separators=(',', ':'), allow_nan=False)
    return text.replace('<', '\\u003c').replace('>', '\\u003e').replace('&', '\\u0026')
