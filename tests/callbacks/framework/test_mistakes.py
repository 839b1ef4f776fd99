"""Mistakes in the configuration of a callback, refused in one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import composer.callbacks
import composer.profiler
import pytest

from composer_memprof import HostRSS, TorchProfiler
from composer_memprof.schedule import window
from tests.conftest import make_trainer
from tests.support.callbacks.every_callback import each_callback

# -- bad configuration --------------------------------------------------------------------------------------------


@each_callback
@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        ({'folder': '{run_nam}'}, ['folder', '{run_nam}', "'run_name'"]),
        ({'folder': '{batch}'}, ['folder', '{batch}']),
        ({'filename': '{bach}'}, ['filename', '{bach}', "'batch'"]),
        ({'filename': '../{rank}'}, ['filename', 'leaves its folder']),
        ({'filename': '/etc/{rank}'}, ['filename', 'leaves its folder']),
        ({'remote_file_name': 's3://b/{bach}'}, ['remote_file_name', '{bach}']),
        ({'remote_file_name': 'gs://b/x'}, ['gs://', 'pip install']),
        ({'num_artifacts_to_keep': -2}, ['num_artifacts_to_keep must be', 'not -2']),
        ({'num_artifacts_to_keep': 0, 'remote_file_name': None}, ['num_artifacts_to_keep=0']),
        ({'stages': ['trian']}, ["'trian'", "'train'"]),
        ({'ranks': [-1]}, ['ranks']),
        ({'ranks': [0], 'schedule': {'active': '1ba', 'ranks': [1]}}, ['ranks=[0]', 'schedule.ranks=[1]']),
        ({'stages': ['eval'], 'schedule': {'active': '1ba', 'stages': ['predict']}}, ['eval', 'predict']),
        ({'schedule': {'active': '0.1dur'}, 'stages': ['eval']}, ['0.1dur', 'eval']),
        ({'schedule': {'actve': '1ba'}}, ['schedule.actve', "'active'"]),
        ({'close_timeout': -1}, ['close_timeout must be', 'not -1']),
        ({'close_timeout': 'abc'}, ['close_timeout must be', "not 'abc'"]),
        ({'compress': 'no_thanks'}, ['compress must be none, gzip or zstd', "not 'no_thanks'"]),
        ({'overwrite': 1}, ['overwrite must be true or false', 'not 1']),
        ({'stages': 5}, ['stages must be', 'train', 'not 5']),
        ({'filename': '{batch:q}'}, ['filename', '{batch:q}']),
    ],
)
def test_a_mistake_is_refused_at_construction_in_one_line(
    make: type, arguments: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ValueError) as caught:
        make(**arguments)
    message = str(caught.value)
    assert '\n' not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ({'use_gzip': 'yes'}, "use_gzip must be true or false, not 'yes'"),
        ({'num_traces_to_keep': -2}, 'num_traces_to_keep must be -1 (keep all) or a whole number from 0, not -2'),
        (
            {'num_traces_to_keep': 0, 'remote_file_name': None},
            'num_traces_to_keep=0 with remote_file_name=None would keep nothing anywhere',
        ),
    ],
)
def test_a_mistake_is_named_as_the_user_wrote_it(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f'^{re.escape(f"TorchProfiler: {message}")}$'):
        TorchProfiler(**arguments)


def test_a_function_that_is_no_schedule_is_refused_before_the_first_batch() -> None:
    def refused(function: Any) -> str:
        trainer = make_trainer(HostRSS(schedule=function))
        with pytest.raises(ValueError) as caught:
            trainer.fit()
        assert trainer.state.timestamp.batch == 0
        return str(caught.value)

    called = 'HostRSS: schedule=cyclic_schedule makes a schedule; call it: schedule=cyclic_schedule(...)'
    assert refused(composer.profiler.cyclic_schedule) == called
    assert refused(window('1ba') & composer.profiler.cyclic_schedule) == called
    assert refused(lambda state: True).endswith('must be a ProfilerAction of Composer, not True')
    with pytest.raises(ValueError, match='HostRSS: schedule must be window'):
        HostRSS(schedule=lambda: True)


@each_callback
def test_a_run_name_that_climbs_and_a_folder_that_can_not_be_written_are_refused_at_init(make: type) -> None:
    with pytest.raises(ValueError, match='run_name='):
        make_trainer(make(), run_name='../climbing')
    Path('taken').write_text('')
    with pytest.raises(ValueError, match="folder='taken/x': nothing can be written"):
        make_trainer(make(folder='taken/x'))
