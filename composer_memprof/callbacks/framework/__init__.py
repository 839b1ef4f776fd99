"""What the callbacks share: the life cycle, the shared parameters, who may record at once, phases and functions.

A callback's file says what is its own; everything that two callbacks need stands here.
"""
