"""The correctness gate: outputs, memory and behaviour of a variant."""
