"""CUDA kernels in which no element depends on another."""

from __future__ import annotations

from graphopt.kernels.emit.cuda.emitter import Emitter


class Flat(Emitter):
    """Walks the iteration space in strides of the whole grid."""

    def source(self) -> str:
        """The kernel's."""
        return self._assembled([], self._loop)

    def _loop(self) -> None:
        rank, width = self.spec.rank, self.width
        self._line(1, "total = " + (" * ".join(f"e{axis}" for axis in range(rank)) or "1"))
        self._line(1, f"i = thread_number() * {width}")
        self._line(1, f"stride = thread_count() * {width}")
        self._line(1, "while i < total:")
        self._split(2, "i", rank)
        suffixes = [f"_{k}" for k in range(width)]
        needed = self._needs((r.value for r in self.spec.outputs), elements=False)
        for number in needed:
            if number >= self.first:
                self._compute(2, number, suffixes)
                continue
            names = [f"v{number}{s}" for s in suffixes] if self.along[number] else [f"v{number}"]
            whole = self.operands[number].covers == frozenset(range(rank))
            at = "i" if whole and rank else self._offset(number, rank)
            self._load(2, number, at, names)
        for place, result in enumerate(self.spec.outputs):
            # Nothing is summed over: every output covers the whole space.
            self._store(2, place, "i" if rank else "0", self._elements(result.value, suffixes))
        self._line(2, "i += stride")

    def _elements(self, value: int, suffixes: list[str]) -> list[str]:
        return [self._arg(value, suffix) for suffix in suffixes]
