"""Static memory plans: where in one arena each buffer of known lifetime lies.

:func:`pack` places the buffers, :func:`check_packing` checks a plan and shares no code with it.
"""

from graphopt.memory.buffers import Buffers
from graphopt.memory.check import check_packing
from graphopt.memory.packing import Packing
from graphopt.memory.planner import pack
from graphopt.memory.table import read_buffers

__all__ = ["Buffers", "Packing", "check_packing", "pack", "read_buffers"]
