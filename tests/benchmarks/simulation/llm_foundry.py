"""LLM Foundry's MPT-7B on simulated GPUs, as two tables: ``make mpt``.

The YAML is LLM Foundry's own, a file or an address, and is not changed. Overrides say only what this machine lacks: the
tokenizer, which is one made here in the place of one that is downloaded. With SIMULATED_GPU_STAND_INS=0 they leave out the
package flash-attn, too, if it is not installed. The data are made here too, where the YAML looks for them.

The first table has the peaks of three steps on 8 and 64 ranks, with FSDP1 and FSDP2. The second has the largest
microbatch that fits, with and without activation checkpointing.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from composer_memprof.messages import human_bytes
from composer_memprof.simulated_gpu import stand_ins

#: Where the YAML, the data and the tokenizer lie while it runs.
_FOLDER = Path('build/mpt-7b')
_CONFIG = 'mpt-7b.yaml'
_TOKENIZER = './tokenizer'
#: The YAML's batch of all ranks, its sequence length, and how many words the tokenizer has.
_BATCH, _LENGTH, _WORDS = 1024, 2048, 2000
_GPUS = ('h100-80gb', 'a100-40gb')
#: Larger microbatches are not tried.
_MOST = 64
_WITHOUT_CHECKPOINTING = 'fsdp_config.activation_checkpointing=false'


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog='make mpt')
    parser.add_argument('yaml', help="a file or an address of LLM Foundry's mpt-7b.yaml")
    parser.add_argument('--ranks', type=int, nargs='*', default=[8, 64], help='ranks of the peaks')
    parser.add_argument('--largest', type=int, nargs='*', default=[8], help='ranks of the largest microbatches')
    given = parser.parse_args(arguments)
    prepare(given.yaml)
    print(f'Overrides: {" ".join(overrides())}\n')
    if given.ranks:
        print('| GPU | ranks | sharded by | allocated | reserved | of | fits |\n|---|---|---|---|---|---|---|')
    for gpu, ranks, fsdp in itertools.product(_GPUS, given.ranks, (1, 2)):
        print(peaks(gpu, ranks, fsdp), flush=True)
    if given.largest:
        print(
            '\n| GPU | ranks | sharded by | largest microbatch, checkpointed | not checkpointed |\n|---|---|---|---|---|'
        )
    for gpu, ranks, fsdp in itertools.product(_GPUS, given.largest, (1, 2)):
        found = [largest(gpu, ranks, fsdp, *further) for further in ((), (_WITHOUT_CHECKPOINTING,))]
        print(f'| {gpu} | {ranks} | FSDP{fsdp} | {" | ".join(found)} |', flush=True)


def prepare(yaml: str) -> None:
    """Put the YAML, a tokenizer and data into the folder."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    config = _FOLDER / _CONFIG
    if yaml.startswith('https://'):
        with urllib.request.urlopen(yaml) as answer:
            config.write_bytes(answer.read())
    else:
        config.write_bytes(Path(yaml).read_bytes())
    if not (_FOLDER / _TOKENIZER).exists():
        _make_tokenizer(_FOLDER / _TOKENIZER)
    for split, samples in (('train', 4 * _BATCH), ('val', 64)):
        if not (_FOLDER / 'my-copy-c4' / split / 'index.json').exists():
            _make_data(_FOLDER / 'my-copy-c4' / split, samples)


def _make_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    end, unknown = '<|endoftext|>', '[UNK]'
    words = {word: number for number, word in enumerate([*map(str, range(_WORDS)), unknown, end])}
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token=unknown)),
        **{f'{kind}_token': end for kind in ('bos', 'eos', 'pad')},
        unk_token=unknown,
    )
    made.save_pretrained(folder)


def _make_data(folder: Path, samples: int) -> None:
    import numpy
    from streaming import MDSWriter

    random = numpy.random.default_rng(0)
    with MDSWriter(out=str(folder), columns={'tokens': 'ndarray:int64'}) as writer:
        for _ in range(samples):
            writer.write({'tokens': random.integers(_WORDS, size=_LENGTH)})


def overrides() -> list[str]:
    """What is changed in the YAML."""
    changed = [f'tokenizer.name={_TOKENIZER}']
    if importlib.util.find_spec('flash_attn') is None and os.environ.get(stand_ins.VARIABLE) == '0':
        changed += ['model.attn_config.attn_impl=torch', 'model.loss_fn=torch_crossentropy']
    return changed


def peaks(gpu: str, ranks: int, fsdp: int) -> str:
    """A row of the first table."""
    found = _simulate(gpu, ranks, fsdp, [])
    cells = [gpu, str(ranks), f'FSDP{fsdp}']
    if found['exit_code']:
        cells += ['', '', human_bytes(found['available']), 'does not run' if found['fits'] else 'no']
    else:
        (device,) = found['processes'][0]['devices']
        cells += [human_bytes(size) for size in (device['allocated'], device['reserved'], found['available'])] + ['yes']
    return f'| {" | ".join(cells)} |'


def largest(gpu: str, ranks: int, fsdp: int, *further: str) -> str:
    """The largest microbatch that fits, in words."""
    most = min(_MOST, _BATCH // ranks)
    found = _simulate(gpu, ranks, fsdp, ['--largest', str(most)], 'device_train_microbatch_size={}', *further)
    limit = f' ({found["limit"]})' if found['limit'] else ''
    return f'{found["largest"] or "none"}{limit}'


def _simulate(gpu: str, ranks: int, fsdp: int, options: list[str], *further: str) -> dict[str, Any]:
    simulate = [sys.executable, '-m', 'composer_memprof', 'simulate', '--json', '--gpu', gpu, '--ranks', str(ranks)]
    train = [str(Path(sys.executable).with_name('llmfoundry')), 'train', _CONFIG, *overrides(), *further]
    print(
        f'FSDP_VERSION={fsdp} {" ".join(["composer-memprof", *simulate[3:], *options, "--", *train])}', file=sys.stderr
    )
    environment = {**os.environ, 'FSDP_VERSION': str(fsdp)}
    with open(_FOLDER / 'log.txt', 'a') as log:
        ran = subprocess.run(
            [*simulate, *options, '--', *train],
            cwd=_FOLDER,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    if not ran.stdout:
        raise SystemExit(f'it ended with exit code {ran.returncode}; {_FOLDER / "log.txt"} has what it wrote')
    return json.loads(ran.stdout)


if __name__ == '__main__':
    main(sys.argv[1:])
