"""Types of NumPy arrays by what they hold, for annotations; a docstring says their shape."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]
"""Of any width: clients' numbers are int64, and columns of a fleet have the smallest type that holds them."""
Booleans = NDArray[np.bool_]
AnyArray = NDArray[Any]
