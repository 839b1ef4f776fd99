"""How long fused attention takes: the FLOPs of what is not masked, at the rate that its kernels reach.

Sources of the parts of the peak, of each range the middle: FlashAttention reaches 30 to 50 % of an A100's forward and 25
to 35 % backward, FlashAttention-2 50 to 73 % forward and up to 63 % backward (arXiv 2307.08691); on an H100
FlashAttention-2 reaches 35 %, and FlashAttention-3 is 1.5 to 2 times as quick forward and 1.5 to 1.75 times backward
(arXiv 2407.08608). Kernels that are not named there are taken to be as FlashAttention, and
cuDNN's as FlashAttention-2. That short sequences reach less is assumed.
"""

from __future__ import annotations

import os

#: By the kernel's name, the parts of the peak that long sequences reach forward and backward.
_REACHED = {
    'flash-1': (0.4, 0.3),
    'flash-2': (0.62, 0.55),
    'flash-3': (0.62, 0.55),
    'efficient': (0.4, 0.3),
    'cudnn': (0.62, 0.55),
}
#: The same from compute capability 9.0 on, for which these kernels were not written, but cuDNN's.
_REACHED_BY_HOPPER = {
    'flash-1': (0.22, 0.17),
    'flash-2': (0.4, 0.33),
    'flash-3': (0.7, 0.54),
    'efficient': (0.22, 0.17),
    'cudnn': (0.6, 0.5),
}
#: Of a sequence of this length, half of that is reached.
_HALF_AT = 256
#: Products in backward for each one of forward: two by two, and the scores' once more.
_BACKWARD = 2.5
#: Which kernel a flash attention of the script is: for a comparison with trainings of an earlier time.
KERNEL_VARIABLE = 'SIMULATED_GPU_ATTENTION'


def attention_seconds(
    peak: float, compute_capability: int, kernel: str, scores: float, widths: int, queries: float, backward: bool
) -> float:
    """Seconds of one attention.

    Args:
        peak: FLOPs a second of products in its data type.
        compute_capability: its major part.
        kernel: ``flash-2``, ``flash-3``, ``efficient`` or ``cudnn``.
        scores: pairs of queries and keys that are not masked, over all heads and sequences.
        widths: of a query and a value of one head, together.
        queries: in a sequence.
    """
    named = os.environ.get(KERNEL_VARIABLE, kernel) if kernel == 'flash-2' else kernel
    reached = _REACHED_BY_HOPPER if compute_capability >= 9 else _REACHED
    part = reached[named][backward] * queries / (queries + _HALF_AT)
    return 2 * scores * widths * (_BACKWARD if backward else 1) / (peak * part)
