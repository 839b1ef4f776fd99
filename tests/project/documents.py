"""The README and the guide as tests read them: their blocks, and a reader who runs each command once."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from composer_memprof.guide import pages
from tests.conftest import child_environment
from tests.support.processes import warm_python
from tests.support.processes.simulated_runs import on_a_server, plan_on_a_server

ROOT = Path(__file__).parents[2]
README = (ROOT / 'README.md').read_text()
GUIDE = {page.name: page.text for page in pages()}
DOCUMENTS = {'README': README, **GUIDE}
TEXT = '\n'.join(DOCUMENTS.values())

#: Commands that can't run here, and why. What can be checked of them is, in the tests.
NOT_RUN = {
    'git clone': 'it needs the network',
    'pip install': 'it needs a package index',
    'make run': 'it installs first; the test runs the config that it trains',
    'make test': 'it is this suite',
    'composer -n 2': 'two more processes that load torch; test_dist.py trains the same config on two ranks',
    'composer-memprof report runs/too_large --simulate': 'test_tried_advice.py simulates the changes of a report',
}
#: Exit codes of commands that say no: memory runs out, a config does not fit.
EXIT_CODES = {
    'composer-memprof simulate --gpu a10g -- composer-memprof train too_large': 3,
    'composer-memprof plan too_large --gpu a10g': 3,
}
#: A smaller model, and as many batches as the recorded windows need.
_SMALL = (
    *('model.d_model=32', 'model.n_heads=2', 'progress_bar=false'),
    *('train_loader.batch_size=4', 'train_loader.max_bytes=200000'),
)
_FASTER = {
    'composer-memprof train quickstart --report': (*_SMALL, 'max_duration=45ba'),
    'composer-memprof train modules': _SMALL,
}
#: What `simulate` runs.
_TRAIN = """
import torch
layer = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(layer.parameters())
layer(torch.ones(8, 64, device='cuda')).sum().backward()
optimizer.step()
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: str
    language: str
    text: str
    line: int

    def commands(self) -> list[str]:
        """The commands of a bash block, without comments."""
        return [line.partition(' #')[0].strip() for line in self.text.splitlines()]


BLOCKS = [
    Block(document, found[1], found[2], text[: found.start()].count('\n') + 1)
    for document, text in DOCUMENTS.items()
    for found in re.finditer(r'^```(\w*)\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)
]


def blocks(language: str) -> list[Any]:
    """The blocks of a language, as parameters of a test."""
    return [pytest.param(each, id=f'{each.document}-{each.line}') for each in BLOCKS if each.language == language]


def commands() -> list[str]:
    """Every command of every bash block, once, in the order of the documents."""
    return list(dict.fromkeys(command for each in BLOCKS if each.language == 'bash' for command in each.commands()))


class Reader:
    """Runs the commands of the documents in a folder, each once, in a terminal of 76 columns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._printed: dict[str, str] = {}
        (folder / 'train.py').write_text(_TRAIN)

    def run(self, command: str) -> str:
        """What the command prints."""
        if command not in self._printed:
            self._run_what_it_needs(command)
            self._printed[command] = self._run(command)
        return self._printed[command]

    def _run_what_it_needs(self, command: str) -> None:
        if 'runs/too_large' in command:
            self.run('composer-memprof simulate --gpu a10g -- composer-memprof train too_large')
        elif command == 'composer-memprof check':
            self.run('composer-memprof check --update --gpu a100-40gb -- python train.py')
        elif 'runs/modules' in command:
            self.run('composer-memprof train modules')
        elif 'runs/' in command:
            self.run('composer-memprof train quickstart --report')
            for name in ('before', 'after'):
                shutil.copytree(self.folder / 'runs/quickstart', self.folder / 'runs' / name, dirs_exist_ok=True)

    def _run(self, command: str) -> str:
        words = [*shlex.split(command), *_FASTER.get(command, ())]
        path = f'{Path(sys.executable).parent}{os.pathsep}{os.environ["PATH"]}'
        done = self._start(command, words, PATH=path, OMP_NUM_THREADS='1', COLUMNS='76')
        assert done.returncode == EXIT_CODES.get(command, 0), f'{command}\n{done.stdout}{done.stderr}'
        return done.stdout

    def _start(self, command: str, words: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
        if words[:2] == ['composer-memprof', 'plan']:
            return plan_on_a_server(*words[2:], cwd=self.folder, **environment)
        if words[:2] == ['composer-memprof', 'check']:
            return on_a_server(*words[1:], cwd=self.folder, **environment)
        start: Any = subprocess.run
        if words[0] == 'composer-memprof':
            start, words = warm_python.run, [sys.executable, '-m', 'composer_memprof', *words[1:]]
        else:
            words = ['bash', '-c', command]
        return start(
            words,
            cwd=ROOT if command.startswith('make') else self.folder,
            env=child_environment(**environment),
            capture_output=True,
            text=True,
            timeout=300,
        )


@pytest.fixture(scope='session')
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(tmp_path_factory.mktemp('reader'))
