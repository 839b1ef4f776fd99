"""Where the templates of pages are."""

from __future__ import annotations

import jinja2

PAGES = jinja2.Environment(
    loader=jinja2.PackageLoader('composer_memprof', 'report'), autoescape=True, trim_blocks=True, lstrip_blocks=True
)
