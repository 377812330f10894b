"""Loads object files of kernels, as LLVM would, without LLVM: that takes 50 MB of every process.

Read is what LLVM writes of a kernel for x86-64 Linux: sections of code and constants, and distances
between them (System V Application Binary Interface, AMD64 Architecture Processor Supplement).
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_RELOCATION: Final = struct.Struct("<QQq")
_ELF_OF_64_BITS, _RELOCATABLE, _X86_64 = b"\x7fELF\x02\x01", 1, 62
#: Kinds of sections: what has nothing in the file, tables of symbols, of relocations.
_NOBITS, _SYMTAB, _RELA, _REL = 8, 2, 4, 9
#: A section that is in memory when the code runs.
_ALLOC: Final = 2
#: Relocations: the distance from a place to a symbol, or to a jump there.
_PC32, _PLT32 = 2, 4
#: jmp *0(%rip), before the address: for functions that are anywhere.
_JUMP: Final = b"\xff\x25\x00\x00\x00\x00"
_STUB: Final = 16


class UnknownFormError(Exception):
    """An object file has something that is not read here; LLVM loads it."""


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry: int


class _Symbol(NamedTuple):
    name: bytes
    section: int
    value: int


@dataclass(frozen=True)
class _File:
    code: bytes
    sections: tuple[_Section, ...]
    symbols: tuple[_Symbol, ...]

    @classmethod
    def read(cls, code: bytes) -> _File:
        try:
            start, kind, machine, *_, offset, _, _, _, _, size, count, _ = _HEADER.unpack_from(code)
            if not start.startswith(_ELF_OF_64_BITS) or (kind, machine) != (_RELOCATABLE, _X86_64):
                raise UnknownFormError("it is no object file for x86-64")
            places = (offset + size * at for at in range(count))
            sections = tuple(_Section(*_SECTION.unpack_from(code, place)) for place in places)
            return cls(code, sections, tuple(_symbols(code, sections)))
        except (struct.error, IndexError, ValueError) as error:
            raise UnknownFormError("it ends too early") from error

    def relocations(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Section, place in it, kind, number of the symbol, and what is added to it."""
        for section in self.sections:
            if section.kind == _REL:
                raise UnknownFormError("its relocations are within what they change")
            if section.kind == _RELA and self.sections[section.info].flags & _ALLOC:
                for at in range(section.offset, section.offset + section.size, _RELOCATION.size):
                    place, what, more = _RELOCATION.unpack_from(self.code, at)
                    yield section.info, place, what & 0xFFFFFFFF, what >> 32, more


def _symbols(code: bytes, sections: tuple[_Section, ...]) -> Iterator[_Symbol]:
    for table in sections:
        if table.kind != _SYMTAB:
            continue
        names = sections[table.link].offset
        for at in range(table.offset, table.offset + table.size, _SYMBOL.size):
            name, _, _, section, value, _ = _SYMBOL.unpack_from(code, at)
            start = names + name
            yield _Symbol(code[start : code.index(b"\0", start)], section, value)


def load(code: bytes, name: str) -> int:
    """Put an object file into memory, for as long as there is a process.

    Args:
        code: the file.
        name: a function in it.

    Returns:
        Where the function is.

    Raises:
        UnknownFormError: something in it is not read here.
    """
    file = _File.read(code)
    places, size = _laid_out(file)
    elsewhere = [at for at, symbol in enumerate(file.symbols) if symbol.name and not symbol.section]
    jumps = {number: size + _STUB * at for at, number in enumerate(elsewhere)}
    image = bytearray(size + _STUB * len(jumps))
    for at, place in places.items():
        section = file.sections[at]
        if section.kind != _NOBITS:
            if section.offset + section.size > len(code):
                raise UnknownFormError("it ends too early")
            image[place : place + section.size] = code[section.offset :][: section.size]
    for number, place in jumps.items():
        address = _address_of(file.symbols[number].name.decode())
        image[place : place + _STUB] = (_JUMP + struct.pack("<Q", address)).ljust(_STUB, b"\x90")
    _relocate(image, file, places, jumps)
    for symbol in file.symbols:
        if symbol.name == name.encode() and symbol.section:
            return _in_memory(bytes(image)) + _place(symbol, places)
    raise UnknownFormError(f"it has no function {name!r}")


def _relocate(
    image: bytearray, file: _File, places: Mapping[int, int], jumps: Mapping[int, int]
) -> None:
    """Write the distances between parts of ``image``."""
    for section, offset, kind, number, more in file.relocations():
        if kind not in (_PC32, _PLT32):
            raise UnknownFormError(f"it has a relocation of kind {kind}")
        if number in jumps and kind != _PLT32:
            raise UnknownFormError("it reads numbers from elsewhere")
        to = jumps[number] if number in jumps else _place(file.symbols[number], places)
        place = places[section] + offset
        struct.pack_into("<i", image, place, to + more - place)


def _laid_out(file: _File) -> tuple[dict[int, int], int]:
    """Where each section that is in memory begins, and where the last one ends."""
    places, end = dict[int, int](), 0
    for at, section in enumerate(file.sections):
        if section.flags & _ALLOC:
            step = max(section.alignment, 1)
            if step > mmap.PAGESIZE:
                raise UnknownFormError("a section begins at multiples of more than a page")
            places[at] = end = -(-end // step) * step
            end += section.size
    return places, -(-end // _STUB) * _STUB


def _place(symbol: _Symbol, places: Mapping[int, int]) -> int:
    if symbol.section not in places:
        raise UnknownFormError(f"symbol {symbol.name.decode()!r} is in no section that is loaded")
    return places[symbol.section] + symbol.value


@cache
def _library() -> tuple[Any, ...]:
    """Where functions are looked for: what the process has, and the mathematical library."""
    return ctypes.CDLL(None), ctypes.CDLL("libm.so.6")


def _address_of(name: str) -> int:
    for library in _library():
        if hasattr(library, name):
            return int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)
    raise UnknownFormError(f"there is no function {name!r}")


def _in_memory(image: bytes) -> int:
    """A copy that may be executed and not written to; nobody ever unmaps it."""
    c = ctypes.CDLL(None, use_errno=True)
    c.mmap.restype = ctypes.c_void_p
    c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    c.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    writable = mmap.PROT_READ | mmap.PROT_WRITE
    address = c.mmap(None, len(image), writable, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise MemoryError("there is no memory for a kernel")
    ctypes.memmove(address, image, len(image))
    if c.mprotect(address, len(image), mmap.PROT_READ | mmap.PROT_EXEC):
        raise UnknownFormError("memory may not be made executable")
    return int(address)
