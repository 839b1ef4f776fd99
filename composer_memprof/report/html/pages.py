"""What all pages share: where their templates are, and the colours of what memory is for."""

from __future__ import annotations

import base64
import hashlib

import jinja2

PAGES = jinja2.Environment(
    loader=jinja2.PackageLoader('composer_memprof', 'report/html'),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)

CATEGORY_COLORS = {
    'parameter': '#4878a8',
    'buffer': '#9ecae1',
    'gradient': '#e49444',
    'optimizer_state': '#85b6b2',
    'activation': '#d1615d',
    'input': '#6a9f58',
    'temporary': '#e7ca60',
    'autograd_detail': '#a87c9f',
    'unknown': '#a0a0a0',
}


def source(name: str) -> str:
    """The text of a script or style of ours, which a page has inside."""
    assert PAGES.loader is not None
    return PAGES.loader.get_source(PAGES, name)[0]


def policy_hash(text: str) -> str:
    """As a content security policy names an inline script or style that may be used."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"
