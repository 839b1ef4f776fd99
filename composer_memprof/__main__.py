"""``python -m composer_memprof`` is the command ``composer-memprof``."""

from composer_memprof.cli import main

if __name__ == '__main__':
    main()
