"""What keeps a tensor alive: the attribute, the variable or the closure through which Python reaches it.

Meant for a forked child, where the training does not wait: a search visits each object of the process a few times.

>>> import torch
>>> class Logger:
...     def __init__(self):
...         self.history = [torch.ones(2), torch.ones(2)]
>>> logger = Logger()
>>> set(keepers_of([each.data_ptr() for each in logger.history]).values())
{'Logger.history, a list of 2'}
"""

from __future__ import annotations

import gc
import sys
import time
import types
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch

from composer_memprof.messages import errors_logged
from composer_memprof.recorders.allocations.kept_graphs import uses_of_leaves
from composer_memprof.recorders.allocations.limits import CACHED, CONTAINERS, in_words, length_of
from composer_memprof.recorders.modules.holders import live_tensors
from composer_memprof.recorders.torch_private import graph_tasks, module_tables
from composer_memprof.recorders.torch_private.module_tables import TABLES
from composer_memprof.vocabulary import IN_CYCLE, WITH_GRAPH

#: The modules of ``torch_private`` that this one needs.
NEEDS = (graph_tasks, module_tables)
#: Objects of the process, small ones included, from which on nothing is searched: a visit copies the page of each.
MOST_OBJECTS = 20_000_000
#: Tensors whose keepers are looked for, and the seconds of the processor's time after which no further one is.
_MOST_TENSORS, _SECONDS = 6, 3.0
#: Referrers between a tensor and what has a name; the most objects that are looked at in a level.
_LEVELS, _WIDEST = 12, 200
#: Their attributes name what they keep, but users look for what keeps them in turn.
_LIBRARIES = (
    'torch',
    'composer',
    'composer_memprof',
    'torchmetrics',
    'collections',
    'functools',
    'queue',
    'transformers',
)
#: The packages whose objects hold everything else: a Trainer, a State.
_TRAINERS = ('composer.', 'composer_memprof.')
_FUNCTIONS = {types.FunctionType: 'the closure of', types.GeneratorType: 'the generator'}


@dataclass(eq=False)
class _Link:
    """An object on the way up from a tensor.

    Args:
        obj (Any): the object.
        path (str): the attributes that lead from it to the tensor: ``.cat.value``.
        key (str): of a dict: the key. It is an attribute's name if the dict is an object's.
        container (Any): the largest container below it, if any.
        below (_Link, optional): the link that it was reached from.
    """

    obj: Any
    path: str = ''
    key: str = ''
    container: Any = None
    below: Optional[_Link] = None

    def in_words(self, name: str) -> str:
        if self.container is None:
            return name
        chain, link = [self.obj], self.below
        while link is not None:
            chain.append(link.obj)
            link = link.below
        return f'{name}, {in_words(self.container, chain[::-1])}'


def keepers_of(addresses: Collection[int], of_model: Collection[int] = ()) -> dict[int, str]:
    """What keeps the tensors at these addresses, in words. Of many tensors, some are looked for.

    Args:
        addresses (Collection[int]): of storages, as ``Tensor.data_ptr()``. Of what only C++ keeps, what a graph has saved is found.
        of_model (Collection[int]): addresses of the parameters: graphs that lead to them come before others.
    """
    if not addresses or sys.getallocatedblocks() > MOST_OBJECTS:
        return {}
    deadline = time.thread_time() + _SECONDS
    variables = _variables(sys._getframe(1))
    found: dict[int, str] = {}
    wanted = set(addresses)
    at = {id(each): address for each in live_tensors() if (address := address_of(each)) in wanted}
    of_graphs = wanted - set(at.values())
    for address, tensor in _tensors_at(at):
        keeper = _keeper(tensor, variables)
        if keeper is not None:
            found[address] = f'{keeper}{WITH_GRAPH}' if tensor.grad_fn is not None else keeper
        else:
            of_graphs.add(address)
        if len(found) == _MOST_TENSORS or time.thread_time() > deadline:
            break
    with errors_logged('what graphs keep was not found'):
        found.update(_kept_by_graphs(of_graphs, of_model, variables) if of_graphs else {})
    return found


def _kept_by_graphs(addresses: set[int], of_model: Collection[int], variables: Mapping[int, str]) -> dict[int, str]:
    """What keeps the graphs of several forward passes, and so what these passes have saved."""

    def rank(counts: Counter[Any]) -> tuple[bool, int]:
        return any(address_of(leaf.variable) in of_model for leaf in counts), max(counts.values())

    uses = uses_of_leaves(live_tensors())
    kept: defaultdict[str, Counter[Any]] = defaultdict(Counter)
    for number in sorted(uses, key=lambda number: rank(uses[number]), reverse=True)[:_MOST_TENSORS]:
        tensor = _object(number)
        keeper = _keeper(tensor, variables) if tensor is not None else None
        if keeper is not None:
            kept[keeper] += uses[number]
    several = [keeper for keeper, counts in kept.items() if max(counts.values()) > 1]
    most = max(several, key=lambda keeper: rank(kept[keeper]), default='')
    return dict.fromkeys(addresses, f'{most}{WITH_GRAPH}') if most else {}


def keepers_of_objects(numbers: Collection[int]) -> dict[int, str]:
    """What keeps the objects with these ``id`` numbers, in words."""
    deadline = time.thread_time() + _SECONDS
    variables = _variables(sys._getframe(1))
    found: dict[int, str] = {}
    for number in numbers:
        keeper = _keeper(next(each for each in gc.get_objects() if id(each) == number), variables)
        if keeper is not None:
            found[number] = keeper
        if time.thread_time() > deadline:
            break
    return found


def _tensors_at(at: Mapping[int, int]) -> Iterator[tuple[int, torch.Tensor]]:
    """Some of the tensors, one at a time: a list of them would be found among what keeps them.

    Args:
        at (Mapping[int, int]): the address of each tensor, by its ``id``.
    """
    for number in list(at)[:: max(len(at) // _MOST_TENSORS, 1)]:
        tensor = _object(number)
        if tensor is not None:
            yield at[number], tensor


def _object(number: int) -> Any:
    """The object with this ``id``; None if there is none. No list of all objects stays, which would be searched too."""
    return next((each for each in gc.get_objects() if id(each) == number), None)


def address_of(tensor: torch.Tensor) -> int:
    """Of its storage; 0 if the tensor refuses to be looked at."""
    with errors_logged('a tensor refused to be looked at'):
        return tensor.untyped_storage().data_ptr()
    return 0


def _variables(frame: Optional[types.FrameType]) -> dict[int, str]:
    """The local variables of the functions that run, by the ``id`` of their values."""
    found: dict[int, str] = {}
    while frame is not None:
        own = str(frame.f_globals.get('__name__')).startswith('composer_memprof.')
        if not own and frame.f_locals is not frame.f_globals:
            for name, value in frame.f_locals.items():
                if type(value).__module__.startswith(_TRAINERS):
                    continue  # it holds all
                found.setdefault(id(value), f'the variable {name} of {frame.f_code.co_name}')
        frame = frame.f_back
    return found


def _keeper(tensor: Any, variables: Mapping[int, str]) -> Optional[str]:
    """The nearest thing that a user knows by name; else the nearest one of a library.

    A module is named by what keeps it in a container, if anything does: it may be one of many copies.
    """
    level = [_Link(tensor)]
    seen = {id(tensor), id(variables)}
    in_library: Optional[str] = None
    in_module: Optional[str] = None
    for _ in range(_LEVELS):
        for link in level:
            if id(link.obj) in variables:
                return in_module or _up(None, link).in_words(variables[id(link.obj)])
        level = [link for link in level if not type(link.obj).__module__.startswith(_TRAINERS)] if in_library else level
        level = _level_above(level, seen)
        for link in level:
            name = _name_of(link)
            if name is None:
                continue
            in_library = in_library or name
            if _module_of(link.obj).partition('.')[0] in _LIBRARIES:
                continue
            if isinstance(link.obj, torch.nn.Module) and link.container is None:
                in_module = in_module or name
            elif in_module is None or link.container is not None:
                return f'{IN_CYCLE}{name}' if _only_keeps_itself(link.obj, variables) else name
        if not level:
            break
    return in_module or in_library


def _module_of(obj: Any) -> str:
    """The module of an object's class; of a function or a generator that of its code."""
    if isinstance(obj, types.GeneratorType):
        return str(obj.gi_frame.f_globals.get('__name__')) if obj.gi_frame is not None else ''
    return str(obj.__module__ if isinstance(obj, types.FunctionType) else type(obj).__module__)


def _level_above(level: Sequence[_Link], seen: set[int]) -> list[_Link]:
    """What refers to the objects of a level, each once."""
    links = {id(link.obj): link for link in level}
    found: list[_Link] = []
    for referrer in gc.get_referrers(*(link.obj for link in level)):
        if id(referrer) in seen or _is_of_search(referrer):
            continue
        seen.add(id(referrer))
        link = next((links[id(each)] for each in gc.get_referents(referrer) if id(each) in links), None)
        if link is not None:
            found.append(_up(referrer, link))
        if len(found) == _WIDEST:
            break
    return found


def _is_of_search(referrer: Any) -> bool:
    if isinstance(referrer, types.FrameType):
        return _runs(referrer)  # one that has ended is kept by a traceback
    if isinstance(referrer, _Link):
        return True
    if type(referrer) is dict:  # a link's own
        return referrer.keys() == _Link.__dataclass_fields__.keys()
    return isinstance(referrer, types.GeneratorType) and referrer.gi_code is _tensors_at.__code__


def _runs(frame: types.FrameType) -> bool:
    running = [sys._getframe(1), *sys._current_frames().values()]
    while running:
        if frame in running:
            return True
        running = [each.f_back for each in running if each.f_back is not None]
    return False


def _up(referrer: Any, link: _Link) -> _Link:
    """The link of what refers to a link's object."""
    obj, path, container = link.obj, link.path, link.container
    prefixed = f'.{link.key}{path}' if link.key else path
    if type(obj) is dict and (isinstance(referrer, type) or getattr(referrer, '__dict__', None) is obj):
        return _Link(referrer, prefixed, '', container, link)  # the dict has the referrer's attributes
    is_dict = type(referrer) is dict
    attribute = _attribute(referrer.items() if is_dict else _attributes(referrer), obj)
    if attribute in TABLES and link.key:
        return _Link(referrer, prefixed, '', container, link)
    if isinstance(obj, (*CONTAINERS, CACHED)):
        path = ''
        if container is None or length_of(obj) >= length_of(container):
            container = obj
    if is_dict:
        return _Link(referrer, path, attribute, container, link)
    if attribute:
        return _Link(referrer, f'.{attribute}{path}', '', container, link)
    return _Link(referrer, path if isinstance(referrer, (tuple, types.CellType)) else '', '', container, link)


def _attributes(owner: Any) -> Iterator[tuple[Any, Any]]:
    """The names and the values of an object's attributes."""
    yield from list(getattr(owner, '__dict__', {}).items())
    for kind in type(owner).__mro__:
        slots = kind.__dict__.get('__slots__', ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            yield name, getattr(owner, name, None)


def _attribute(items: Iterable[tuple[Any, Any]], value: Any) -> str:
    """The name under which a value is; ``''`` if that is not known."""
    return next((name for name, each in list(items) if each is value and isinstance(name, str)), '')


def _name_of(link: _Link) -> Optional[str]:
    """The name of a thing that keeps another; None if it has none."""
    obj = link.obj
    if type(obj) is dict and link.key and '__builtins__' in obj:
        return link.in_words(f'the global variable {obj.get("__name__")}.{link.key}')
    if type(obj) in _FUNCTIONS:
        return link.in_words(f'{_FUNCTIONS[type(obj)]} {obj.__qualname__}')
    if not link.path or isinstance(obj, (*CONTAINERS, tuple, types.CellType, types.ModuleType)):
        return None
    kind = obj if isinstance(obj, type) else type(obj)
    return link.in_words(f'{kind.__qualname__}{link.path}')


def _only_keeps_itself(owner: Any, variables: Mapping[int, str]) -> bool:
    """True if an object is only reached from itself, so that nothing but a garbage collection frees it."""
    if isinstance(owner, (type, dict, *_FUNCTIONS)):
        return False
    level, seen = [_Link(owner)], {id(variables)}
    for _ in range(_LEVELS):
        if any(id(link.obj) in variables or _is_root(link.obj) for link in level):
            return False
        level = _level_above(level, seen)
        if not level:
            return id(owner) in seen
    return False


def _is_root(obj: Any) -> bool:
    return isinstance(obj, (types.ModuleType, type)) or (type(obj) is dict and '__builtins__' in obj)
