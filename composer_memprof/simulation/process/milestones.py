"""Whether a script has evaluated its model and written a checkpoint since its first optimizer step."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
import wrapt
from torch.nn.modules.module import register_module_forward_pre_hook


class Milestones:
    """What was reached so far.

    Attributes:
        evaluated: a module with parameters of the optimizer ran in evaluation mode, without gradients.
        saved: ``torch.save`` or ``safetensors.torch.save_file`` was called.
    """

    def __init__(self) -> None:
        self.evaluated = False
        self.saved = False

    @property
    def are_reached(self) -> bool:
        return self.evaluated and self.saved

    def follow(self, parameters: set[int]) -> None:
        """Watch from now on. It can't be undone.

        Args:
            parameters: the ids of those that are trained; other models, such as a teacher, are evaluated all the time.
        """

        def see_forward(module: torch.nn.Module, inputs: Any) -> None:
            if torch.compiler.is_compiling() or self.evaluated or module.training or torch.is_grad_enabled():
                return
            self.evaluated = any(id(each) in parameters for each in module.parameters())

        register_module_forward_pre_hook(see_forward)
        self._watch(torch, 'save')
        wrapt.when_imported('safetensors.torch')(lambda module: self._watch(module, 'save_file'))

    def _watch(self, module: types.ModuleType, name: str) -> None:
        save: Callable[..., Any] = getattr(module, name)

        @functools.wraps(save)
        def save_and_note(*arguments: Any, **keywords: Any) -> Any:
            self.saved = True
            return save(*arguments, **keywords)

        setattr(module, name, save_and_note)
