"""Runs of many ranks, made up: the small files that each rank leaves, and their manifests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MIB = 1 << 20


def run_of(folder: Path, ranks: int, **changes: Any) -> Path:
    """A run's folder with a snapshot's summary and FSDPMemTracker's file for each rank.

    Args:
        folder (Path): is created.
        ranks (int): how many.
        changes: by ``rank2``, how many times the activations of rank 2 are those of the others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        factor = changes.get(f'rank{rank}', 1.0)
        write_files(
            folder,
            rank,
            {
                'memory_snapshot.summary': (
                    f'rank{rank}.9.memory_snapshot.summary.json',
                    snapshot_summary(rank, factor),
                ),
                'fsdp_mem_tracker.json': (f'fsdp_mem_rank_{rank}_train_9.json', module_memory(rank, factor)),
            },
        )
    return folder


def write_files(folder: Path, rank: int, files: Mapping[str, tuple[str, Any]], **entry: Any) -> None:
    """Write files of a rank, by kind a name and what is in it, and append them to its manifest."""
    with open(folder / f'rank{rank}.manifest.jsonl', 'a', encoding='utf-8') as manifest:
        for kind, (name, content) in files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / name).write_text(text, encoding='utf-8')
            line = {
                'kind': kind,
                'path': name,
                'remote': None,
                'bytes': len(text),
                'sha256': None,
                'rank': rank,
                'run_name': 'made-up',
                'epoch': 0,
                'batch': 9,
                'status': 'saved',
                **entry,
            }
            manifest.write(json.dumps(line) + '\n')


def snapshot_summary(rank: int, factor: float = 1.0, **changes: Any) -> dict[str, Any]:
    """A summary whose activations are 60 MiB times ``factor``, two thirds of them in the layers' ``up``."""
    activations = int(60 * MIB * factor)
    categories = {'activation': activations, 'parameter': 20 * MIB, 'optimizer_state': 40 * MIB}
    peak = {
        'bytes': sum(categories.values()),
        'event': 5,
        'events': 9,
        'time_us': 50,
        'batch': 8,
        'phase': 'backward',
        'allocated_before': 60 * MIB,
    }
    device = {
        'device': 0,
        'peak': peak,
        'categories': categories,
        'at_failure': None,
        'holders': [],
        'allocated_at_end': 60 * MIB,
        'reserved_peak': None,
        'idle_at_peak': None,
        'largest_hole': None,
        'steady': True,
        'growing': [],
        'modules': {'blocks.*.up': activations * 2 // 3, 'blocks.*.down': activations // 3, 'head': 20 * MIB},
    }
    meta = {'device': 'cuda', 'torch': '2.7.0', 'recorder': 'allocator_history', 'rank': rank, 'simulated': ''}
    return {'meta': meta, 'error': '', 'oom': None, 'devices': [device], 'devices_left_out': 0, 'version': 1, **changes}


def module_memory(rank: int, factor: float = 1.0) -> dict[str, Any]:
    """FSDPMemTracker's file of an unsharded model."""
    sizes = {
        'Parameter': 20 * MIB,
        'Gradient': 20 * MIB,
        'Activation': int(60 * MIB * factor),
        'OptState': 40 * MIB,
        'Total': 80 * MIB + int(60 * MIB * factor),
    }
    modules = [{'name': f'blocks.{number}.up', 'own_activation_bytes': int(MIB * factor)} for number in range(8)]
    return {'rank': rank, 'peak': {'cuda:0': sizes}, 'phases': {'backward': {'cuda:0': sizes}}, 'modules': modules}
