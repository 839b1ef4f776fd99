"""Python runs this at the start of each process on a simulated GPU: it stands first on PYTHONPATH."""

import importlib.machinery
import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _here]
# the environment's own file of this name
_own = importlib.machinery.PathFinder.find_spec('sitecustomize')
if _own is not None and _own.loader is not None:
    _own.loader.exec_module(importlib.util.module_from_spec(_own))

try:
    from composer_memprof.simulated_gpu import child
except Exception as error:  # an older Python, or an environment without its packages
    print(f'simulated GPU: {sys.executable} has no composer_memprof that works ({error})', file=sys.stderr)
else:
    child.prepare()
