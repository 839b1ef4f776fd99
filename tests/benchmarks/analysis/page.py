"""A snapshot of a million events as a page: how long it takes to make, its size beside torch's, and how fast it opens."""

from __future__ import annotations

import os
import pickle
import shutil
import statistics
import time
from pathlib import Path
from typing import Any, Optional

from torch.cuda._memory_viz import trace_plot

from composer_memprof.analysis.snapshot.loading import load_snapshot
from composer_memprof.report.html.snapshot.page import MAX_BYTES, write_snapshot_page
from tests.benchmarks.analysis.made_up import training_snapshot

EVENTS = 1_000_000


def page(rounds: int) -> None:
    content = training_snapshot(EVENTS)
    Path('snapshot.pickle').write_bytes(pickle.dumps(content, protocol=4))
    loading, making, torchs = [], [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        snapshot = load_snapshot(Path('snapshot.pickle'))
        loading.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        write_snapshot_page(snapshot, Path('ours.html'), 'a million events')
        making.append(time.perf_counter() - begin)
        del snapshot
        begin = time.perf_counter()
        Path('torch.html').write_text(trace_plot(content))
        torchs.append(time.perf_counter() - begin)
    ours, theirs = Path('ours.html').stat().st_size, Path('torch.html').stat().st_size
    print(
        f'  {EVENTS:,} events: read in {statistics.median(loading):.2f} s, page made in {statistics.median(making):.2f} s'
    )
    print(f"  {ours / 1e6:.2f} MB; torch's trace_plot {theirs / 1e6:.0f} MB in {statistics.median(torchs):.2f} s")
    _print('page size against what it may be', ours / MAX_BYTES, 1)
    _print('page size against trace_plot', ours / theirs, 0.06)
    _print('time to make it against trace_plot', statistics.median(making) / statistics.median(torchs), 1)
    opened = _opened(Path('ours.html').resolve(), rounds)
    if opened is None:
        print('  not opened: no Chromium, or no Playwright')
        return
    print(f'  in headless Chromium: first paint after {opened[0]:.2f} s, the timeline drawn after {opened[1]:.2f} s')
    _print('first paint against 3 s', opened[0] / 3, 1)
    _print('timeline drawn against 3 s', opened[1] / 3, 1)


def _opened(path: Path, rounds: int) -> Optional[tuple[float, float]]:
    """Seconds from the start of navigation to the first paint, and to the drawn timeline; medians."""
    executable = shutil.which('chromium') or shutil.which('google-chrome')
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if executable is None:
        return None
    first, drawn = [], []
    with sync_playwright() as playwright:
        arguments = ['--no-sandbox'] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        for _ in range(rounds):
            context = browser.new_context(offline=True)
            shown: Any = context.new_page()
            shown.goto(path.as_uri())
            shown.wait_for_selector('body[data-drawn]')
            times = shown.evaluate(
                "['first-contentful-paint', 'drawn'].map(name => performance.getEntriesByName(name)[0].startTime)"
            )
            first.append(times[0] / 1000)
            drawn.append(times[1] / 1000)
            context.close()
        browser.close()
    return statistics.median(first), statistics.median(drawn)


def _print(what: str, ratio: float, goal: float) -> None:
    print(f'{what}: {ratio:.3f} (goal {goal:g}, {"reached" if ratio <= goal else "missed"})', flush=True)
