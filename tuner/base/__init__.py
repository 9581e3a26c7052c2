"""What every package uses: errors, ratios, statistics, files, tracing, names, device code.

Its modules import nothing else of the farm, and the standard library alone but for `statistics`.
They reserve no import name, so that a serving process keeps its own modules.
"""
