#!/usr/bin/env python3
"""Makes tests/quant/data/*.bin: blocks of each storage format and the values that the gguf package
(pip install gguf) decodes them to.

A file is rows, cols (i32, i32), the rows of blocks, the rows of f32 values; all little-endian.
Usage: tools/golden_quant.py tests/quant/data
"""

import pathlib
import sys

import gguf
import numpy as np

# Name: where the f16 scales of a block lie. Every other byte may have any value.
FORMATS = {
    "q8_0": [0],
    "q4_0": [0],
    "q4_1": [0, 2],
    "q5_0": [0],
    "q5_1": [0, 2],
    "q4_k": [0, 2],
    "q6_k": [208],
}

# Scales that occur rarely: zeros, subnormals, the smallest normal and the largest finite number.
RARE = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0203, 0x0400, 0x7BFF, 0xFBFF]


def make(name: str, scale_offsets: list[int], rng: np.random.Generator) -> bytes:
    qtype = gguf.GGMLQuantizationType[name.upper()]
    block_elements, block_bytes = gguf.GGML_QUANT_SIZES[qtype]
    rows, row_blocks = (5, 7) if block_elements == 32 else (3, 5)
    blocks = rng.integers(0, 256, size=(rows * row_blocks, block_bytes), dtype=np.uint8)
    for position, offset in enumerate(scale_offsets):
        scales = (rng.normal(size=len(blocks)) * 0.05).astype(np.float16).view(np.uint16)
        # At other blocks for each scale of a block, so that rare ones meet usual ones.
        for i, bits in enumerate(RARE):
            scales[i + position * (len(RARE) // 2)] = bits
        blocks[:, offset : offset + 2] = scales.reshape(-1, 1).view(np.uint8)
    storage = blocks.reshape(rows, row_blocks * block_bytes)
    values = gguf.quants.dequantize(storage, qtype).astype("<f4")
    assert values.shape == (rows, row_blocks * block_elements) and np.isfinite(values).all()
    return np.array(values.shape, dtype="<i4").tobytes() + storage.tobytes() + values.tobytes()


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, scale_offsets) in enumerate(FORMATS.items()):
        (folder / f"{name}.bin").write_bytes(
            make(name, scale_offsets, np.random.default_rng(seed)))


if __name__ == "__main__":
    main()
