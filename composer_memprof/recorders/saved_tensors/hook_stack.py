"""A thread's stack of saved-tensor hooks: our pair, and the pairs that the training enters over it.

Of nested pairs only the innermost runs, so that what is saved inside of another pair is not seen.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from composer_memprof.recorders.modules.names import OUTSIDE
from composer_memprof.recorders.saved_tensors.ledger import Ledger
from composer_memprof.recorders.torch_private import saved_tensor_hooks
from composer_memprof.recorders.torch_private.graph_tasks import in_backward

#: The stacks with our hooks on them, by thread.
_stacks: dict[int, HookStack] = {}


class HookStack:
    """Enters our pair on this thread, and notes which modules run under another one.

    Args:
        ledger (Ledger): its ``pack`` and ``unpack`` are our pair.
        names (Sequence[str]): of modules, by number.
    """

    def __init__(self, ledger: Ledger, names: Sequence[str]) -> None:
        self._ledger = ledger
        self._names = names
        self._thread = threading.get_ident()
        #: The pairs that were entered over ours, the innermost last.
        self._over_ours: list[Any] = []
        self._is_on = False
        self._originals: tuple[Any, ...] = ()
        self._replacements: tuple[Any, ...] = ()

    def enter(self) -> None:
        """Put our pair on the stack."""
        self._is_on = True
        self._watch_others()
        self._push_ours()
        _stacks[self._thread] = self

    def leave(self) -> None:
        """Take our pair off the stack. From another thread this is not possible: that thread's pair would be taken."""
        _stacks.pop(self._thread, None)
        try:
            if threading.get_ident() == self._thread:
                self._take_ours_off()
        finally:
            self._unwatch_others()

    def note_hidden(self, module: str) -> None:
        """Note that ``module`` runs under another pair, if there is one."""
        if self._over_ours:
            self._note_unseen(self._over_ours[-1], module)

    def _push_ours(self) -> None:
        saved_tensor_hooks.push_hooks(self._ledger.pack, self._ledger.unpack)

    def _take_ours_off(self) -> None:
        """Take our pair from under those that were entered over it."""
        for _ in range(len(self._over_ours) + 1):
            saved_tensor_hooks.pop_hooks()
        self._push_others()

    def _put_ours_back(self) -> None:
        """Put our pair under those that were entered over it."""
        self._push_ours()
        self._push_others()

    def _push_others(self) -> None:
        for pair in self._over_ours:
            saved_tensor_hooks.push_pair(pair)

    def _is_on_this_thread(self) -> bool:
        return _stacks.get(threading.get_ident()) is self

    def _note_unseen(self, pair: Any, name: str) -> None:
        what = f'saved inside of {type(pair).__qualname__}, which keeps it in its own way'
        self._ledger.unseen.setdefault(what, set()).add(name)

    def _watch_others(self) -> None:
        graph: Any = torch.autograd.graph
        pairs = graph.saved_tensors_hooks
        enter, leave, disable = pairs.__enter__, pairs.__exit__, graph.disable_saved_tensors_hooks
        self._originals = enter, leave, disable

        def enter_pair(pair: Any) -> Any:
            result = enter(pair)
            if self._is_on_this_thread():
                self._over_ours.append(pair)
                if not in_backward():
                    self._note_unseen(pair, self._name_of_call())
            return result

        def leave_pair(pair: Any, *exc: object) -> Any:
            if self._over_ours and self._over_ours[-1] is pair and self._is_on_this_thread():
                self._over_ours.pop()
            return leave(pair, *exc)

        @contextmanager
        def disabled(error_message: str) -> Iterator[None]:
            # torch.func and vmap switch hooks off this way, which is an error while hooks are active, even ours.
            only_ours = self._is_on_this_thread() and not self._over_ours and self._is_on
            if not only_ours:
                with disable(error_message):
                    yield
                return
            what = 'saved inside of torch.func or vmap, which run without saved-tensor hooks'
            self._ledger.unseen.setdefault(what, set()).add(self._name_of_call())
            self._is_on = False
            self._take_ours_off()
            try:
                with disable(error_message):
                    yield
            finally:
                if _stacks.get(self._thread) is self:
                    self._put_ours_back()
                self._is_on = True

        self._replacements = enter_pair, leave_pair, disabled
        pairs.__enter__, pairs.__exit__, graph.disable_saved_tensors_hooks = self._replacements

    def _unwatch_others(self) -> None:
        graph: Any = torch.autograd.graph
        pairs = graph.saved_tensors_hooks
        ours, originals = self._replacements, self._originals
        self._replacements = self._originals = ()
        # Where someone has replaced our functions since, they stay; they then only call the originals.
        for owner, name, replacement, original in zip(
            (pairs, pairs, graph), ('__enter__', '__exit__', 'disable_saved_tensors_hooks'), ours, originals
        ):
            if getattr(owner, name) is replacement:
                setattr(owner, name, original)

    def _name_of_call(self) -> str:
        module = self._ledger.call.module
        return OUTSIDE if module < 0 else self._names[module]
