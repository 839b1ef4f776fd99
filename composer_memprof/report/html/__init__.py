"""Pages that load nothing from elsewhere: ``snapshot`` of a memory snapshot, ``calls`` of Python calls.

Each is a template, a style, and a script that ``bundle`` joins from the modules in ``script`` folders.
"""
