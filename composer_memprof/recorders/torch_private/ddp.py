"""DistributedDataParallel: the sizes of the buckets in which it reduces gradients."""

from __future__ import annotations

import re
from typing import Any

from composer_memprof.recorders.torch_private import private

_OWNER = 'torch.nn.parallel.DistributedDataParallel'
#: ``(ddp)``: what it knows of itself, as a dict.
logging_data = private(f'{_OWNER}._get_ddp_logging_data', module=__name__)
#: The operator that reduces a bucket.
ALL_REDUCE = 'c10d::allreduce_'


def bucket_sizes(ddp: Any) -> list[int]:
    """Bytes of each bucket. Buckets that were made anew since have other sizes and the same sum."""
    return [int(size) for size in re.findall('[0-9]+', str(logging_data(ddp).get('bucket_sizes', '')))]
