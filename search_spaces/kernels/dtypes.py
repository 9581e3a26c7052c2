"""Facts of the families' dtypes; imports no torch."""

from __future__ import annotations

#: Bytes of one element.
ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
#: The dtypes that most families take.
DTYPES = tuple(ELEMENT_BYTES)
#: Relative error that rounding an output to the dtype, after sums in float32, may cause.
ROUNDING = {"float16": 1e-3, "bfloat16": 4e-3, "float32": 1e-5}
