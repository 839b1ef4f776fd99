"""All callbacks, for the tests of what holds for each."""

from __future__ import annotations

import pytest

from composer_memprof.callbacks.registry import CALLBACKS

ALL = list(CALLBACKS.values())


each_callback = pytest.mark.parametrize('make', ALL, ids=lambda callback: callback.__name__)


SOON = {'skip': '1ba', 'active': '2ba'}
