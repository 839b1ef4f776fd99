"""The phases that a loop's model tells of itself: which forward passes are training's."""

from __future__ import annotations

import torch

from composer_memprof.loop.model_phases import ModelPhases


class _Loop:
    """A model and its phases, in order."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.found: list[str] = []
        self.phases = ModelPhases(
            self.model, [self.optimizer], lambda phase, batch: self.found.append(phase), lambda phase: None
        )
        self.phases.follow()

    def train(self) -> list[str]:
        self.found.clear()
        self.model(torch.ones(2, 4)).sum().backward()
        self.optimizer.step()
        return list(self.found)

    def evaluate(self) -> list[str]:
        self.found.clear()
        self.model(torch.ones(2, 4))
        return list(self.found)


def test_a_forward_pass_that_no_backward_follows_is_no_phase_of_training() -> None:
    loop = _Loop()
    for _ in range(3):
        assert loop.train() == ['forward', 'backward', 'optimizer']
        assert loop.evaluate() == []
    loop.phases.leave()


def test_forward_passes_of_several_lines_are_training_s_once_a_backward_has_reached_them() -> None:
    loop = _Loop()
    for _ in range(2):
        loop.found.clear()
        one = loop.model(torch.ones(2, 4))
        other = loop.model(torch.zeros(2, 4))
        (one + other).sum().backward()
        assert loop.found == ['forward', 'forward', 'backward']
    # Of other lines, for the first time; then they are known.
    assert [loop.train() for _ in range(2)] == [['backward', 'optimizer'], ['forward', 'backward', 'optimizer']]
    loop.phases.leave()


def test_before_a_backward_pass_all_forward_passes_are_training_s() -> None:
    loop = _Loop()
    assert loop.evaluate() == loop.evaluate() == ['forward']
    loop.phases.leave()
