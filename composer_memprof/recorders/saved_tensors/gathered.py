"""The parameters that FSDP2 gathers, which stand in a module in place of the sharded ones while it runs.

Most often autograd saves a view of a gathered parameter, which shows what it is. Inside of compiled code, and of a
parameter that tensor parallelism shards too, it saves tensors that have only the storage in common with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from torch import Tensor, nn

from composer_memprof.recorders.modules.model import is_fsdp2
from composer_memprof.recorders.torch_private.module_hooks import parameters_of
from composer_memprof.recorders.torch_private.saved_tensor_hooks import never_compile

#: A module's table of parameters and a name in it.
_Place = tuple[dict[str, Tensor], str]


class GatheredParameters:
    """Tells which tensors FSDP2 has put in the place of parameters, since this was made.

    Args:
        model (Module): whose parameters are sharded, or not.
        unhooked (Collection[int]): ids of modules whose calls are not reported to :meth:`entered`.
    """

    def __init__(self, model: nn.Module, unhooked: Collection[int] = ()) -> None:
        #: By id of each hooked module that FSDP2 shards: its parameters.
        self.hooked = {id(module): list(_places_in(module)) for module in model.modules() if is_fsdp2(module)}
        places = [place for key in unhooked for place in self.hooked.pop(key, ())]
        #: The parameters of unhooked modules that were not gathered yet.
        self.watched = [(table, name, table[name]) for table, name in places]

    def entered(self, module: nn.Module) -> list[Tensor]:
        """The module's forward begins: the parameters that were gathered for it. Empty on later calls."""
        return [table[name] for table, name in self.hooked.pop(id(module), ())]

    def new(self) -> list[Tensor]:
        """The parameters that were gathered for unhooked modules since the last call."""
        # Autograd may ask for each tensor that it saves, and most often nothing has changed.
        if not any(table[name] is not before for table, name, before in self.watched):
            return []
        gathered = [table[name] for table, name, before in self.watched if table[name] is not before]
        self.watched = [place for place in self.watched if place[0][place[1]] is place[2]]
        return gathered


def _places_in(module: nn.Module) -> Iterator[_Place]:
    """The parameters that are gathered with the module: its own, and those of submodules that are not gathered apart."""
    table = parameters_of(module)
    yield from ((table, name) for name, parameter in table.items() if parameter is not None)
    for child in module.children():
        if not is_fsdp2(child):
            yield from _places_in(child)


never_compile(GatheredParameters)
