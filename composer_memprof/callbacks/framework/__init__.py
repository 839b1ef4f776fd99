"""What the callbacks share: the life cycle, the shared parameters, who may record at the same time, and the phases.

A callback's own file says what is its own.
"""
