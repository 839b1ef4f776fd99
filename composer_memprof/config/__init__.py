"""From a YAML run config to Composer's Trainer: every name is checked before anything is built.

``reading`` loads a config, ``registries`` holds the names, ``arguments`` checks them against signatures, ``building``
makes the Trainer, ``catalog`` describes the callbacks.
"""

from composer_memprof.config.arguments import ConfigError
from composer_memprof.config.building import build_trainer
from composer_memprof.config.reading import load
from composer_memprof.config.registries import (
    ALGORITHMS,
    ALL_CALLBACKS,
    LOADERS,
    LOGGERS,
    MODELS,
    OPTIMIZERS,
    SCHEDULERS,
)

__all__ = [
    'ALGORITHMS',
    'ALL_CALLBACKS',
    'LOADERS',
    'LOGGERS',
    'MODELS',
    'OPTIMIZERS',
    'SCHEDULERS',
    'ConfigError',
    'build_trainer',
    'load',
]
