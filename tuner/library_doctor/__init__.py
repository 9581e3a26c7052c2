"""The tables that a library ships for a device: what is there, what is missing, what is wrong.

- `library_folders.py` finds the folders of an installed or unpacked library; `states.py` examines
  the files.
- `expectations.py` says, from stored results, what tuning a table would gain and cost.
- `fix.py` tunes missing tables and writes the folder that the library reads.
"""
