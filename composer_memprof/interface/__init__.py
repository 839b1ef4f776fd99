"""What the commands do, as functions: ``simulate``, ``plan`` and ``load_snapshot(path).report()``.

Imports neither torch nor Composer: whatever runs on a simulated GPU is another process.
"""
