"""What the user asked ``graphopt.optimize`` for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from graphopt.pipeline.base import Mode, Pass, Settings

OptimizeMode = Literal["auto", "training", "inference"]


@dataclass(frozen=True)
class Config:
    """Arguments of :func:`graphopt.optimize`, checked."""

    passes: str | tuple[Pass, ...] | Sequence[Pass] = "default"
    mode: OptimizeMode = "auto"
    check: bool = False
    precise: bool = False
    strict: bool = False

    def graph_mode(self, *, differentiating: bool) -> Mode:
        """Which graph a call needs: training whenever autograd records or trains."""
        if self.mode == "auto":
            return "training" if differentiating else "inference"
        return self.mode

    def settings(self, mode: Mode) -> Settings:
        """Parameters are frozen only where the user said that he only infers."""
        return Settings(mode, self.mode == "inference", self.precise, self.strict)

    def pipeline(self, mode: Mode) -> str | Sequence[Pass]:
        """``default`` stands for the pipeline named as the mode."""
        return mode if self.passes == "default" else self.passes
