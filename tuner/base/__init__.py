"""What every package uses: ratios, statistics, inert text, tracing and import names.

Its modules import nothing else of the farm, and the standard library alone but for `statistics`.
They reserve no import name, so that a serving process keeps its own modules.
"""
