"""What all pages share: where their templates are, and the colours of what memory is for."""

from __future__ import annotations

import jinja2

PAGES = jinja2.Environment(
    loader=jinja2.PackageLoader('composer_memprof', 'report'), autoescape=True, trim_blocks=True, lstrip_blocks=True
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
