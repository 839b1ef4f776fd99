"""The command of one rank, from the command that launches all: ``composer``, ``torchrun``, ``accelerate``, ``deepspeed``.

Each launcher's own parser reads its arguments, so they mean here what they mean there.
"""
