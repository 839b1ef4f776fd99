"""The callbacks in the Trainers of Transformers and of Lightning, which are tested where they are installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from composer_memprof import MemorySnapshot, StepTimes
from composer_memprof.analysis.memory.snapshot_report import report_on
from composer_memprof.analysis.snapshot.loading import load_snapshot
from tests.conftest import Noise, Regression, child_environment, entries, json_lines, train
from tests.support.processes import warm_python
from tests.support.run_reports import reported, said

pytestmark = pytest.mark.slow

RUN = Path('test-run')
BATCHES = 12


def callbacks() -> tuple[MemorySnapshot, StepTimes]:
    return MemorySnapshot(schedule={'skip': '5ba', 'active': '2ba'}, folder='{run_name}/memprof'), StepTimes()


def sizes() -> dict[str, int]:
    """Bytes at the peak, of the categories that any loop has."""
    (entry,) = entries(RUN, 'memory_snapshot')
    (device,) = report_on(load_snapshot(RUN / 'memprof' / entry.path)).devices
    found = {share.category: share.bytes for share in device.peak.categories}
    return {category: found[category] for category in ('parameter', 'gradient', 'optimizer_state')}


def made() -> tuple[Regression, torch.optim.Optimizer]:
    torch.manual_seed(7)
    model = Regression()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def with_transformers(*given: Any, fails_at: int = BATCHES) -> list[float]:
    transformers = pytest.importorskip('transformers')
    from composer_memprof.loop.for_transformers import MemprofCallback

    class Model(Regression):
        def forward(self, x: Any, y: Any) -> Any:
            if len(losses) == fails_at:
                raise ValueError('that batch is damaged')
            losses.append(self.loss(self.net(x), (x, y)))
            return {'loss': losses[-1]}

    losses: list[torch.Tensor] = []
    torch.manual_seed(7)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = Noise(BATCHES * 8)
    arguments = transformers.TrainingArguments(
        output_dir='out', per_device_train_batch_size=8, num_train_epochs=1, use_cpu=True, report_to=[], seed=7,
        save_strategy='no', max_grad_norm=0, disable_tqdm=True, logging_strategy='no', dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=[{'x': x, 'y': y} for x, y in data],  # type: ignore[misc]
        optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)),
        callbacks=[MemprofCallback(*given, run_name='test-run')] if given else [],
    )
    trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(data)
    trainer.train()
    return [loss.item() for loss in losses]


def with_lightning(*given: Any) -> list[float]:
    lightning = pytest.importorskip('lightning')
    from composer_memprof.loop.for_lightning import MemprofCallback

    losses: list[torch.Tensor] = []

    class Model(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = made()[0]

        def training_step(self, batch: Any, number: int) -> Any:
            losses.append(self.inner.loss(self.inner(batch), batch))
            return losses[-1]

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    trainer = lightning.Trainer(
        accelerator='cpu', max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[MemprofCallback(*given, run_name='test-run')] if given else [],
    )  # fmt: skip
    trainer.fit(Model(), torch.utils.data.DataLoader(Noise(BATCHES * 8), batch_size=8))
    return [loss.item() for loss in losses]


@pytest.mark.parametrize('fit', [with_transformers, with_lightning])
def test_another_trainer_has_the_peaks_and_phases_of_composers_and_the_same_losses(
    fit: Callable[..., list[float]],
) -> None:
    bare = fit()
    train(*callbacks())
    expected = sizes()
    RUN.rename('with-composer')

    assert fit(*callbacks()) == bare and len(bare) == BATCHES
    assert sizes() == pytest.approx(expected, abs=8), 'but for a scalar'
    (entry,) = entries(RUN, 'step_times')
    lines = json_lines(RUN / 'memprof' / entry.path)
    assert [line['batch'] for line in lines] == list(range(BATCHES))
    assert all(line['forward'] and line['backward'] and line['optimizer'] > 0 for line in lines)
    assert sum(line['dataloader'] or 0 for line in lines) > 0
    (summary,) = entries(RUN, 'step_times.summary')
    assert json.loads((RUN / 'memprof' / summary.path).read_text())
    assert {each.status for each in entries(RUN)} == {'saved'}


def test_an_exception_within_the_trainer_of_transformers_is_the_first_that_is_said() -> None:
    pytest.importorskip('transformers')
    code = 'from tests.loop.test_other_trainers import callbacks, with_transformers; with_transformers(*callbacks(), fails_at=8)'
    ran = warm_python.run(
        [sys.executable, '-c', code], env=child_environment(), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1, ran.stderr[-2000:]
    assert said(reported(RUN))[0].startswith('Rank 0 failed in batch 8: ValueError: that batch is damaged (')
