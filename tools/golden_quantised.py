#!/usr/bin/env python3
"""Writes tests/golden/quantised: one layer in every layout of quantised safetensors files, with its
decoded values. They come from tools/quantised_models.py, which tools/quantised_parity.py compares with
the programs that invented the layouts."""

import json
import shutil
from pathlib import Path

import numpy as np
from quantised_models import CONFIGS, QUANTISERS, save

ROWS, COLUMNS = 32, 96
VARIANTS = {
    "gptq_4": ("gptq", {"group_size": 32}),
    "gptq_4_order": ("gptq", {"group_size": 32, "desc_act": True, "symmetric": False}),
    "gptq_3": ("gptq", {"bits": 3, "group_size": -1, "symmetric": False}),
    "gptq_2_v2": ("gptq", {"bits": 2, "group_size": 16, "version": "gptq_v2", "symmetric": False}),
    "gptq_8": ("gptq", {"bits": 8, "group_size": 48, "symmetric": False, "desc_act": True}),
    "awq": ("awq", {"group_size": 32}),
    "exl2": ("exl2", {"mix": ((8, 32), (6, 32), (4, 32))}),
    "exl2_low": ("exl2", {"mix": ((5, 32), (3, 32), (2, 16))}),
    "packed_4": ("packed", {"group_size": 32}),
    "packed_4_order": ("packed", {"group_size": 24, "symmetric": False, "actorder": True}),
    "packed_8": ("packed", {"bits": 8, "group_size": -1, "scale": "bf16"}),
    "int": ("int", {"group_size": -1, "scale": "bf16"}),
    "int_shared": ("int", {"group_size": None, "scale": "f32"}),
    "fp8_rows": ("float", {}),
    "fp8_groups": ("float", {"block": (1, 32), "scale": "f16"}),
    "fp8_blocks": ("float", {"block": (24, 40)}),
    "fp8_shared": ("float", {"block": (-1, -1), "scale": "f32", "flat": True}),
    "fp8_inverse": ("fp8", {"block": (16, 64), "scale": "f32", "suffix": "weight_scale_inv"}),
    "fp4": ("fp4", {}),
    "llm_int8": ("llm_int8", {}),
    "exl3_3_signs": ("exl3", {"bits": 3, "signs": True}),
    "exl3_4_mcg": ("exl3", {"book": "mcg"}),
    "exl3_7_mul1": ("exl3", {"bits": 7, "book": "mul1"}),
}


def main() -> None:
    place = Path("tests/golden/quantised")
    shutil.rmtree(place, ignore_errors=True)
    for number, (name, (method, options)) in enumerate(VARIANTS.items()):
        rng = np.random.default_rng(number)
        shape = (128, 128) if method == "exl3" else (ROWS, COLUMNS)
        weight = rng.normal(size=shape).astype(np.float32)
        weight[:, ::7] *= 0.01  # groups of very different size
        tensors, values = QUANTISERS[method](weight, rng, **options)
        (place / name).mkdir(parents=True)
        save(place / name / "model.safetensors",
             {f"a.{part}": value for part, value in tensors.items()})
        save(place / name / "golden.safetensors", {"values": values})
        config = {"quantization_config": CONFIGS[method](options)}
        (place / name / "config.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    main()
