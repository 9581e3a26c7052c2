"""The built-in device kinds, one folder each: `spec.py` describes it, `backend.py` measures on it.

`workers.backend_kinds` finds a kind by its name, built in or from a plug-in.
"""
