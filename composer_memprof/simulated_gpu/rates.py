"""How fast the devices of the table are: what their makers publish, and what is assumed where nobody does.

Products are counted dense, with sums in float32, at the boost clock. Sources, by device: NVIDIA's data sheets of T4,
V100, A10 (the A10G has the A10G line of AWS's G5 page), L4, L40S, RTX A6000, A100, H100, H200, GH200 and B200, and the
architecture papers of GA102 and AD102 for the GeForce cards. NVLink's and PCIe's rates are of one direction.
"""

from __future__ import annotations

import dataclasses

_T, _G = 1e12, 1e9


#: Complex products are products of their parts.
_COMPUTED_IN = {'complex64': 'float32', 'complex128': 'float64', 'complex32': 'float16'}


class UnknownRateError(Exception):
    """Nothing is known of a device's speed, or of its speed in a data type."""


@dataclasses.dataclass(frozen=True)
class Rates:
    """What one kind of GPU can do in a second, and which part of it programs reach.

    Attributes:
        products: FLOPs of matrix products by data type, as torch names it; ``tf32`` is float32 on tensor cores.
        memory: bytes that the device's memory reads and writes.
        link: bytes that a rank sends to others of its node.
        bus: bytes copied between the host and the device.
        reached: the part of ``products`` that a large product reaches on tensor cores. The one number that may be fitted
            to measurements, where ``fitted`` says to which.
        fitted: the measurements; ``''`` if ``reached`` is assumed.
        reached_in_float32: the same of products outside of tensor cores.
    """

    products: dict[str, float]
    memory: float
    link: float
    bus: float
    reached: float = 0.75
    fitted: str = ''
    reached_in_float32: float = 0.93

    def peak(self, dtype: str, tf32: bool = False) -> float:
        """FLOPs of products in a data type, as published.

        >>> rates_of('a100-40gb').peak('bfloat16') / 1e12
        312.0

        Raises:
            UnknownRateError: naming the data type.
        """
        name = 'tf32' if dtype == 'float32' and tf32 and 'tf32' in self.products else _COMPUTED_IN.get(dtype, dtype)
        if name not in self.products:
            raise UnknownRateError(dtype)
        return self.products[name]

    def on_tensor_cores(self, dtype: str, tf32: bool = False) -> bool:
        """Whether products in a data type run on tensor cores.

        >>> a100 = rates_of('a100-80gb')
        >>> a100.on_tensor_cores('float32'), a100.on_tensor_cores('float32', tf32=True), a100.on_tensor_cores('float16')
        (False, True, True)
        """
        name = _COMPUTED_IN.get(dtype, dtype)
        if name == 'float32' and tf32:
            return 'tf32' in self.products
        return self.products.get(name, 0) > self.products['float32']


#: The part of the memory's rate that kernels reach which go through tensors once: assumed; copies of large arrays reach
#: 0.85 to 0.93 of it on most devices (BabelStream's published results).
MEMORY_REACHED = 0.85
#: Bytes a second that each multiprocessor reads and writes in the L2 cache: 30 GB/s, as 2,155 GB/s were measured on a V100
#: (arXiv 1804.06826) and 1,270 GB/s on a T4 (arXiv 1903.07486). Assumed for the others.
L2_CACHE = 30 * _G
#: What is left of that part on tensor cores where rows begin at odd multiples of 2 bytes, which can't be copied
#: asynchronously: products with a vocabulary of 50,304 were nearly 3 times as fast on an A100 as with 50,257 (pytorch.org,
#: "Accelerating Large Language Models with Accelerated Transformers").
UNALIGNED_REACHED = 0.35
#: The part of a link's rate that collectives reach: nccl-tests print 230 to 250 GB/s of 300 on eight A100, and 460 to
#: 480 of 450 with an H100's switches, which reduce themselves.
LINK_REACHED = 0.8
#: Bytes that a node sends to others: 1,600 Gbit/s, as LLM Foundry's and most clouds' nodes of eight A100. Assumed for
#: other nodes.
BETWEEN_NODES = 200 * _G
#: Seconds that a collective takes at least, and more for each rank that a ring passes. Assumed.
COLLECTIVE_BEGINS, COLLECTIVE_STEP = 15e-6, 1e-6
#: Seconds of the host for a launch, and more for an operator of torch that launches: its Python, dispatch and autograd.
#: Assumed: published trainings in eager mode whose host is slower than the GPU take 17 to 40 us for an operator.
LAUNCH, OPERATOR = 6e-6, 14e-6
#: Seconds that the shortest kernel takes. Assumed.
KERNEL = 2.5e-6


def _rates(memory: float, link: float, *, bus: float = 25, reached: float = 0.75, **products: float) -> Rates:
    """From teraFLOPs and gigabytes. ``half`` stands for bfloat16 and float16, ``float8`` for both of its formats."""
    named = {'float16': products.get('half', 0), 'bfloat16': products.get('half', 0), **products}
    named |= dict.fromkeys(('float8_e4m3fn', 'float8_e5m2'), products.get('float8', 0))
    known = {name: rate * _T for name, rate in named.items() if rate and name not in ('half', 'float8')}
    return Rates(known, memory * _G, link * _G, bus * _G, reached)


_A100 = {'half': 312.0, 'tf32': 156.0, 'float32': 19.5, 'float64': 19.5, 'int8': 624.0}
_HOPPER = {'half': 989.4, 'tf32': 494.7, 'float32': 66.9, 'float64': 66.9, 'float8': 1978.9, 'int8': 1978.9}
_PCIE_3, _PCIE_4 = 16, 32
#: GeForce cards run above the boost clock of their data sheets, by some 10 %, unlike those of servers. Assumed.
_GEFORCE = 0.95
#: The part of their peak that products reach which do not run on tensor cores, where it is far from an A100's: cuBLAS's
#: kernels for float32 reached 17.3 of 19.5 TFLOPs in 1.9 waves there (yyin-dev/cs336-a2, writeup.md), which are 0.95 in
#: whole waves. Large products by themselves, as users of torch measured them (zzc0721/torch-performance-test-data,
#: database.md of January 2026, the median of each device). Half of an L4's are reported so, too, but a GPT that was
#: published for it is quicker.
_REACHED_IN_FLOAT32 = {
    'rtx-3090': 0.7,
    'rtx-4090': 0.66,
    'a6000': 0.62,
    'l40s': 0.51,
    'h100-80gb': 0.78,
    'h200-141gb': 0.77,
    'gh200': 0.77,
    'b200-180gb': 0.88,
}
_FITTED = "LLM Foundry's published throughputs of MPT: the median of all trainings"
_RATES = {
    # bfloat16 is computed in float32 before Ampere
    't4': _rates(320, _PCIE_3, bus=12, float16=65, bfloat16=8.1, float32=8.1, float64=0.25, int8=130),
    'v100-16gb': _rates(900, 150, bus=12, float16=125, bfloat16=15.7, float32=15.7, float64=7.8),
    'v100-32gb': _rates(900, 150, bus=12, float16=125, bfloat16=15.7, float32=15.7, float64=7.8),
    'a10g': _rates(600, _PCIE_4, half=70, tf32=35, float32=35, float64=0.55, int8=140),
    'l4': _rates(300, _PCIE_4, half=121, tf32=60, float32=30.3, float64=0.47, float8=242.5, int8=242.5),
    'rtx-3090': _rates(936, _PCIE_4, reached=_GEFORCE, half=71, tf32=35.6, float32=35.6, float64=0.56, int8=284),
    'rtx-4090': _rates(
        1008, _PCIE_4, reached=_GEFORCE, half=165.2, tf32=82.6, float32=82.6, float64=1.3, float8=330.3, int8=660.6
    ),
    'a6000': _rates(768, _PCIE_4, half=154.8, tf32=77.4, float32=38.7, float64=0.6, int8=309.7),
    'l40s': _rates(864, _PCIE_4, half=362, tf32=183, float32=91.6, float64=1.4, float8=733, int8=733),
    'a100-40gb': dataclasses.replace(_rates(1555, 300, **_A100), reached=0.715, fitted=_FITTED),
    'a100-80gb': dataclasses.replace(_rates(2039, 300, **_A100), reached=0.74, fitted=_FITTED),
    'h100-80gb': _rates(3350, 450, bus=50, **_HOPPER),
    'h200-141gb': _rates(4800, 450, bus=50, **_HOPPER),
    'gh200': _rates(4000, 450, bus=50, **_HOPPER),
    'b200-180gb': _rates(8000, 900, bus=50, half=2250, tf32=1125, float32=75, float64=37, float8=4500, int8=4500),
}


def rates_of(key: str) -> Rates:
    """The rates of the device with this key; of one made by hand, those of the device that it is like.

    >>> rates_of('a100-40gb-24gib').memory == rates_of('a100-40gb').memory
    True

    Raises:
        UnknownRateError: if there is none, as for a device that is known by its compute capability alone.
    """
    for name in (key, key.rpartition('-')[0]):
        if name in _RATES:
            rates = _RATES[name]
            reached = _REACHED_IN_FLOAT32.get(name, rates.reached_in_float32)
            return dataclasses.replace(rates, reached_in_float32=reached)
    raise UnknownRateError(key)
