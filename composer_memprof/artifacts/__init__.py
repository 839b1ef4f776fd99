"""Files: their names, whole writes off the training thread, the manifest that lists them, uploads over fsspec.

Callbacks call ``store``. No module here knows the content of the files.
"""
