"""Files: their names, whole writes off the training thread, the manifest that lists them, and uploads over fsspec.

``store`` is what callbacks call; nothing here knows what the bytes mean.
"""
