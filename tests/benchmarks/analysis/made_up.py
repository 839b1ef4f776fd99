"""Made-up snapshots of any length that resemble those of a training."""

from __future__ import annotations

import random
from typing import Any

from composer_memprof.vocabulary import BACKWARD, BETWEEN_BATCHES, DATALOADER, FORWARD, OPTIMIZER

_FOLDER = '/home/me/project'
_TORCH = '/home/me/venv/lib/python3.11/site-packages/torch'
_PHASES = (DATALOADER, FORWARD, BACKWARD, OPTIMIZER, BETWEEN_BATCHES)


def training_snapshot(events: int = 1_000_000, stacks: int = 2000, seed: int = 0) -> dict[str, Any]:
    """A snapshot in torch's format with about ``events`` events, of some batches of a model with many layers.

    Forward allocates activations, and temporaries that it frees at once. Backward frees the activations in reverse and
    allocates gradients, which the end of the batch frees. Sequence lengths, and so sizes, differ from batch to batch.
    Addresses are reused. Parameters were allocated before the recording.
    """
    return _Training(events, stacks, seed).snapshot()


class _Training:
    def __init__(self, events: int, stacks: int, seed: int) -> None:
        self.most = events
        self.random = random.Random(seed)
        self.stacks = [self._stack(number) for number in range(stacks)]
        self.trace: list[dict[str, Any]] = []
        self.phases: list[list[Any]] = []
        self.time = self.began = 1_700_000_000_000_000
        self.free: dict[int, list[int]] = {}
        self.live: dict[int, tuple[int, Any]] = {}
        self.end_of_memory = 0x7F00_0000_0000

    def _stack(self, number: int) -> list[dict[str, Any]]:
        layer = number // 40
        own = [
            {'filename': f'{_FOLDER}/layers.py', 'line': 20 + number % 40, 'name': f'op{number % 40}'},
            {'filename': f'{_FOLDER}/model.py', 'line': 100 + layer, 'name': 'forward'},
            {'filename': f'{_FOLDER}/train.py', 'line': 31, 'name': 'main'},
        ]
        torch = [
            {'filename': f'{_TORCH}/nn/modules/module_{deep % 7}.py', 'line': 1700 + deep, 'name': '_call_impl'}
            for deep in range(24)
        ]
        return [torch[0], own[0], *torch[1:12], own[1], *torch[12:], own[2]]

    def snapshot(self) -> dict[str, Any]:
        parameters = [self._place(self.random.choice((1, 4, 4, 16)) << 20) for _ in range(400)]
        forward = len(self.stacks) // 2
        for batch in range(10**9):
            if len(self.trace) >= self.most:
                break
            self._batch(batch, forward)
        held = {address: (size, []) for size, address in parameters} | self.live
        segments = [self._segment(address, size, frames) for address, (size, frames) in held.items()]
        segments += [
            {**self._segment(address, size, []), 'blocks': []} for size, free in self.free.items() for address in free
        ]
        return {
            'segments': segments,
            'device_traces': [self.trace],
            'allocator_settings': {},
            'external_annotations': [],
            'composer_memprof': {
                'device': 'cuda',
                'recorder': 'allocator_history',
                'rank': 0,
                'phases': self.phases,
                'tensors': [
                    [self.began, address, size, 'parameter', f'layers.{number // 8}.weight{number % 8}']
                    for number, (size, address) in enumerate(parameters)
                ],
            },
        }

    def _batch(self, batch: int, forward: int) -> None:
        length = self.random.randint(384, 512)  # tokens of the longest sequence in the batch
        kept: list[int] = []
        gradients: list[int] = []
        self._phase(batch, DATALOADER, 3000)
        inputs = self._alloc(8 * length * 64, 0)
        self._phase(batch, FORWARD, 200)
        for operation in range(forward):
            wide = 4096 if operation % 8 == 0 else 1024
            kept.append(self._alloc(length * wide * 2 + 512 * (operation % 3), operation))
            scratch = [
                self._alloc(self.random.randint(1, 64) * length * 256, operation)
                for _ in range(self.random.randint(0, 3))
            ]
            self.random.shuffle(scratch)
            for address in scratch:
                self._release(address)
        self._phase(batch, BACKWARD, 100)
        for operation in reversed(range(forward)):
            scratch = self._alloc(length * self.random.randint(512, 4096), forward + operation)
            self._release(kept.pop())
            if operation % 3 == 0:
                gradients.append(self._alloc(1 << (16 + operation % 5), forward + operation))
            self._release(scratch)
        self._phase(batch, OPTIMIZER, 50)
        for gradient in gradients:
            self._release(gradient)
        self._release(inputs)
        self._phase(batch, BETWEEN_BATCHES, 500)

    def _phase(self, batch: int, name: str, pause_us: int) -> None:
        if len(self.trace) < self.most:
            assert name in _PHASES
            self.phases.append([self.time, batch, name])
            self.time += pause_us

    def _place(self, size: int) -> tuple[int, int]:
        """The size rounded up as an allocator does, and a free address with room for the next power of two."""
        size = -(-size // 512) * 512
        room = 1 << (size - 1).bit_length()
        free = self.free.get(room)
        if free:
            return size, free.pop()
        self.end_of_memory += room
        return size, self.end_of_memory - room

    def _alloc(self, size: int, stack: int) -> int:
        if len(self.trace) >= self.most:  # the history may end in the middle of a batch
            return 0
        size, address = self._place(size)
        self.live[address] = (size, self.stacks[stack])
        self._event('alloc', address, size, self.stacks[stack])
        return address

    def _release(self, address: int) -> None:
        if len(self.trace) >= self.most or address not in self.live:
            return
        size, frames = self.live.pop(address)
        self._event('free_requested', address, size, frames)
        self._event('free_completed', address, size, frames)
        self.free.setdefault(1 << (size - 1).bit_length(), []).append(address)

    def _event(self, action: str, address: int, size: int, frames: Any) -> None:
        self.time += self.random.randint(1, 9)
        self.trace.append(
            {'action': action, 'addr': address, 'size': size, 'stream': 0, 'time_us': self.time, 'frames': frames}
        )

    def _segment(self, address: int, size: int, frames: Any) -> dict[str, Any]:
        block = {'address': address, 'size': size, 'requested_size': size, 'state': 'active_allocated'}
        return {
            'device': 0,
            'address': address,
            'total_size': size,
            'allocated_size': size,
            'active_size': size,
            'stream': 0,
            'segment_type': 'large',
            'is_expandable': False,
            'blocks': [{**block, 'frames': frames}],
        }
