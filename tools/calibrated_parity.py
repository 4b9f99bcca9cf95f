"""Has gptqmodel and ExLlamaV2's loader open what `quantize` writes, beside a second reader of GPTQ.

Fresh random models each time. Called by tools/conversion_parity.py.
"""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from parity_rig import Failure
from tiny_models import TEXTS, write_model

# Where there is no padding token, gptqmodel takes Qwen2's own, which is beyond this vocabulary.
SHAPE = dict(hidden=64, ffn=128, layers=2, heads=4, kv_heads=2, pad_token_id=0)
LAYERS = 14
CALIBRATION = ["sequence_len=64", "calibration_sequences=8"]
GPTQ = {
    "gptq 4": ("llama", ["bits=4"]),
    "gptq 4 desc_act": ("qwen2", ["bits=4", "desc_act=true"]),
    "gptq 3": ("qwen3", ["bits=3"]),
    "gptq 3 desc_act asymmetric": ("llama", ["bits=3", "desc_act=true", "sym=false"]),
    "gptq 2": ("llama", ["bits=2", "group_size=16"]),
    "gptq 2 desc_act asymmetric": ("qwen2", ["bits=2", "desc_act=true", "sym=false"]),
    "gptq 8": ("llama", ["bits=8", "group_size=-1"]),
    "gptq 8 desc_act asymmetric": ("qwen3", ["bits=8", "desc_act=true", "sym=false"]),
}
EXL2 = {
    "exl2 3.5": ("llama", ["bits=3.5", "head_bits=4"]),
    "exl2 4.25": ("qwen2", ["bits=4.25", "head_bits=6"]),
    "exl2 5": ("llama", ["bits=5", "head_bits=16"]),
    "exl2 6": ("qwen3", ["bits=6", "head_bits=8"]),
}


def opened_by(python: Path, script: str, *arguments: Path, asked: str = "") -> str:
    """What a script beside this one prints."""
    done = subprocess.run([python, Path(__file__).with_name(script), *arguments], input=asked, capture_output=True,
                          text=True, timeout=600)
    if done.returncode != 0:
        raise Failure(f"{script}: {(done.stderr.strip().splitlines() or ['(silent)'])[-1]}")
    return done.stdout


def unpacked(words: np.ndarray, bits: int) -> np.ndarray:
    """Unpacks `bits`-wide numbers, lowest bits first, from the little-endian words of each row."""
    stream = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little")
    return stream.reshape(len(words), -1, bits) @ (1 << np.arange(bits))


def gptq_value(tensors: dict[str, torch.Tensor], layer: str, bits: int) -> np.ndarray:
    """scale * (code - zero) in f16: an independent second reader."""
    codes, zeros, scales, group_of = (
        tensors[f"{layer}.{part}"].numpy() for part in ("qweight", "qzeros", "scales", "g_idx"))
    codes = unpacked(codes.T, bits)               # [rows, columns]
    zeros = unpacked(zeros, bits).T + 1           # [rows, groups]
    difference = (codes - zeros[:, group_of]).astype(np.float16)
    return (scales.T[:, group_of] * difference).astype(np.float32)


def exl2_value(found: dict[str, torch.Tensor], layer: str) -> np.ndarray:
    """(code - middle) * ((scale code + 1)^2 * scale_max), each in f16: what ExLlamaV2's kernels do with these."""
    words, order, scales, scale_max, table, group_map = (
        found[f"{layer}.{part}"].numpy() for part in ("words", "order", "scales", "scale_max", "table", "group_map"))
    bits_and_line = table.view(np.uint16).reshape(-1, 2).astype(int)
    group_and_rest = group_map.view(np.uint16).reshape(-1, 2).astype(int)
    value = np.empty((words.shape[1], len(order)), np.float32)
    begin = 0
    while begin < len(order):
        group, columns = group_and_rest[begin]
        bits, line = bits_and_line[group]
        codes = unpacked(words[line:line + columns * bits // 32].T, bits)
        root = (scales[group].astype(int) + 1).astype(np.float16)
        stored = (codes - 2 ** (bits - 1)).astype(np.float16) * (root * root * scale_max[group])[:, None]
        value[:, order[begin:begin + columns].view(np.uint16)] = stored
        begin += columns
    return value


def compare_values(report, name: str, ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor],
                   layers: int, expected: int = LAYERS) -> None:
    """Compares all tensors of ours; theirs may have rows that only fill words up."""
    different = sum(int((theirs[key][:len(value)].float() != value).sum()) for key, value in ours.items())
    report.line(f"{name}: different values", different if layers == expected else float("nan"), 0,
                f"{layers} layers of few bits")


def check_gptq(report, program, work: Path, rng: random.Random, python: Path) -> None:
    """A second reader and gptqmodel find the same values in the GPTQ of quantize, and the same loss."""
    data, text = work / "gptq.txt", work / "gptq_eval.txt"
    data.write_text("\n".join(TEXTS * 20))
    text.write_text("\n".join(TEXTS))
    packed, values, losses = {}, {}, {}
    for name, (kind, options) in GPTQ.items():
        source, decoded = work / f"{name}_source", work / f"{name}_decoded"
        packed[name] = work / name
        write_model(source, kind, SHAPE | {"tied": kind == "qwen2"}, rng.randrange(2**31))
        program("quantize", f"model={source}", f"data={data}", f"output_dir={packed[name]}", "group_size=32",
                *CALIBRATION, *options)
        program("export", f"model={packed[name]}", f"output_dir={decoded}", "storage=f32")
        tensors = load_file(packed[name] / "model.safetensors")
        ours = values[name] = load_file(decoded / "model.safetensors")
        layers = [key.removesuffix(".qweight") for key in tensors if key.endswith(".qweight")]
        bits = int(options[0].removeprefix("bits="))
        second = {f"{layer}.weight": torch.from_numpy(gptq_value(tensors, layer, bits)) for layer in layers}
        compare_values(report, name, ours, ours | second, len(layers))
        save_file(ours | second, decoded / "model.safetensors", metadata={"format": "pt"})
        model = AutoModelForCausalLM.from_pretrained(decoded, dtype=torch.float32).eval()
        ids = torch.tensor(program.tokens(packed[name], text)[0]["ids"])[None]
        with torch.no_grad():
            theirs = float(model(input_ids=ids, labels=ids).loss)
        losses[name] = program.loss(text, f"model={packed[name]}")
        report.line(f"{name}: loss", abs(losses[name] / theirs - 1), 1e-5)
    if not python.exists():
        print(f"skip gptqmodel: there is no {python} (script/setup --oracle makes it)", flush=True)
        return
    for name, (_, options) in GPTQ.items():
        if "sym=false" in options:
            # gptqmodel takes zeros of this checkpoint_format from no other program than itself.
            path = packed[name] / "config.json"
            config = json.loads(path.read_text())
            config["quantization_config"]["meta"] = {"quantizer": ["gptqmodel:7.7.0"]}
            path.write_text(json.dumps(config))
    said = json.loads(opened_by(python, "gptqmodel_answers.py", work, *packed.values(),
                                asked=json.dumps(ids[0].tolist())))
    for name in GPTQ:
        layers, loss = said[name]
        compare_values(report, f"gptqmodel.{name}", values[name], load_file(work / f"{name}.safetensors"), layers)
        # It computes in f16, which rounds by up to 2^-11.
        report.line(f"gptqmodel.{name}: loss", abs(loss / losses[name] - 1), 5e-4)


def check_exl2(report, program, work: Path, rng: random.Random, place: Path) -> None:
    """ExLlamaV2's loader finds the same values in the EXL2 that quantize writes, in the bytes that it reports."""
    if not (place / "exllamav2").exists():
        print(f"skip exllamav2: it is not in {place} (script/setup --oracle fetches it)", flush=True)
        return
    data = work / "exl2.txt"
    data.write_text("\n".join(TEXTS * 20))
    packed, values, said = {}, {}, {}
    for name, (kind, options) in EXL2.items():
        source, decoded = work / f"{name}_source", work / f"{name}_decoded"
        packed[name] = work / name
        write_model(source, kind, SHAPE | {"tied": True}, rng.randrange(2**31))
        said[name] = json.loads(program("quantize", "format=exl2", f"model={source}", f"data={data}",
                                        f"output_dir={packed[name]}", *CALIBRATION, *options, "--json"))
        program("export", f"model={packed[name]}", f"output_dir={decoded}", "storage=f32")
        values[name] = load_file(decoded / "model.safetensors")
    opened_by(Path(sys.executable), "exllamav2_answers.py", place, work, *packed.values())
    for name, (_, options) in EXL2.items():
        ours, found = values[name], load_file(work / f"{name}.safetensors")
        layers = [key.removesuffix(".words") for key in found if key.endswith(".words")]
        found |= {f"{layer}.weight": torch.from_numpy(exl2_value(found, layer)) for layer in layers}
        compare_values(report, name, ours, found, len(layers), LAYERS + ("head_bits=16" not in options))
        stored = sum(8 * tensor.nbytes for key, tensor in load_file(packed[name] / "model.safetensors").items()
                     if key.rpartition(".")[2].startswith("q_") and not key.startswith("lm_head"))
        elements = sum(ours[f"{layer}.weight"].numel() for layer in layers if layer != "lm_head")
        report.line(f"{name}: bits", abs(said[name]["bits"] - stored / elements), 1e-12)
