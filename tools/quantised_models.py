"""Writes models in the layouts of quantising programs, rounded to nearest, in plain numpy.

The layouts are those of src/formats/{gptq,exl2,exl3,compressed_tensors,fp8_weights,bitsandbytes}.h,
implemented here a second time and independently. Each quantiser returns the tensors of a layer and the
values that the layout's own program decodes, with that program's roundings.
"""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file


def bitstream(codes: np.ndarray, bits: int) -> np.ndarray:
    """Packs codes [n, columns] along the first axis into little-endian words, i32 [n bits / 32, columns]."""
    count, columns = codes.shape
    words = math.ceil(count * bits / 32)
    planes = np.zeros((words * 32, columns), dtype=np.uint8)
    for bit in range(bits):
        planes[bit:count * bits:bits] = codes >> bit & 1
    packed = np.packbits(planes.reshape(words, 32, columns), axis=1, bitorder="little")
    return np.ascontiguousarray(packed.transpose(0, 2, 1)).view("<i4").reshape(words, columns)


def groups_of(columns: int, size: int) -> np.ndarray:
    return np.arange(columns) // (columns if size == -1 else size)


def rounded(weight: np.ndarray, group_of: np.ndarray, bits: int, symmetric: bool):
    """Rounds in groups of columns: scales [out, groups] f16, zeros [out, groups] and codes [out, in]."""
    groups = int(group_of.max()) + 1
    rows = weight.shape[0]
    most = 2**bits - 1
    scales = np.zeros((rows, groups), np.float16)
    zeros = np.zeros((rows, groups), np.int32)
    codes = np.zeros(weight.shape, np.int32)
    for g in range(groups):
        part = weight[:, group_of == g]
        if symmetric:
            scale = np.abs(part).max(1) * 2 / most
            zero = np.full(rows, 2**(bits - 1))
        else:
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            scale = (high - low) / most
            zero = np.clip(np.round(-low / np.maximum(scale, 1e-8)), 1, most).astype(np.int32)
        scales[:, g] = np.maximum(scale, 1e-4)
        zeros[:, g] = zero
        wide = scales[:, g].astype(np.float32)[:, None]
        codes[:, group_of == g] = np.clip(np.round(part / wide) + zero[:, None], 0, most)
    return scales, zeros, codes


def decoded(scales, zeros, codes, group_of) -> np.ndarray:
    """scale * (code - zero), the product rounded to f16."""
    difference = (codes - zeros[:, group_of]).astype(np.float16)
    return (scales[:, group_of] * difference).astype(np.float32)


def gptq(weight: np.ndarray, rng, bits=4, group_size=128, desc_act=False, symmetric=True,
         version="gptq"):
    rows, columns = weight.shape
    group_of = groups_of(columns, group_size)
    if desc_act:
        group_of = group_of[rng.permutation(columns)]
    scales, zeros, codes = rounded(weight, group_of, bits, symmetric)
    stored = (zeros - 1) if version == "gptq" else zeros
    tensors = {"qweight": bitstream(codes.T, bits),
               "qzeros": np.ascontiguousarray(bitstream(stored, bits).T),
               "scales": np.ascontiguousarray(scales.T), "g_idx": group_of.astype(np.int32)}
    return tensors, decoded(scales, zeros, codes, group_of)


def awq(weight: np.ndarray, rng, group_size=128):
    rows, columns = weight.shape
    group_of = groups_of(columns, group_size)
    scales, zeros, codes = rounded(weight, group_of, 4, False)
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def packed(values):  # [lines, rows] to [lines, rows / 8]
        parts = values.reshape(len(values), rows // 8, 8).astype(np.uint32)
        return sum(parts[:, :, row] << (4 * i) for i, row in enumerate(order)).astype("<u4").view("<i4")

    tensors = {"qweight": packed(codes.T), "qzeros": packed(zeros.T),
               "scales": np.ascontiguousarray(scales.T)}
    return tensors, decoded(scales, zeros, codes, group_of)


def exl2(weight: np.ndarray, rng, mix=((6, 32), (5, 32), (4, 64), (3, 64), (2, 32))):
    """`mix`: (bits, group size) of consecutive groups; the last is repeated to the end."""
    rows, columns = weight.shape
    padded = math.ceil(rows / 32) * 32
    order = rng.permutation(columns)  # stored column -> column of the matrix
    stored = np.zeros((padded, columns), np.float32)
    stored[:rows] = weight[:, order]
    q_weight, q_groups, scale_codes, scale_max = [], [], [], []
    values = np.zeros_like(stored)
    first = line = 0
    while first < columns:
        bits, size = mix[min(len(q_groups), len(mix) - 1)]
        size = min(size, columns - first)
        part = stored[:, first:first + size]
        base = (np.abs(part).max(1) + 1e-12) / ((2**bits - 1) / 2)
        code = np.clip(np.round(np.sqrt(base / base.max()) * 16), 1, 16).astype(np.int32)
        most = np.float16(base.max())
        prescaled = np.float16(most * np.float16(1 / 256))
        scale = (code * code).astype(np.float16) * prescaled
        codes = np.clip(np.round(part / np.maximum(scale.astype(np.float32), 1e-9)[:, None])
                        + 2**(bits - 1), 0, 2**bits - 1).astype(np.int32)
        values[:, first:first + size] = ((codes - 2**(bits - 1)).astype(np.float16)
                                         * scale[:, None]).astype(np.float32)
        words = bitstream(codes.T, bits)
        q_weight.append(words)
        q_groups += [(bits, line)]
        scale_codes.append(code - 1)
        scale_max.append(most)
        first += size
        line += len(words)
    tensors = {"q_weight": np.concatenate(q_weight),
               "q_groups": np.array(q_groups, np.int16).reshape(-1),
               "q_invperm": np.argsort(order).astype(np.int32),
               "q_scale": np.ascontiguousarray(bitstream(np.array(scale_codes).T, 4).T),
               "q_scale_max": np.array(scale_max, np.float16)}
    return tensors, values[:rows][:, np.argsort(order)]


_SCALE_TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


def products(scales: torch.Tensor, difference: np.ndarray) -> np.ndarray:
    return (scales * torch.from_numpy(difference).to(scales.dtype)).float().numpy()


def packed(weight: np.ndarray, rng, bits=4, group_size=128, symmetric=True, actorder=False,
           scale="f16"):
    """compressed-tensors' pack-quantized."""
    rows, columns = weight.shape
    group_of = groups_of(columns, group_size)
    if actorder:
        group_of = group_of[rng.permutation(columns)]
    scales, zeros, codes = rounded(weight, group_of, bits, symmetric)
    scales = torch.from_numpy(scales).to(_SCALE_TYPES[scale])
    tensors = {"weight_packed": np.ascontiguousarray(bitstream(codes.T, bits).T),
               "weight_scale": scales, "weight_shape": np.array(weight.shape, np.int64)}
    if not symmetric:
        tensors["weight_zero_point"] = bitstream(zeros, bits)
    if actorder:
        tensors["weight_g_idx"] = group_of.astype(np.int32)
    return tensors, products(scales[:, group_of], codes - zeros[:, group_of])


def integer(weight: np.ndarray, rng, group_size=-1, scale="f16"):
    """compressed-tensors' int-quantized. `group_size` None: one scale for the whole matrix."""
    rows, columns = weight.shape
    group_of = groups_of(columns, group_size or -1)
    scales, zeros, codes = rounded(weight, group_of, 8, True)
    if group_size is None:
        scales = scales.max(keepdims=True).repeat(rows, 0)
        codes = np.clip(np.round(weight / scales.astype(np.float32)) + 128, 0, 255).astype(np.int32)
    scales = torch.from_numpy(scales).to(_SCALE_TYPES[scale])
    signed = (codes - 128).astype(np.int8)
    tensors = {"weight": signed, "weight_scale": scales[:1, 0] if group_size is None else scales}
    return tensors, products(scales[:, group_of], signed)


# The values of E4M3's codes, except that 127 and 255 are NaN.
E4M3 = np.array([(-1.0 if code & 128 else 1.0) * (code % 8 * 2.0**-9 if code & 120 == 0
                 else (1 + code % 8 / 8) * 2.0**((code >> 3 & 15) - 7)) for code in range(256)])
E4M3[[127, 255]] = np.nan


def floats(weight: np.ndarray, rng, block=(1, -1), scale="bf16", suffix="weight_scale", flat=False):
    """compressed-tensors' float-quantized, or the same under another name. `block`: rows and columns that
    share a scale, -1 for all; `flat`: the scales as a vector or one number, without dimensions of 1."""
    rows, columns = weight.shape
    height, width = (columns if extent == -1 and axis else rows if extent == -1 else extent
                     for axis, extent in enumerate(block))
    of_row, of_column = np.arange(rows) // height, np.arange(columns) // width
    scales = np.zeros((of_row[-1] + 1, of_column[-1] + 1), np.float32)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            scales[i, j] = np.abs(weight[of_row == i][:, of_column == j]).max() / 448
    scales = torch.from_numpy(scales).to(_SCALE_TYPES[scale])
    wide = scales[of_row][:, of_column]
    positive = E4M3[:127]
    numbers = np.minimum(np.abs(weight) / wide.float().numpy(), 448)
    codes = np.searchsorted((positive[1:] + positive[:-1]) / 2, numbers).astype(np.uint8)
    codes |= np.where(np.signbit(weight), 128, 0).astype(np.uint8)
    stored = scales.reshape(-1 if scales.numel() > 1 else ()) if flat else scales
    return ({"weight": torch.from_numpy(codes).view(torch.float8_e4m3fn), suffix: stored},
            products(wide, E4M3[codes].astype(np.float32)))


FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3], np.float32) / np.float32(12)


def fp4(weight: np.ndarray, rng):
    """bitsandbytes' FP4 in blocks of 64."""
    flat = weight.reshape(-1)
    count = len(flat)
    absmax = np.array([np.abs(flat[i:i + 64]).max() for i in range(0, count, 64)], np.float32)
    block = np.arange(count) // 64
    codes = np.abs(flat[:, None] / absmax[block][:, None] - FP4).argmin(1).astype(np.uint8)
    pairs = np.append(codes, np.zeros(count % 2, np.uint8)).reshape(-1, 2)
    state = json.dumps({"quant_type": "fp4", "blocksize": 64, "dtype": "float32", "shape": weight.shape})
    tensors = {"weight": (pairs[:, 0] << 4 | pairs[:, 1])[:, None], "weight.absmax": absmax,
               "weight.quant_map": FP4,
               "weight.quant_state.bitsandbytes__fp4": np.frombuffer(state.encode(), np.uint8).copy()}
    return tensors, (FP4[codes] * absmax[block]).reshape(weight.shape)


def absmax_bytes(weight: np.ndarray, rng):
    """bitsandbytes' LLM.int8."""
    absmax = np.abs(weight).max(1)
    codes = np.round(weight * (np.float32(127) / absmax)[:, None]).astype(np.int8)
    tensors = {"weight": codes, "SCB": absmax, "weight_format": np.array(0, np.uint8)}
    return tensors, codes * absmax[:, None] * np.float32(7.874015718698502e-3)


def exl3_numbers(states: np.ndarray, book: str) -> np.ndarray:
    """The f16 value of a 16-bit state."""
    states = states.astype(np.uint32)
    if book == "mul1":
        mixed = states * np.uint32(0x83DCD12D)
        total = sum((mixed >> np.uint32(8 * i)) & np.uint32(255) for i in range(4)) + 1024
        factor, term = np.array([0x1EEE, 0xC931], np.uint16).view(np.float16).astype(np.float64)
        return (total * factor + term).astype(np.float16)
    mixed = (states * np.uint32(0xCBAC1FED) if book == "mcg"
             else states * np.uint32(89226354) + np.uint32(64248484))
    mixed = (mixed & np.uint32(0x8FFF8FFF)) ^ np.uint32(0x3B603B60)
    halves = np.ascontiguousarray(mixed).view(np.uint16).view(np.float16).reshape(*states.shape, 2)
    return halves[..., 0] + halves[..., 1]


def exl3_inner(trellis: np.ndarray, bits: int, book: str) -> np.ndarray:
    """Decodes words [in / 16, out / 16, 8 * bits] to values [in, out]."""
    tiles_in, tiles_out, _ = trellis.shape
    ring = np.unpackbits(trellis.astype(">u4").view(np.uint8), axis=-1)  # the highest bit first
    place = np.arange(256)[:, None] * bits + bits - 16 + np.arange(16)
    states = (ring[..., place % (256 * bits)].astype(np.uint32) << np.arange(15, -1, -1, dtype=np.uint32)).sum(-1)
    numbers = exl3_numbers(states.astype(np.uint32), book)
    tiles = np.zeros((tiles_in, tiles_out, 16, 16), np.float16)
    for thread in range(32):
        row, column = thread % 4 * 2, thread // 4
        for i, (down, right) in enumerate([(r, c) for c in (0, 8) for r in (0, 1, 8, 9)]):
            tiles[:, :, row + down, column + right] = numbers[..., thread * 8 + i]
    return tiles.transpose(0, 2, 1, 3).reshape(16 * tiles_in, 16 * tiles_out)


def _mixed(values: np.ndarray) -> np.ndarray:
    """The Hadamard transform of blocks of 128 along the first axis."""
    values = np.ascontiguousarray(values).copy()
    for step in (1, 2, 4, 8, 16, 32, 64):
        pairs = values.reshape(-1, 2, step, values.shape[1])
        low, high = pairs[:, 0].copy(), pairs[:, 1].copy()
        pairs[:, 0], pairs[:, 1] = low + high, low - high
    return values


def exl3(weight: np.ndarray, rng, bits=4, book="plain", signs=False):
    """Random codes, scaled to the weight's magnitude: there is no search for good ones here."""
    rows, columns = weight.shape
    words = rng.integers(0, 2**32, (columns // 16, rows // 16, 8 * bits), np.uint32)
    size = np.float32(weight.std())
    scale = [rng.choice([-1, 1], extent).astype(np.float32) for extent in (columns, rows)]
    if not signs:
        scale = [s * size**np.float32(0.5) * rng.uniform(0.7, 1.4, len(s)).astype(np.float32) for s in scale]
    suh, svh = (s.astype(np.float16) for s in scale)
    inner = exl3_inner(words, bits, book).astype(np.float32)
    values = _mixed(_mixed(inner.T).T).T * suh.astype(np.float32) * (svh.astype(np.float32) / 128)[:, None]
    tensors = {"trellis": words.view(np.int16)}
    if signs:
        for name, values_of in (("su", suh), ("sv", svh)):
            tensors[name] = np.packbits(values_of < 0, bitorder="little").view(np.int16)
    else:
        tensors |= {"suh": suh, "svh": svh}
    if book != "plain":
        tensors[book] = np.array({"mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}[book], np.uint32).view(np.int32)
    return tensors, values


def _compressed(form: str):
    return lambda o: {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"]}


def _float_quantized(options: dict) -> dict:
    config = _compressed("float-quantized")(options)
    weights = {"num_bits": 8, "type": "float"}
    block = options.get("block", (1, -1))
    if min(block) > 1:
        weights |= {"strategy": "block", "block_structure": list(block)}
    return config | {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


QUANTISERS = {"float": floats, "fp8": floats, "fp4": fp4, "llm_int8": absmax_bytes, "gptq": gptq, "awq": awq, "exl2": exl2, "exl3": exl3, "packed": packed, "int": integer}
CONFIGS = {
    "float": _float_quantized,
    "fp8": lambda o: {"quant_method": "fp8", "weight_block_size": o.get("block")},
    "fp4": lambda o: {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "llm_int8": lambda o: {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "packed": _compressed("pack-quantized"),
    "int": _compressed("int-quantized"),
    "gptq": lambda o: {"quant_method": "gptq", "bits": o.get("bits", 4), "group_size": o.get("group_size", 128),
                       "desc_act": o.get("desc_act", False), "sym": o.get("symmetric", True),
                       "checkpoint_format": o.get("version", "gptq")},
    "awq": lambda o: {"quant_method": "awq", "bits": 4, "group_size": o.get("group_size", 128), "version": "gemm",
                      "zero_point": True},
    "exl3": lambda o: {"quant_method": "exl3", "version": "0.0.6", "bits": float(o.get("bits", 4)), "head_bits": 6},
    "exl2": lambda o: {"quant_method": "exl2", "version": "0.3.2", "bits": 4.0, "head_bits": 6},
}


def is_linear(name: str) -> bool:
    return name.endswith("_proj.weight")


def save(path: Path, tensors: dict) -> None:
    """Saves numpy arrays and torch tensors."""
    save_file({name: torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray)
               else value.contiguous() for name, value in tensors.items()}, path, {"format": "pt"})


def write_quantised(source: Path, target: Path, plain: Path, method: str, seed=1, head=False,
                    quantiser=None, **options) -> None:
    """Writes a model directory in a layout, and `plain`: the same model in F32 with the decoded values."""
    rng = np.random.default_rng(seed)
    for directory in (target, plain):
        shutil.copytree(source, directory, dirs_exist_ok=True)
    quantised, decoded = {}, {}
    for name, tensor in load_file(source / "model.safetensors").items():
        tensor = tensor.float().numpy()
        if is_linear(name) or (head and name == "lm_head.weight"):
            parts, values = (quantiser or QUANTISERS[method])(tensor, rng, **options)
            layer = name.removesuffix(".weight")
            quantised |= {f"{layer}.{part}": value for part, value in parts.items()}
            decoded[name] = values
        else:
            quantised[name] = decoded[name] = tensor
    save(target / "model.safetensors", quantised)
    save(plain / "model.safetensors", decoded)
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = CONFIGS[method](options)
    (target / "config.json").write_text(json.dumps(config, indent=2))
