"""Pages that load nothing from elsewhere: templates, styles, scripts, and the numbers packed into them.

``snapshot`` is the page of a memory snapshot, ``calls`` that of Python calls.
"""
