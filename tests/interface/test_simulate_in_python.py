"""``composer_memprof.simulate``: functions and commands, which run in processes of their own."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import composer_memprof
from composer_memprof import MemprofError
from composer_memprof.interface.functions import command_that_calls
from composer_memprof.interface.settings import Settings
from tests.conftest import simulated_gpu
from tests.support.json_schemas import as_promised
from tests.support.processes.simulated_runs import MIB, result_of, run_on_a_server

TRAIN = """
import torch

def train(width=1024, batch=8, fails=False):
    model = torch.nn.Linear(width, width, bias=False).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(4):
        model(torch.ones(batch, width, device='cuda')).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if fails:
            raise ValueError('of the function itself')

if __name__ == '__main__':
    train()
"""
#: A program in a process on a simulated GPU: the Python that it starts is forked from it.
PROGRAM = """
import json, os, sys
from composer_memprof import MemprofError, load_snapshot, simulate
from composer_memprof.simulation import run
from tests.support.processes.forked_python import Popen
os.environ.clear()
os.environ.update(json.loads(sys.argv[1]))
run.subprocess.Popen = Popen
sys.path.insert(0, '')
"""


def program(code: str, train: str = TRAIN) -> list[str]:
    """What a program prints that has ``train.py`` beside it."""
    Path('train.py').write_text(train)
    done = run_on_a_server(PROGRAM + code, json.dumps(dict(os.environ)), environment=simulated_gpu())
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_a_function_of_a_module_is_simulated_as_its_script_would_be() -> None:
    printed, snapshot = program(
        """
from train import train
found = simulate(train, gpu='t4', arguments={'width': 2048})
print(json.dumps(found.to_dict()))
frames = [frame.short() for place in load_snapshot(found.snapshot).report().peak.holders for frame in place.frames]
print(found.snapshot, *frames)
"""
    )
    values = as_promised('simulate', printed)
    assert values['gpu'] == 't4' and values['verdict'] == 'fits' and values['subject'] == 'the function train'
    assert 32 * MIB <= values['processes'][0]['devices'][0]['allocated'] < 60 * MIB, 'of the width that was given'
    assert '/simulated/train.t4/' in snapshot and 'train.py:5 train' in snapshot
    script = result_of('--gpu', 't4', '--', 'python', 'train.py')
    assert values.keys() == script.keys() - {'stderr', 'code'}


def test_a_command_is_simulated_to_the_dict_and_the_text_of_the_command_itself() -> None:
    printed, text = program(
        """
found = simulate(['python', 'train.py'], gpu='t4', steps=2)
print(json.dumps(found.to_dict()))
print(json.dumps(str(found)))
"""
    )
    values, theirs = (
        as_promised('simulate', printed),
        result_of('--gpu', 't4', '--steps', '2', '--', 'python', 'train.py'),
    )
    for each in (values, theirs):
        for process in each['processes']:
            del process['host'], process['snapshot'], process['time']
        each.pop('time')
    assert values == {key: theirs[key] for key in values}
    lines = json.loads(text).splitlines()
    assert lines[0].startswith('simulated t4: fits. Needs ')
    assert lines[-1] == 'Next, try: composer-memprof inspect ' + str(
        Path('simulated/train.t4').absolute() / 'rank0.memory_snapshot.pickle'
    )


def test_a_function_that_fails_is_called_a_function_and_its_traceback_is_there() -> None:
    lines = program(
        """
from train import train
found = simulate(train, arguments={'fails': True})
print(found)
print(found.fits, "ValueError: of the function itself" in found._repr_html_())
"""
    )
    assert 'ValueError: of the function itself' in lines
    verdict = 'simulated h100-80gb: not seen: the function train failed with exit code 1; 1 optimizer step fitted'
    assert verdict in ' '.join(lines) and lines[-1] == 'None True'


@pytest.mark.slow
def test_a_search_gives_its_numbers_to_the_first_argument() -> None:
    train = TRAIN.replace('width=1024, batch=8', 'batch, width=4096')
    values = as_promised(
        'simulate',
        program(
            """
from train import train
print(json.dumps(simulate(train, memory='1GB', gpu='t4', largest=40_000, arguments={'width': 4096}).to_dict()))
""",
            train,
        )[0],
    )
    assert 10_000 < values['largest'] < 40_000, 'each row is 16 KiB and its gradient'
    assert values['limit'] == '' and all(each['error'] == '' for each in values['tried'])


def test_a_function_of_a_script_is_found_by_its_file_and_its_main_block_does_not_run() -> None:
    simulated_gpu()  # skips where there is none
    Path('script.py').write_text(
        """
import composer_memprof

def nothing():
    print('called in', __name__)

if __name__ == '__main__':
    found = composer_memprof.simulate(nothing, steps=0)
    print(found.output, found.verdict, found.result.unseen, sep='|')
"""
    )
    done = subprocess.run([sys.executable, 'script.py'], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == 'called in __mp_main__\n|not seen|the function nothing used no GPU memory\n', done.stderr


def test_a_script_that_simulates_without_a_main_block_is_told_so_and_not_simulated_without_end() -> None:
    simulated_gpu()
    Path('script.py').write_text(
        'import composer_memprof\ndef nothing(): pass\nfound = composer_memprof.simulate(nothing)\nprint(found.output)\n'
    )
    done = subprocess.run([sys.executable, 'script.py'], capture_output=True, text=True, timeout=120, check=False)
    assert "put that call below if __name__ == '__main__':" in done.stdout, done.stderr


NOTEBOOK = """
import linecache, sys, torch
import numpy as np
from torch.nn import Linear
text = '''
# the first line of a cell


def train(width=256):
    layer = Linear(width, width).cuda()
    optimizer = torch.optim.SGD(layer.parameters())
    layer(torch.ones(8, width, device='cuda')).sum().backward()
    optimizer.step()
'''
linecache.cache['/tmp/ipykernel_1/1.py'] = (len(text), None, text.splitlines(True), '/tmp/ipykernel_1/1.py')
exec(compile(text, '/tmp/ipykernel_1/1.py', 'exec'))
found = simulate(train, steps=0)
places = [frame.short() for place in load_snapshot(found.snapshot).report().peak.holders for frame in place.frames]
print(found.verdict, *places, found.output)
size = 8
exec(compile(text.replace('width=256', '').replace('width', 'size'), '/tmp/ipykernel_1/1.py', 'exec'))
linecache.cache['/tmp/ipykernel_1/1.py'][2][:] = text.replace('width=256', '').replace('width', 'size').splitlines(True)
try:
    simulate(train)
except MemprofError as error:
    print(error)
"""


def test_a_function_of_a_notebook_is_taken_by_its_source_with_what_it_imports() -> None:
    works, refused = program(NOTEBOOK)
    assert works.startswith('fits ') and 'notebook.py:6 train' in works
    assert 'define or import size within it' in refused


def refused(what: Any, **settings: Any) -> str:
    with pytest.raises(MemprofError) as error:
        composer_memprof.simulate(what, **settings)
    message = str(error.value)
    assert '\n' not in message
    return message


def defined_here() -> None:
    """To be called in another process."""


def test_what_cannot_be_called_in_another_process_is_refused_in_one_line() -> None:
    def inner() -> None:
        pass

    assert 'no lambda and no function that is defined within another one' in refused(lambda: None)
    assert 'cannot call test_what_cannot_be_called_in_another_process_is_refused_in_one_line.inner ' in refused(inner)
    assert 'write a function that calls it' in refused(Path.cwd().exists)
    assert refused(3).startswith('what must be a function, or a command')
    assert 'arguments must be numbers, text' in refused(defined_here, arguments={'path': Path()})
    assert 'arguments are those of a function' in refused('python train.py', arguments={})


def test_settings_are_refused_with_the_line_of_the_command() -> None:
    assert "there is no GPU named 'h10'" in refused('python x.py', gpu='h10')
    assert refused('python x.py', ranks=0) == 'ranks must be a whole number from 1, not 0'
    assert refused('python x.py', steps=-1) == 'steps must be a number from 0, not -1'
    assert refused('python x.py', values=1) == 'values must be true or false, not 1'
    assert refused('python x.py', largest=3) == (
        'the command must contain {}, where the number is put in, such as batch_size={}'
    )
    assert '--kept=2 must be a part from 0 to 1' in refused('python x.py', kept=2)
    assert "--versus='none.pickle' cannot be read" in refused('python x.py', versus='none.pickle')
    assert "'no-such-program' cannot be started" in refused('no-such-program')


def test_the_settings_of_the_type_checker_are_those_of_the_function() -> None:
    parameters = inspect.signature(composer_memprof.simulate).parameters
    assert parameters.keys() - {'what', 'largest'} == Settings.__annotations__.keys()


def test_the_request_for_a_function_names_its_module() -> None:
    with command_that_calls(defined_here, {}, searches=True) as command:
        request = json.loads(Path(command[-2]).read_text())
    assert command[-1] == '{}' and (request['module'], request['name']) == (__name__, 'defined_here')
