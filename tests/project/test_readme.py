"""The README keeps what it promises: its commands and examples run, its links lead somewhere, its tables are complete."""

from __future__ import annotations

import configparser
import json
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
from omegaconf import OmegaConf

from composer_memprof import config
from composer_memprof.artifacts.naming.names import RUN_VARIABLES, TIME_VARIABLES
from composer_memprof.callbacks.framework.options import SHARED
from composer_memprof.callbacks.registry import CALLBACKS
from composer_memprof.cli import app
from composer_memprof.config.arguments import call
from composer_memprof.examples.configs import shipped_configs
from tests.conftest import child_environment, entries

ROOT = Path(__file__).parents[2]
README = (ROOT / 'README.md').read_text()
METADATA = configparser.RawConfigParser()
METADATA.read(ROOT / 'setup.cfg')
PROJECT = 'https://github.com/composer-memprof/composer_memprof'
TARGETS = set(re.findall(r'^([a-z-]+):', (ROOT / 'Makefile').read_text(), re.MULTILINE))

#: Commands that can't run here, and why. What can be checked of them is, below.
NOT_RUN = {
    'git clone': 'it needs the network',
    'pip install': 'it needs a package index',
    'make run': 'it installs first; the test runs the config that it trains',
    'make test': 'it is this suite',
    'composer -n 2': 'two more processes that load torch; test_dist.py trains the same config on two ranks',
}
#: A smaller model, and as many batches as the recorded windows need.
SMALL = (
    *('model.d_model=32', 'model.n_heads=2', 'progress_bar=false'),
    *('train_loader.batch_size=4', 'train_loader.max_bytes=200000'),
)
FASTER = {
    'composer-memprof train quickstart --report': (*SMALL, 'max_duration=45ba'),
    'composer-memprof train modules': SMALL,
}
#: The command that prints a block without a language, by the block's first word.
PRINTED_BY = {
    'loss:': 'composer-memprof train quickstart --report',
    'Peak': 'composer-memprof inspect runs/quickstart',
    'simulated': 'composer-memprof plan quickstart --gpu t4',
}
#: What `simulate` runs.
TRAIN = """
import torch
layer = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(layer.parameters())
layer(torch.ones(8, 64, device='cuda')).sum().backward()
optimizer.step()
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of the README."""

    language: str
    text: str
    line: int

    def commands(self) -> list[str]:
        """The commands of a bash block, without comments."""
        return [line.partition(' #')[0].strip() for line in self.text.splitlines()]


BLOCKS = [
    Block(found[1], found[2], README[: found.start()].count('\n') + 1)
    for found in re.finditer(r'^```(\w*)\n(.*?)^```$', README, re.MULTILINE | re.DOTALL)
]


def blocks(language: str) -> list[Any]:
    return [pytest.param(block, id=f'line {block.line}') for block in BLOCKS if block.language == language]


class Reader:
    """Runs the README's commands in a folder, each once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._printed: dict[str, str] = {}
        (folder / 'train.py').write_text(TRAIN)

    def run(self, command: str) -> str:
        """What the command prints."""
        if command not in self._printed:
            if not command.startswith('composer-memprof train'):
                self._train_first()
            self._printed[command] = self._run(command)
        return self._printed[command]

    def _train_first(self) -> None:
        self.run('composer-memprof train quickstart --report')
        for name in ('before', 'after'):
            shutil.copytree(self.folder / 'runs/quickstart', self.folder / 'runs' / name, dirs_exist_ok=True)

    def _run(self, command: str) -> str:
        path = f'{Path(sys.executable).parent}{os.pathsep}{os.environ["PATH"]}'
        done = subprocess.run(
            ['bash', '-c', shlex.join([*shlex.split(command), *FASTER[command]]) if command in FASTER else command],
            cwd=ROOT if command.startswith('make') else self.folder,
            env=child_environment(PATH=path, OMP_NUM_THREADS='1', COLUMNS='100'),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f'{command}\n{done.stdout}{done.stderr}'
        return done.stdout


@pytest.fixture(scope='module')
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(tmp_path_factory.mktemp('reader'))


def test_every_block_is_of_a_language_that_is_tested() -> None:
    assert {block.language for block in BLOCKS} == {'bash', 'python', 'yaml', ''}
    assert len(BLOCKS) > 10


@pytest.mark.parametrize('block', blocks('bash'))
def test_commands_run(block: Block, reader: Reader) -> None:
    for command in block.commands():
        if not command.startswith(tuple(NOT_RUN)):
            reader.run(command)


def test_each_command_that_does_not_run_here_is_in_the_readme() -> None:
    commands = [command for block in BLOCKS if block.language == 'bash' for command in block.commands()]
    assert [start for start in NOT_RUN if not any(command.startswith(start) for command in commands)] == []


def test_make_run_trains_the_quickstart() -> None:
    makefile = (ROOT / 'Makefile').read_text()
    assert '$(BIN)/composer-memprof train $(CONFIG) --report $(ARGS)' in makefile
    assert 'CONFIG ?= yamls/quickstart.yaml\n' in makefile
    assert shipped_configs()['quickstart'].samefile(ROOT / 'yamls/quickstart.yaml')


def test_what_is_installed_and_cloned_is_this_project() -> None:
    assert f'git clone {PROJECT} && cd composer_memprof' in README
    assert PROJECT in METADATA['metadata']['project_urls']
    extras = set(METADATA['options.extras_require'])
    for command in re.findall(r'pip install (\S+)', README):
        name, _, chosen = command.strip("'`]").partition('[')
        assert name == METADATA['metadata']['name']
        assert set(filter(None, chosen.split(','))) <= extras
    assert (
        f'extras: {", ".join(name for name in METADATA["options.extras_require"] if name not in ("all", "dev"))}, or'
        in README
    )


def test_commands_and_targets_in_the_text_exist() -> None:
    commands = {each.name or each.callback.__name__ for each in app.registered_commands if each.callback}
    named = set(re.findall(r'composer-memprof ([a-z]+)', README))
    assert named == commands
    assert (
        set(re.findall(r'`make ([a-z-]+)', README)) | set(re.findall(r'^make ([a-z-]+)', README, re.MULTILINE))
        <= TARGETS
    )
    for name in re.findall(r'composer-memprof train (\w+)(?![\w.])', README):
        assert name == 'run' or name in shipped_configs()
    assert all(f'`{name}`' in README for name in shipped_configs())


def structure(line: str) -> str:
    """A line of output without numbers, units, the frame of a table and the folder of the command."""
    line = re.sub(r'[━┃│┏┓┡┩╇┳└┘┴─]', '', line).replace('.venv/bin/', '')
    line = re.sub(r'\d[\d.,]*', '#', line)
    return ' '.join(re.sub(r'\b(B|KiB|MiB)\b', 'B', line).replace('blocks', 'block').split())


@pytest.mark.parametrize('block', blocks(''))
def test_sample_output_is_what_the_command_prints(block: Block, reader: Reader) -> None:
    printed = set(map(structure, reader.run(PRINTED_BY[block.text.split()[0]]).splitlines()))
    # If several rules put blocks into a category, the size of each precedes its rule.
    printed |= {line.removeprefix('# B ') for line in printed}
    shown = [line for line in map(structure, block.text.splitlines()) if line not in ('', '…')]
    assert [line for line in shown if line not in printed] == [], printed


RUN_PYTHON = """
import contextlib, io, json, sys
printed = []
for line, text in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(text, f'README.md, block at line {line}', 'exec'), {'__name__': '__main__'})
    printed.append(out.getvalue())
json.dump(printed, open('printed.json', 'w'))
"""


def test_python_examples_run_in_a_fresh_process_and_an_empty_folder() -> None:
    examples = [block for block in BLOCKS if block.language == 'python']
    done = subprocess.run(
        [sys.executable, '-c', RUN_PYTHON],
        input=json.dumps([(block.line, block.text) for block in examples]),
        env=child_environment(OMP_NUM_THREADS='1'),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    (last_line,) = re.findall(r'`(composer_memprof: [^`]+)`', README)
    assert last_line.replace('\n', ' ') in done.stderr.splitlines()
    assert {'host_rss', 'step_times', 'memory_snapshot', 'memory_snapshot.page'} <= {
        entry.kind for entry in entries(Path('first')) if entry.status == 'saved'
    }
    (readings,) = (path.read_text() for path in Path().rglob('rank_0_memory_stats.yaml'))
    assert all(f'0.tokenize.{call}.{end}:' in readings for call in (2, 3, 4) for end in ('start', 'end'))
    assert '0.tokenize.1.start' not in readings and '0.training_step.4.end:' in readings
    printed = dict(zip((block.text for block in examples), json.loads(Path('printed.json').read_text())))
    (medians,) = (text for example, text in printed.items() if 'step_times.summary.json' in example)
    assert re.match(r"rank 0: \{'total': [\d.]+, 'data': [\d.]+, 'dataloader': ", medians)


def build(callbacks: dict[str, Any]) -> None:
    """Check names and arguments of callbacks, and make them."""
    for name, arguments in callbacks.items():
        call(f'callbacks.{name}', config.ALL_CALLBACKS[name], arguments)


@pytest.mark.parametrize('block', blocks('yaml'))
def test_yaml_examples_are_valid(block: Block) -> None:
    Path('example.yaml').write_text(block.text)
    example: Any = OmegaConf.load('example.yaml')
    complete = 'model' in example
    if not complete:  # goes into a config that has the rest
        quickstart: Any = OmegaConf.load(ROOT / 'yamls/quickstart.yaml')
        OmegaConf.save({**quickstart, **example}, 'example.yaml')
    loaded = config.load('example.yaml')
    build(loaded['callbacks'])
    if complete:
        config.build_trainer(loaded).close()


QUESTIONS = re.findall(r'^\|[^|]+\? \| `(\w+)` \| `([^`]+)` \|$', README, re.MULTILINE)


@pytest.mark.parametrize(('callback', 'line'), QUESTIONS)
def test_each_question_has_a_line_of_yaml_that_makes_its_callback(callback: str, line: str) -> None:
    Path('line.yaml').write_text(line)
    (name,) = made = OmegaConf.to_container(OmegaConf.load('line.yaml'))
    assert CALLBACKS[name].__name__ == callback
    build(made)


def test_every_callback_answers_a_question_and_is_described() -> None:
    names = {callback.__name__ for callback in CALLBACKS.values()}
    assert {callback for callback, _ in QUESTIONS} == names
    described = README.partition('| callback | records | default schedule |')[2].partition('</details>')[0]
    assert set(re.findall(r'^\| `(\w+)` \|', described, re.MULTILINE)) == names
    shared = re.search(r'All take `([^`]+)`', README)
    assert shared and set(re.split(r',\s+', shared[1])) == set(SHARED)
    variables = re.search(r'Variables: `([^`]+)`', README)
    assert variables and set(re.findall(r'\{(\w+)\}', variables[1])) == {*RUN_VARIABLES, *TIME_VARIABLES}


def test_links_are_absolute_and_files_that_they_name_exist() -> None:
    if not (ROOT / '.github').is_dir():
        pytest.skip('an sdist has no .github')
    links = re.findall(r'\]\(([^)]+)\)', README)
    assert links and all(link.startswith('https://') for link in links)
    raw = PROJECT.replace('github.com', 'raw.githubusercontent.com')
    for link in links:
        for base in (f'{PROJECT}/blob/main/', f'{raw}/main/'):
            if link.startswith(base):
                assert (ROOT / link.removeprefix(base)).is_file(), link
        assert not link.startswith(PROJECT) or '/blob/main/' in link, link
    assert all(image.stat().st_size < 200_000 for image in (ROOT / '.github/images').iterdir())


ROWS = [row for row in README.splitlines() if row.startswith('|') and '`test_' in row]


@pytest.mark.parametrize('row', ROWS, ids=range(len(ROWS)))
def test_each_listed_feature_has_its_tests(row: str) -> None:
    for command in re.findall('`(test_[^`]*)`', row.split('|')[-2]):
        name, *rest = shlex.split(command)
        tests = re.findall(r'^def (test_\w+)', next((ROOT / 'tests').rglob(name)).read_text(), re.MULTILINE)
        for word in rest[1].split(' or ') if rest else ['']:
            assert any(word in test for test in tests), f'{name} has no test for {word!r}'


def test_every_feature_of_the_table_is_listed() -> None:
    assert len(ROWS) > 20
