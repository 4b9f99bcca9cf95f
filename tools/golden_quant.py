#!/usr/bin/env python3
"""Makes tests/quant/data/*.bin: blocks of each storage format and the values that the gguf package
(pip install gguf) decodes them to; and sums.txt, for many more blocks.

A .bin file is rows, cols (i32, i32), the rows of blocks, the rows of f32 values; all little-endian.
A line of sums.txt is a format, a sum of the values of the blocks that many_blocks() makes, and the
bytes of a block in which it clears a bit.
Usage: tools/golden_quant.py tests/quant/data
"""

import pathlib
import sys

import gguf
import numpy as np

# Name: offsets of the f16 scales in a block. All other bytes may have any value.
FORMATS = {
    "q8_0": [0],
    "q4_0": [0],
    "q4_1": [0, 2],
    "q5_0": [0],
    "q5_1": [0, 2],
    "q4_k": [0, 2],
    "q6_k": [208],
    "q2_k": [80, 82],
    "q3_k": [108],
    "q5_k": [0, 2],
    "iq1_s": [0],
    "iq1_m": [],
    "iq2_xxs": [0],
    "iq2_xs": [0],
    "iq2_s": [0],
    "iq3_xxs": [0],
    "iq3_s": [0],
    "iq4_nl": [0],
    "iq4_xs": [0],
    "tq1_0": [52],
    "tq2_0": [64],
    "mxfp4": [],
    "nvfp4": [],
}

# In this format the f16 scale is in the high nibbles of every second byte from this offset on, lowest
# first.
SPREAD_SCALE = {"iq1_m": 49}

# Rare scales: zeros, subnormals, the smallest normal and the largest finite number.
RARE = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0203, 0x0400, 0x7BFF, 0xFBFF]


def some_scales(count: int, position: int, rng: np.random.Generator) -> np.ndarray:
    scales = (rng.normal(size=count) * 0.05).astype(np.float16).view(np.uint16)
    # In different blocks for each scale of a block, so that rare scales are combined with usual ones.
    for i, bits in enumerate(RARE):
        scales[i + position * (len(RARE) // 2)] = bits
    return scales


def decoded(storage: np.ndarray, qtype: gguf.GGMLQuantizationType) -> np.ndarray:
    with np.errstate(over="ignore"):  # the largest values of MXFP4 overflow f32
        values = gguf.quants.dequantize(storage, qtype).astype("<f4")
    assert not np.isnan(values).any()
    return values


def make(name: str, scale_offsets: list[int], rng: np.random.Generator) -> bytes:
    qtype = gguf.GGMLQuantizationType[name.upper()]
    block_elements, block_bytes = gguf.GGML_QUANT_SIZES[qtype]
    rows, row_blocks = (3, 5) if block_elements == 256 else (5, 7)
    blocks = rng.integers(0, 256, size=(rows * row_blocks, block_bytes), dtype=np.uint8)
    for position, offset in enumerate(scale_offsets):
        scales = some_scales(len(blocks), position, rng)
        blocks[:, offset : offset + 2] = scales.reshape(-1, 1).view(np.uint8)
    if name in SPREAD_SCALE:
        scales = some_scales(len(blocks), 0, rng)
        for nibble in range(4):
            place = SPREAD_SCALE[name] + 2 * nibble
            bits = (scales >> 4 * nibble & 15).astype(np.uint8)
            blocks[:, place] = (blocks[:, place] & 15) | bits << 4
    storage = blocks.reshape(rows, row_blocks * block_bytes)
    values = decoded(storage, qtype)
    assert values.shape == (rows, row_blocks * block_elements)
    return np.array(values.shape, dtype="<i4").tobytes() + storage.tobytes() + values.tobytes()


def high_bytes(name: str, scale_offsets: list[int]) -> list[int]:
    """The bytes with the exponents of the f16 scales."""
    if name in SPREAD_SCALE:
        return [SPREAD_SCALE[name] + 6]
    return [offset + 1 for offset in scale_offsets]


def many_blocks(block_bytes: int, high_bytes: list[int]) -> np.ndarray:
    """16 rows of 128 blocks with the bytes of a scrambled counter; scales are below 2."""
    counter = np.arange(16 * 128 * block_bytes, dtype=np.uint32)
    scrambled = counter * np.uint32(0x9E3779B1)
    scrambled = (scrambled ^ scrambled >> np.uint32(15)) * np.uint32(0x85EBCA77)
    blocks = (scrambled >> np.uint32(24)).astype(np.uint8).reshape(-1, block_bytes)
    blocks[:, high_bytes] &= 0xBF
    return blocks.reshape(16, -1)


def sum_line(name: str, scale_offsets: list[int]) -> str:
    """A line with the sum of (bits of value i) * (2 i + 1), modulo 2^64."""
    qtype = gguf.GGMLQuantizationType[name.upper()]
    cleared = high_bytes(name, scale_offsets)
    values = decoded(many_blocks(gguf.GGML_QUANT_SIZES[qtype][1], cleared), qtype)
    bits = values.reshape(-1).view(np.uint32).astype(np.uint64)
    weights = np.arange(len(bits), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return " ".join([name, str((bits * weights).sum(dtype=np.uint64)), *map(str, cleared)])


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, scale_offsets) in enumerate(FORMATS.items()):
        (folder / f"{name}.bin").write_bytes(
            make(name, scale_offsets, np.random.default_rng(seed)))
    lines = [sum_line(name, scale_offsets) for name, scale_offsets in FORMATS.items()]
    (folder / "sums.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
