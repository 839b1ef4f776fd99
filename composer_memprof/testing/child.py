"""The process of one marked test, on a simulated GPU: ``python -m composer_memprof.testing.child REQUEST.json``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from composer_memprof.testing import plugin


class _Reports:
    """Leaves each report for the process that asked."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        self._config = config
        plugin.this_is_a_child(config)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        with self._path.open('a') as file:
            file.write(f'{json.dumps(data, default=str)}\n')


def main(request: dict[str, Any]) -> int:
    """Run the test as the process that asked would run it: with its options, plugins and import paths."""
    os.chdir(request['folder'])
    sys.path[:] = list(dict.fromkeys([*request['path'], *sys.path]))
    arguments = [f'--rootdir={request["rootdir"]}', str(Path(request['rootdir']) / request['test'])]
    # as pytest-xdist makes the configuration of its workers
    config = pytest.Config.fromdictargs(request['options'], arguments)
    config.pluginmanager.register(_Reports(Path(request['reports'])))
    return int(config.hook.pytest_cmdline_main(config=config))


if __name__ == '__main__':
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
