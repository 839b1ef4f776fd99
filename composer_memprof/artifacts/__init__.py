"""Files: their names, whole writes off the training thread, the manifest that lists them, uploads over fsspec.

Callbacks call ``store``. Nothing here knows what is in the files.
"""
