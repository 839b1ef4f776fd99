"""What a mark asks for: ``@pytest.mark.simulated_gpu('a100-40gb', ranks=8)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from composer_memprof.messages import check_count, check_switches
from composer_memprof.simulated_gpu import ranks as simulated_ranks
from composer_memprof.simulated_gpu.devices import find_device, with_memory
from composer_memprof.simulated_gpu.environment import environment_with
from composer_memprof.simulated_gpu.outside import outside_of


@dataclass(frozen=True)
class Asked:
    """The arguments of a mark; as the options of ``simulate``."""

    gpu: str = 'h100-80gb'
    memory: Optional[str] = None
    ranks: Optional[int] = None
    rank: int = 0
    ranks_per_node: Optional[int] = None
    devices: Optional[int] = None
    values: bool = True

    def __post_init__(self) -> None:
        """Refuse what can't be simulated.

        Raises:
            ValueError: naming it and what is allowed.
        """
        for name in ('ranks', 'ranks_per_node', 'devices'):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_switches(values=self.values)
        self._launched()
        self._device()

    def environment(self) -> dict[str, str]:
        """Of a process on this GPU.

        Raises:
            CannotSimulateError: where no GPU can be simulated.
        """
        launched = self._launched()
        return {
            **environment_with(
                self._device(),
                devices=self.devices or int(launched.get('LOCAL_WORLD_SIZE', '1')),
                outside=outside_of(self._device(), self.ranks or 1).bytes,
                values=self.values,
            ),
            **launched,
        }

    def _device(self) -> Any:
        named = find_device(str(self.gpu))
        return named if self.memory is None else with_memory(named, self.memory)

    def _launched(self) -> dict[str, str]:
        if self.ranks is None:
            return {}
        return simulated_ranks.environment(self.ranks, self.rank, self.ranks_per_node)


def asked_of(mark: Any) -> Asked:
    """What a mark asks for.

    Raises:
        TypeError: for an argument that is unknown.
        ValueError: for one that is not allowed.
    """
    if len(mark.args) > 1:
        raise TypeError(f'takes one GPU, not {", ".join(map(repr, mark.args))}; ranks and the others are named')
    try:
        return Asked(*mark.args, **mark.kwargs)
    except TypeError as error:
        raise TypeError(str(error).replace('Asked.__init__() ', '')) from None
