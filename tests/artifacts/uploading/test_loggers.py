"""What Composer's loggers get: the metrics of the guide's page, on the training thread, and constants once."""

from __future__ import annotations

import io
import json
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import pytest
from composer.core import Callback, State
from composer.loggers import ConsoleLogger, InMemoryLogger, Logger, LoggerDestination, TensorboardLogger

from composer_memprof import Flops, FSDPMemTracker, HostRSS, MemorySnapshot, Memray, SavedTensorsHook, StepTimes
from composer_memprof.artifacts.store import fork_next_writer
from composer_memprof.callbacks.framework.metrics import WindowMetrics
from composer_memprof.guide import pages
from tests.conftest import child_environment, loader, simulated_gpu, train, wait_for
from tests.support.processes import warm_python

pytestmark = pytest.mark.slow

BATCHES = 30
#: Of the metrics: one of each kind.
EXPECTED = {
    'flops/mfu',
    'flops/peak_flops_per_sec',
    'flops/total_flops',
    'fsdp_mem/peak/Total',
    'host_rss/growth_per_batch',
    'host_rss/rss',
    'memory/allocated_peak_bytes',
    'memory/peak_batch',
    'memory/rss_peak_bytes',
    'memray/peak_bytes',
    'saved_tensors/peak_bytes',
    'saved_tensors/total_bytes',
    'step_times/forward',
    'step_times/total_p50',
}


class WaitsForFiles(Callback):
    """Goes on with the last batch once the snapshot's peak is known, as it is in a run of more than a few seconds."""

    def __init__(self, snapshot: MemorySnapshot, seen: InMemoryLogger) -> None:
        self._snapshot = snapshot
        self._seen = seen

    def before_forward(self, state: State, logger: Logger) -> None:
        if state.timestamp.batch.value == BATCHES - 1:
            wait_for(self._is_known, 60)

    def _is_known(self) -> bool:
        fork_next_writer()  # as further batches would
        return bool(self._snapshot._window_metrics) or 'memory/peak_batch' in self._seen.data


def train_with_all_that_log(*loggers: LoggerDestination) -> dict[str, list[Any]]:
    """The metrics that an InMemoryLogger gets beside ``loggers``: by name, the step and value of each."""
    seen = InMemoryLogger()
    snapshot = MemorySnapshot(schedule={'skip': '20ba', 'active': '2ba', 'every': '100ba'})
    callbacks = [Flops(), FSDPMemTracker(), HostRSS(interval=0.01), Memray(), SavedTensorsHook()]
    times = StepTimes(log_every_n_batches=10)
    train(*callbacks, snapshot, times, WaitsForFiles(snapshot, seen), batches=BATCHES, loggers=[seen, *loggers])
    return {
        name: [(time.batch.value, value) for time, value in values]
        for name, values in seen.data.items()
        if not name.startswith(('loss/', 'time/', 'trainer/', 'metrics/'))
    }


def documented() -> list[re.Pattern[str]]:
    """The names on the guide's page of metrics."""
    (text,) = (page.text for page in pages() if page.name == 'metrics')
    items = re.findall(r'^- (`.*?) \(', text, re.MULTILINE | re.DOTALL)
    names = [name for item in items for name in re.findall(r'`([^`]+)`', item)]
    assert len(names) > 40
    return [re.compile(re.sub(r'<\w+>', r'\\w+', name)) for name in names]


# -- read back ----------------------------------------------------------------------------------------------------


def test_tensorboard_has_what_was_logged_and_the_guide_lists_it() -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logged = train_with_all_that_log(TensorboardLogger(log_dir='tb'))
    assert logged.keys() >= EXPECTED
    events = EventAccumulator('tb/test-run')
    events.Reload()
    assert logged.keys() <= set(events.Tags()['scalars'])
    for name, values in logged.items():
        assert [event.step for event in events.Scalars(name)] == [step for step, _ in values], name
        assert [event.value for event in events.Scalars(name)] == pytest.approx([value for _, value in values]), name
    names = documented()
    assert [name for name in logged if not any(pattern.fullmatch(name) for pattern in names)] == []
    ((step, batch),) = logged['memory/peak_batch']
    assert batch in (20, 21) and 22 <= step <= BATCHES, 'logged when it is known'


def test_wandb_has_what_was_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip('wandb')
    from composer.loggers import WandBLogger

    monkeypatch.setenv('WANDB_MODE', 'offline')
    monkeypatch.setenv('WANDB_SILENT', 'true')
    logged = train_with_all_that_log(WandBLogger(project='memprof'))
    (file,) = Path('wandb').glob('offline-*/*.wandb')
    found = list(_wandb_names(file))
    assert logged.keys() >= EXPECTED
    assert logged.keys() <= set(found)
    assert found.count('step_times/total') == len(logged['step_times/total']) == BATCHES


def _wandb_names(file: Path) -> Iterator[str]:
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    store = DataStore()
    store.open_for_scan(str(file))
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        for item in record.history.item:
            yield item.key or '/'.join(item.nested_key)


def test_mlflow_has_what_was_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip('mlflow')
    from composer.loggers import MLFlowLogger
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')  # MLflow 3 asks for it
    store = f'file://{tmp_path}/mlflow'
    logged = train_with_all_that_log(MLFlowLogger(tracking_uri=store, experiment_name='memprof'))
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name('memprof')
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert logged.keys() >= EXPECTED
    assert logged.keys() <= run.data.metrics.keys()


# -- when and where -----------------------------------------------------------------------------------------------


class Threads(LoggerDestination):
    """Notes on which threads metrics are logged."""

    def __init__(self) -> None:
        self.seen: dict[str, set[threading.Thread]] = {}

    def log_metrics(self, metrics: dict[str, Any], step: Optional[int] = None) -> None:
        for name in metrics:
            self.seen.setdefault(name, set()).add(threading.current_thread())


class RefusesLateMetrics(LoggerDestination):
    """As TensorBoard's logger: it is closed before the callbacks."""

    closed = False

    def log_metrics(self, metrics: dict[str, Any], step: Optional[int] = None) -> None:
        assert not self.closed

    def close(self, state: State, logger: Logger) -> None:
        self.closed = True


def test_all_is_logged_on_the_training_thread() -> None:
    threads = Threads()
    train_with_all_that_log(threads)
    assert threads.seen.keys() >= EXPECTED
    assert {thread for seen in threads.seen.values() for thread in seen} == {threading.main_thread()}


def test_a_peak_that_is_known_after_the_last_batch_is_logged_at_the_close(caplog: pytest.LogCaptureFixture) -> None:
    seen = InMemoryLogger()
    snapshot = MemorySnapshot(schedule={'skip': '4ba', 'active': '2ba', 'every': '100ba'})
    train(snapshot, batches=6, loggers=[RefusesLateMetrics(), seen])
    ((time, peak),) = seen.data['memory/allocated_peak_bytes']
    assert time.batch.value == 6 and peak > 0
    assert 'Error running' not in caplog.text


ON_A_GPU = """
import json
from composer.loggers import InMemoryLogger
from composer_memprof import MemorySnapshot
from tests.conftest import train

seen = InMemoryLogger()
train(MemorySnapshot(), device='gpu', batches=6, loggers=[seen])
print(json.dumps({name: values[-1][1] for name, values in seen.data.items() if name.startswith('memory/')}))
"""


def test_on_a_gpu_what_was_reserved_is_logged_too() -> None:
    done = warm_python.run(
        [sys.executable, '-c', ON_A_GPU],
        env={**child_environment(), **simulated_gpu()},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    peak = json.loads(done.stdout.splitlines()[-1])
    assert peak.keys() == {'memory/allocated_peak_bytes', 'memory/peak_batch', 'memory/reserved_peak_bytes'}
    assert peak['memory/reserved_peak_bytes'] >= peak['memory/allocated_peak_bytes'] > 0


def test_a_summary_that_is_written_wrong_costs_only_its_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    from composer_memprof.callbacks.memory_snapshot import callback as memory_snapshot

    monkeypatch.setattr(memory_snapshot, 'write_summary', lambda snapshot, path: path.write_text('{'))
    seen = InMemoryLogger()
    with pytest.warns(UserWarning, match='could not be processed after saving'):
        trainer = train(MemorySnapshot(), batches=8, loggers=[seen])
    assert trainer.state.timestamp.batch.value == 8
    assert not any(name.startswith('memory/') for name in seen.data)


def test_each_window_logs_its_peak_and_stages_have_names_of_their_own() -> None:
    seen = InMemoryLogger()
    snapshot = MemorySnapshot(schedule={'active': '1ba', 'every': '100ba'}, stages=['train', 'eval'])
    hook = SavedTensorsHook(schedule={'active': '1ba', 'every': '3ba'})
    train(snapshot, hook, batches=6, eval_dataloader=loader(2), eval_interval='1ep', loggers=[seen])
    assert [time.batch.value for time, _ in seen.data['saved_tensors/total_bytes']] == [1, 4]
    assert len(seen.data['memory/allocated_peak_bytes']) == len(seen.data['memory/eval/allocated_peak_bytes']) == 1


def test_metrics_are_logged_in_the_order_in_which_they_were_added() -> None:
    metrics, seen = WindowMetrics(), InMemoryLogger()
    assert not metrics
    metrics.add({'a': 1})
    metrics.add({'a': 2})
    trainer = train(batches=1, loggers=[seen])
    metrics.log(trainer.logger)
    assert [value for _, value in seen.data['a']] == [1, 2] and not metrics


def test_zeros_are_logged_once_until_they_change() -> None:
    seen = InMemoryLogger()
    train(StepTimes(), HostRSS(), batches=9, eval_dataloader=loader(1), eval_interval='5ba', loggers=[seen])
    evaluation = [(time.batch.value, value > 0) for time, value in seen.data['step_times/eval']]
    assert evaluation == [(1, False), (5, True), (6, False)]
    assert [value for _, value in seen.data['host_rss/workers_rss']] == [0]
    assert len(seen.data['step_times/forward']) == 9


def test_the_console_gains_few_lines_once_constants_are_known() -> None:
    printed = io.StringIO()
    callbacks = [Flops(), HostRSS(), StepTimes()]
    train(*callbacks, batches=20, loggers=[ConsoleLogger(log_interval='5ba', stream=printed)])
    last = printed.getvalue().rpartition('[batch=20/20]')[2]
    ours = [line for line in last.splitlines() if re.search(r'Train (flops|host_rss|step_times)/', line)]
    assert 10 <= len(ours) <= 18, last
