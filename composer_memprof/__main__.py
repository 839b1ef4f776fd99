"""The command ``composer-memprof``, also as ``python -m composer_memprof``."""

import signal

from composer_memprof.interrupts import end_at_once


def main() -> None:
    # While modules are imported and options are read; commands that have to clean up set their own.
    signal.signal(signal.SIGINT, end_at_once)
    from composer_memprof.cli import main as run

    run()


if __name__ == '__main__':
    main()
