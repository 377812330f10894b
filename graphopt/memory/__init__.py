"""What a graph's tensors occupy, when, and where in one arena they can lie.

:func:`plan` does all of it for a model. Below it, :func:`training_graph` reads what MXNet runs in a
training step, :func:`liveness` finds lifetimes, :func:`pack` places buffers, and
:func:`check_packing` checks a plan and shares no code with it.
"""

from graphopt.memory.buffers import Buffers
from graphopt.memory.check import check_packing
from graphopt.memory.liveness import Liveness, liveness
from graphopt.memory.memory_plan import MemoryPlan, plan
from graphopt.memory.packing import Packing
from graphopt.memory.planner import pack
from graphopt.memory.schedule import forward_schedule, training_schedule
from graphopt.memory.table import read_buffers
from graphopt.memory.training import TrainingGraph, backward_reads, training_graph

__all__ = [
    "Buffers",
    "Liveness",
    "MemoryPlan",
    "Packing",
    "TrainingGraph",
    "backward_reads",
    "check_packing",
    "forward_schedule",
    "liveness",
    "pack",
    "plan",
    "read_buffers",
    "training_graph",
    "training_schedule",
]
