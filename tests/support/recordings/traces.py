"""What the tests of TorchProfiler read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

RUN = Path('test-run/torch_traces')
SOON: dict[str, Any] = {'skip': '1ba', 'warmup': '1ba', 'active': '2ba'}


def trace_events(path: Path) -> list[dict[str, Any]]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == '.gz' else path.read_bytes()
    return json.loads(content)['traceEvents']
