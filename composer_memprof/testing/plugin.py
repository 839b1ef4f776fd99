"""The pytest plugin. It imports neither torch nor Composer, and most of this package only where a test is marked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Optional

import pytest

from composer_memprof.testing.used_memory import Size, UsedMemory

if TYPE_CHECKING:
    from composer_memprof.simulated_gpu.building import CannotSimulateError

_MARK = 'simulated_gpu'
_USAGE = (
    "simulated_gpu(gpu='h100-80gb', *, memory=None, ranks=None, rank=0, ranks_per_node=None, devices=None, values=True): "
    'run the test in a process of its own on a simulated GPU'
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup('composer_memprof').addoption(
        '--simulated-gpu-required',
        action='store_true',
        help='fail a test that is marked simulated_gpu where no GPU can be simulated, in place of skipping it',
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line('markers', _USAGE)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A mistake in a mark ends the run before a test has begun."""
    marked = [item for item in items if item.get_closest_marker(_MARK)]
    if marked:
        from composer_memprof.testing.marks import asked_of

        for item in marked:
            try:
                asked_of(item.get_closest_marker(_MARK))
            except (TypeError, ValueError) as error:
                raise pytest.UsageError(f'{item.nodeid}: {_MARK}: {error}') from None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Optional[bool]:
    """Run a marked test in a process of its own, whose reports become this test's."""
    mark = item.get_closest_marker(_MARK)
    if mark is None or item.config.stash.get(_IN_CHILD, False):
        return None
    from composer_memprof.simulated_gpu.building import CannotSimulateError
    from composer_memprof.testing.marks import asked_of
    from composer_memprof.testing.process import failed, run

    try:
        asked = asked_of(mark)
        environment = asked.environment()
    except CannotSimulateError as reason:
        if not item.config.getoption('--simulated-gpu-required'):
            item.add_marker(pytest.mark.skip(reason=_why(reason)))
            return None
        reports = [failed(item, _why(reason), 'setup')]
    else:
        reports = run(item, environment)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


#: Whether this is the process of one marked test.
_IN_CHILD = pytest.StashKey[bool]()


def this_is_a_child(config: pytest.Config) -> None:
    """Marked tests run in this process, which is on the simulated GPU."""
    config.stash[_IN_CHILD] = True


def _why(reason: CannotSimulateError) -> str:
    return f'no GPU can be simulated here: {reason}'


def pytest_assertrepr_compare(op: str, left: Any, right: Any) -> Optional[list[str]]:
    """Of a comparison with a measured size that failed, what filled the memory."""
    size = next((each for each in (left, right) if isinstance(each, Size)), None)
    if size is None or not isinstance(left, int) or not isinstance(right, int):
        return None
    return [f'{Size(left)} {op} {Size(right)}', *size.filled_by]


@pytest.fixture
def gpu_memory() -> Iterator[Callable[[], AbstractContextManager[UsedMemory]]]:
    """Measures a block of the test: ``with gpu_memory() as used: step()``, then ``assert used.peak < 30 * GiB``.

    ``used.peak`` and ``used.reserved`` are the most bytes allocated and reserved during the block, ``used.left`` those
    that are allocated after it and were not before.
    """
    from composer_memprof.testing.measuring import Recording, has_gpu

    if not has_gpu():
        pytest.fail("gpu_memory needs a GPU: mark the test with @pytest.mark.simulated_gpu('a100-40gb')", pytrace=False)
    with Recording() as recording:
        yield recording.measure
