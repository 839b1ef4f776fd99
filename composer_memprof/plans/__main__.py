"""The process of ``composer-memprof plan``, which already runs on the simulated GPU: ``python -m composer_memprof.plans``.

Its one argument is what the command was asked, as JSON.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

from composer_memprof.interrupts import end_at_once, handler_kept

#: Exit codes beside those of a verdict: the config fails, bad usage.
FAILS, USAGE = 1, 2


def main(asked: dict[str, Any]) -> int:
    """Plan what was asked, print it, and return the exit code."""
    with handler_kept():
        from composer_memprof.config import ConfigError
        from composer_memprof.plans.output.text import plan_text
        from composer_memprof.plans.planning import plan
        from composer_memprof.plans.trial import Trial
        from composer_memprof.schemas import versioned
        from composer_memprof.simulation.verdict import EXIT_CODES
        from composer_memprof.terminal import say, show

    base = Trial(
        overrides=tuple(asked['overrides']),
        ranks=asked['ranks'],
        ranks_per_node=asked['ranks_per_node'],
        allocator=asked['allocator'],
        with_evaluation=asked['with_evaluation'],
    )
    try:
        found = plan(
            asked['config'],
            base,
            asked['device'],
            changes=asked['changes'] and not asked['vary'] and not asked['fastest'],
            advised=asked['advised'],
            vary=[(key, values) for key, values in asked['vary']],
            searches_fastest=asked['fastest'],
            report=lambda what: _report(f'trying: {what}'),
        )
    except ConfigError as error:
        say(str(error))
        return USAGE
    except KeyboardInterrupt:  # while a trial ran, which has been ended
        end_at_once()
    _report('')
    if asked['as_json']:
        print(json.dumps(versioned('plan', found.as_dict())))
    else:
        show(plan_text(found))
    failed = found.outcome.error and not found.outcome.timed_out
    return FAILS if failed else EXIT_CODES[found.verdict]


def _report(line: str) -> None:
    """Show what is tried, on a terminal only, in the place of the line before."""
    if sys.stderr.isatty():
        sys.stderr.write(f'\r\033[K{line}')
        sys.stderr.flush()


if __name__ == '__main__':
    signal.signal(signal.SIGINT, end_at_once)  # but for trials, which are ended first
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # blocked while Python starts
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))  # which ends the trial that runs
    sys.exit(main(json.loads(sys.argv[1])))
