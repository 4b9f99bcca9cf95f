#!/usr/bin/env python3
"""Makes src/quant/iq*_grid.h: the grids of GGUF's IQ formats, from the gguf package (pip install
gguf), which has them from ggml (MIT licence). A grid is a codebook: the indices of its formats select
entries in it.

An entry is packed into 16 bits: eight numbers with three values in two bits each, or four numbers with
eight values in three bits each, the first in the lowest bits.
Usage: tools/quant_grids.py src/quant
"""

import pathlib
import sys

import gguf.quants

PER_LINE = 12  # as clang-format would have it

FILES = {
    "iq1": "IQ1_S",
    "iq2": "IQ2_XXS IQ2_XS IQ2_S",
    "iq3": "IQ3_XXS IQ3_S",
}


def packed(quant) -> list[int]:
    quant.init_grid()
    values = [float(value) for value in quant.grid_map]
    bits = (len(values) - 1).bit_length()
    return [sum(values.index(float(number)) << bits * i for i, number in enumerate(entry))
            for entry in quant.grid.reshape(quant.grid_shape)]


def table(name: str) -> str:
    quant = getattr(gguf.quants, name)
    entries = packed(quant)
    words = [f"0x{entry:04X}" for entry in entries]
    lines = [", ".join(words[i : i + PER_LINE]) for i in range(0, len(words), PER_LINE)]
    values = ", ".join(str(int(value)) for value in quant.grid_map)
    kind = "".join(part.capitalize() for part in name.split("_"))
    body = ",\n    ".join(lines)
    return (f"// Of the values {values}.\n"
            f"inline constexpr uint16_t k{kind}Grid[{len(entries)}] = {{\n    {body}}};\n")


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    for stem, names in FILES.items():
        tables = "\n".join(table(name) for name in names.split())
        (folder / f"{stem}_grid.h").write_text(f"""\
// The entries that indices of the {stem.upper()} formats point at, packed as grid.h says. Data of these
// formats, from ggml (MIT licence); tools/quant_grids.py writes this file.
#pragma once

#include <cstdint>

namespace jackscrew {{

{tables}
}}  // namespace jackscrew
""")


if __name__ == "__main__":
    main()
