"""What all pages share: their templates, and the content security policy of inline scripts and styles."""

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


def source(name: str) -> str:
    """The text of a script or style below ``report/html``."""
    assert PAGES.loader is not None
    return PAGES.loader.get_source(PAGES, name)[0]


def policy_hash(text: str) -> str:
    """The source in a content security policy that allows this inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"
