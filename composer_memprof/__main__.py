"""The command ``composer-memprof``, also as ``python -m composer_memprof``."""

from composer_memprof.interrupts import ctrl_c_ends_at_once


def main() -> None:
    with ctrl_c_ends_at_once():  # while modules are imported
        from composer_memprof.cli import main as run
    run()


if __name__ == '__main__':
    main()
