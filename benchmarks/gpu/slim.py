"""Empties a library's kernels for other GPUs, and its symbols for debuggers: the file keeps its size, and packs far better.

A section `.nv_fatbin` holds containers, each with a header of 16 bytes (magic number, version, size of the header, size of
the rest) and entries. An entry has a header (kind: 1 is PTX, 2 is machine code; its own size at byte 4, the payload's at
byte 8, the architecture at byte 28) and a payload. CUDA's tools do not document the format; it was read off the libraries.
"""

import mmap
import re
import struct
import subprocess
from pathlib import Path

_MAGIC = b"\x50\xed\x55\xba"
_MACHINE_CODE = 2


def keep(library: Path, architecture: int) -> None:
    """Keeps the machine code for one architecture, as 90 of an H100. Changes the file."""
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for name, offset, size in _sections(library):
            if name in (".symtab", ".strtab"):
                data[offset : offset + size] = bytes(size)
            elif "nv_fatbin" in name:
                _empty_others(data, offset, offset + size, architecture)


def _sections(library: Path) -> list[tuple[str, int, int]]:
    """Name, offset and size of each section."""
    listed = subprocess.check_output(["readelf", "-SW", str(library)], text=True)
    lines = re.findall(r"\] (\S+) +\S+ +[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+)", listed)
    return [(name, int(offset, 16), int(size, 16)) for name, offset, size in lines]


def _empty_others(data: mmap.mmap, begin: int, end: int, architecture: int) -> None:
    position = begin
    while (position := data.find(_MAGIC, position, end)) >= 0:
        version, header, rest = struct.unpack_from("<HHQ", data, position + 4)
        if (version, header) != (1, 16) or position + header + rest > end:
            position += 4
            continue
        entry, position = position + header, position + header + rest
        while entry < position:
            kind, _, length = struct.unpack_from("<HHI", data, entry)
            (payload,) = struct.unpack_from("<Q", data, entry + 8)
            (target,) = struct.unpack_from("<I", data, entry + 28)
            if (kind, target) != (_MACHINE_CODE, architecture):
                data[entry + length : entry + length + payload] = bytes(payload)
            entry += length + payload
