"""Loops of the memory packer, compiled for the CPU."""

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
