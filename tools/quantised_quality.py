#!/usr/bin/env python3
"""What rounding to few bits costs: loss and KL of files that this program and its peers write from one model.

  tools/quantised_quality.py --program build/release/jackscrew --work runs/quality --model .cache/model/NAME.gguf
                             [--oracle PYTHON] [--peers PYTHON] [--llama DIRECTORY] [--seed N] [--only NAME ...]

The only model at hand may lie on a grid of four bits already, which one format would hit and another miss. So its
weights are first taken off their grid without changing what it computes: each norm's gain moves into the matrices
behind it, and channels between v and o, and between up and down, are scaled by factors that cancel.
Texts are WordNet's glosses of nouns (Debian package wordnet-base): one part calibrates, another is held out.
A row of --only brings the same by another program along, where that is given.
--oracle has numpy and safetensors; --peers has gptqmodel and llmcompressor; --llama holds llama.cpp's llama-imatrix
and llama-quantize (its sources are in the source archive of PyPI's llama-cpp-python). Prints every command, and a
Markdown table. --results keeps each row as a line of JSON.
"""

import argparse
import json
import os
import random
import subprocess
import time
from pathlib import Path

from learning_experiment import WORDNET, Results

SEQUENCES, LENGTH = 128, 512  # what calibrates, as tokens
HELD_OUT = 400                # glosses, 6362 tokens

NEAREST = ", rounded to nearest"
GGUF = ["q2_k", "q3_k_m", "iq4_xs", "iq4_nl", "q4_k_s", "q4_k_m", "q5_k_m"]

# name: who writes it, and with what settings
ROWS = {
    "exl2 3.0": ("quantize", ["format=exl2", "bits=3.0"]),
    "gptq 3, groups of 64": ("quantize", ["bits=3", "group_size=64"]),
    "exl2 4.0": ("quantize", ["format=exl2", "bits=4.0"]),
    "gptq 4, groups of 128": ("quantize", ["bits=4", "group_size=128"]),
    f"gptq 4, groups of 128{NEAREST}": ("quantize", ["bits=4", "group_size=128", "rounding=nearest"]),
    "gptq 4, groups of 64": ("quantize", ["bits=4", "group_size=64"]),
    "nf4": ("quantize", ["format=hf", "storage=nf4"]),
    f"nf4{NEAREST}": ("export", ["storage=nf4"]),
    "exl2 5.0": ("quantize", ["format=exl2", "bits=5.0"]),
    "gguf 5.0": ("quantize", ["format=gguf", "bits=5.0"]),
    "exl2 6.0": ("quantize", ["format=exl2", "bits=6.0"]),
} | {name: ("quantize", ["format=gguf", f"storage={name}"]) for name in GGUF} | {
    name + NEAREST: ("export", [f"storage={name}"]) for name in GGUF}
# The same by another program.
PEERS = {
    "gptq 4, groups of 128": ("GPTQModel", "peers", ["gptqmodel"]),
    "gptq 4, groups of 64": ("LLM Compressor", "peers", ["llmcompressor"]),
} | {name: ("llama.cpp, imatrix", "llama", [name, "imatrix"]) for name in GGUF} | {
    name + NEAREST: ("llama.cpp", "llama", [name]) for name in GGUF}
ALL = ROWS | {f"{name} by {program}": row for name, (program, *row) in PEERS.items()}

OFF_GRID = """
import json, sys
import numpy as np
from safetensors.numpy import load_file, save_file
source, target, seed = sys.argv[1:]
config = json.load(open(source + "/config.json"))
w = load_file(source + "/model.safetensors")
rng = np.random.default_rng(int(seed))
heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
size = config["head_dim"]
for layer in range(config["num_hidden_layers"]):
    at = f"model.layers.{layer}."
    for norm, readers in (("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
                          ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj"))):
        gain = w[at + norm + ".weight"]
        for name in readers:
            w[f"{at}{name}.weight"] *= gain[None, :]
        w[at + norm + ".weight"] = np.ones_like(gain)
    # An eighth up or down: enough to leave the grid, too little to make the rows of a group unlike.
    scale = np.exp2(rng.uniform(-0.125, 0.125, kv_heads * size)).astype(np.float32)
    w[at + "self_attn.v_proj.weight"] *= scale[:, None]
    readers = np.repeat(scale.reshape(kv_heads, size), heads // kv_heads, axis=0).reshape(-1)
    w[at + "self_attn.o_proj.weight"] /= readers[None, :]
    scale = np.exp2(rng.uniform(-0.125, 0.125, config["intermediate_size"])).astype(np.float32)
    w[at + "mlp.up_proj.weight"] *= scale[:, None]
    w[at + "mlp.down_proj.weight"] /= scale[None, :]
save_file({name: value.astype(np.float16) for name, value in w.items()}, target + "/model.safetensors",
          metadata={"format": "pt"})
config["torch_dtype"] = "float16"
json.dump(config, open(target + "/config.json", "w"), indent=2)
"""

PEER_PROGRAM = """
import sys
import torch
writer, source, text, target, sequences, length = *sys.argv[1:5], *map(int, sys.argv[5:])
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(source)
ids = tokenizer(open(text).read(), add_special_tokens=False).input_ids
starts = [(len(ids) - length) * i // (sequences - 1) for i in range(sequences)]
samples = [{"input_ids": ids[at:at + length], "attention_mask": [1] * length} for at in starts]
if writer == "gptqmodel":
    from gptqmodel import GPTQModel, QuantizeConfig
    model = GPTQModel.load(source, QuantizeConfig(bits=4, group_size=128), dtype=torch.float16)
    model.quantize(samples, batch_size=1)
    model.save(target)
else:
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    oneshot(model=model, dataset=Dataset.from_list(samples), max_seq_length=length,
            num_calibration_samples=sequences,
            recipe=GPTQModifier(ignore=["lm_head"], config_groups={"blocks": {
                "targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "symmetric": True,
                                                   "strategy": "group", "group_size": 64}}}))
    model.save_pretrained(target, save_compressed=True)
tokenizer.save_pretrained(target)
"""


def run(line: list, log: Path) -> float:
    """Runs a command, its words kept in a log; returns its seconds."""
    print("$", " ".join(word if "\n" not in word else "PROGRAM" for word in map(str, line)), flush=True)
    begin = time.monotonic()
    with log.open("w", encoding="utf-8") as words:
        # GPTQModel fails on machines of two cores, where it gives itself one worker and needs two. Both peers
        # leave logs where they run.
        subprocess.run([str(word) for word in line], check=True, stdout=words, stderr=subprocess.STDOUT,
                       cwd=log.parent, env=os.environ | {"GPTQMODEL_CPU_WORKERS": "2"})
    return time.monotonic() - begin


def make_sources(options: argparse.Namespace) -> None:
    work = options.work
    lines = (WORDNET / "data.noun").read_text(encoding="latin-1").splitlines()[29:]
    glosses = [line.split("|", 1)[1].strip() for line in lines]
    random.Random(1).shuffle(glosses)
    (work / "held_out.txt").write_text("\n".join(glosses[:HELD_OUT]) + "\n", encoding="utf-8")
    # More than is read: 4 bytes a token, of lines of 80 on average.
    count = SEQUENCES * LENGTH * 4 // 80
    (work / "calibration.txt").write_text("\n".join(glosses[HELD_OUT:HELD_OUT + count]) + "\n", encoding="utf-8")
    source = work / "source"
    if not (source / "model.safetensors").exists():
        run([options.program, "export", f"model={options.model}", f"output_dir={work / 'on_grid'}",
             "storage=f32", "overwrite=true"], work / "log")
        run([options.program, "export", f"model={options.model}", f"output_dir={source}", "storage=f16"], work / "log")
        (source / "model.safetensors").unlink()
        run([options.oracle, "-c", OFF_GRID, work / "on_grid", source, options.seed], work / "log")
    run([options.program, "export", f"model={source}", f"output={work / 'source.gguf'}", "overwrite=true"],
        work / "log")


def write(options: argparse.Namespace, name: str) -> tuple[Path, float]:
    """The file or directory of a row, and the seconds that writing it took."""
    writer, settings = ALL[name]
    work = options.work
    source, text = work / "source", work / "calibration.txt"
    target = work / name.replace(",", "").replace(" ", "-")
    if "format=gguf" in settings:
        target = target.parent / f"{target.name}.gguf"
    if writer == "quantize":
        line = [options.program, "quantize", f"model={source}", f"data={text}", f"output_dir={target}",
                f"calibration_sequences={SEQUENCES}", f"sequence_len={LENGTH}", *settings]
    elif writer == "peers":
        line = [options.peers, "-c", PEER_PROGRAM, *settings, source, text, target, SEQUENCES, LENGTH]
    elif writer == "llama":
        target = target.parent / f"{target.name}.gguf"
        imatrix = []
        if settings[1:]:
            imatrix = ["--imatrix", work / "imatrix.gguf"]
            if not imatrix[1].exists():
                run([options.llama / "llama-imatrix", "-m", work / "source.gguf", "-f", text, "-o", imatrix[1],
                     "-c", LENGTH, "--no-ppl"], work / "log")
        line = [options.llama / "llama-quantize", *imatrix, work / "source.gguf", target, settings[0]]
    elif settings == ["storage=nf4"]:
        line = [options.program, "export", f"model={source}", f"output_dir={target}", *settings]
    else:
        target = target.parent / f"{target.name}.gguf"
        line = [options.program, "export", f"model={source}", f"output={target}", *settings]
    return target, run(line, work / "log")


def bits_of_blocks(options: argparse.Namespace, model: Path) -> float:
    """Bits a weight of the linear layers of the blocks, scales and all."""
    def bytes_of(path: Path) -> int:
        found = subprocess.run([options.program, "inspect", f"model={path}", "--json"], check=True,
                               capture_output=True, text=True).stdout
        return sum(tensor["bytes"] for tensor in json.loads(found)["tensors"]
                   if ("layers." in tensor["name"] or "blk." in tensor["name"]) and "norm" not in tensor["name"])
    return 16 * bytes_of(model) / bytes_of(options.work / "source")


def measure(options: argparse.Namespace, results: Results, name: str) -> dict:
    row = results.find(name=name, seed=options.seed)
    if row is None:
        target, seconds = write(options, name)
        run([options.program, "compare", options.work / "source", target, f"eval_data={options.work / 'held_out.txt'}",
             f"sequence_len={LENGTH}", "--json", "--quiet"], options.work / "compared")
        first, second = map(json.loads, (options.work / "compared").read_text(encoding="utf-8").splitlines()[-2:])
        row = {"name": name, "seed": options.seed, "seconds": round(seconds, 1), "source_loss": first["loss"],
               "source_bytes": first["bytes"], "bits": round(bits_of_blocks(options, target), 2),
               **{key: second[key] for key in ("bytes", "loss", "kl", "agreement")}}
        results.add(row)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--oracle", type=Path, default=Path(".cache/oracle/bin/python"))
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--llama", type=Path)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--only", action="append", choices=[*ROWS])
    parser.add_argument("--seed", type=int, default=1, help="draws the factors; each wants a --work of its own")
    options = parser.parse_args()
    for name, value in vars(options).items():
        if isinstance(value, Path):
            setattr(options, name, value.absolute())
    options.work.mkdir(parents=True, exist_ok=True)
    results = Results(options.results)
    make_sources(options)
    lacking = {writer for writer in ("peers", "llama") if getattr(options, writer) is None}
    rows, beside = {}, {}
    for name in options.only or ROWS:
        rows[name] = measure(options, results, name)
        program, writer, _ = PEERS.get(name, ("", "", []))
        if writer and writer not in lacking:
            beside[name] = program, measure(options, results, f"{name} by {program}")

    def figures(row: dict) -> str:
        return f"{row['loss'] - row['source_loss']:.3f} | {row['kl']:.3f}"

    first = next(iter(rows.values()))
    rows = dict(sorted(rows.items(), key=lambda row: row[1]["bits"]))
    print(f"\nf16: loss {first['source_loss']:.4f}, {first['source_bytes'] / 2**20:.1f} MiB\n\n"
          "| written here | bits a weight of the blocks | MiB | loss added | KL | same token | by another | loss added | KL |\n"
          f"|{'---|' * 9}")
    for name, row in rows.items():
        program, other = beside.get(name, ("", None))
        print(f"| {name} | {row['bits']:.2f} | {row['bytes'] / 2**20:.1f} | {figures(row)} | {100 * row['agreement']:.1f} % | "
              f"{program} | {figures(other) if other else ' | '} |")


if __name__ == "__main__":
    main()
