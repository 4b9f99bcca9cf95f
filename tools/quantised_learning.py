#!/usr/bin/env python3
"""LoRA over bases of few bits, each written by the program itself: what training gives back.

  tools/quantised_learning.py --program build/release/jackscrew --work runs/quantised
                              --model .cache/model/NAME.gguf --data .cache/demo [--only NAME ...]

The model is rounded to each base (by quantize calibrated on train.jsonl of --data), and adapters of
the same rank learn over it, with each way of lora_init. Prints every command, and a Markdown table of
held-out losses. --results FILE keeps each run as a line of JSON, and a run that is there is not run again.
Standard library only.
"""

import argparse
import json
import re
import subprocess
from pathlib import Path

from learning_experiment import Results, train

# name: the command that writes the base, or settings for the model as it is
QUANTIZE = "quantize"
EXPORT = "export"
BASES = {
    "as the file has it": (None, []),
    "nf4": (None, ["storage=nf4"]),
    "q4_k_m": (EXPORT, ["storage=q4_k_m"]),
    "iq4_nl": (EXPORT, ["storage=iq4_nl"]),
    "gptq, 4 bits": (QUANTIZE, ["format=gptq", "bits=4"]),
    "exl2, 4.0 bits": (QUANTIZE, ["format=exl2", "bits=4.0"]),
    "q3_k_m": (EXPORT, ["storage=q3_k_m"]),
    "gptq, 3 bits": (QUANTIZE, ["format=gptq", "bits=3", "group_size=64"]),
    "exl2, 3.0 bits": (QUANTIZE, ["format=exl2", "bits=3.0"]),
    "nf4, calibrated": (QUANTIZE, ["format=hf", "storage=nf4"]),
    "q4_k_m, calibrated": (QUANTIZE, ["format=gguf", "storage=q4_k_m"]),
    "iq4_nl, calibrated": (QUANTIZE, ["format=gguf", "storage=iq4_nl"]),
    "q3_k_m, calibrated": (QUANTIZE, ["format=gguf", "storage=q3_k_m"]),
}
# PiSSA's adapters are large: they take a lower rate (docs/experiments.md, lora).
INITS = {"default": 1e-3, "loftq": 1e-3, "pissa": 2e-4}


def written(options: argparse.Namespace, name: str) -> Path:
    """The base of a name, written unless it is there."""
    command, settings = BASES[name]
    if command is None:
        return options.model
    is_gguf = command == EXPORT or "format=gguf" in settings
    path = options.work / (re.sub(r"[^a-z0-9.]+", "-", name) + (".gguf" if is_gguf else ""))
    if not path.exists():
        where = [f"output={path}"] if command == EXPORT else [
            f"output_dir={path}", f"data={options.data / 'train.jsonl'}"]
        line = [str(options.program), command, f"model={options.model}", *settings, *where]
        print("$", " ".join(line), flush=True)
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return path


def run(options: argparse.Namespace, results: Results, name: str, init: str) -> dict:
    rate = INITS[init]
    key = {"base": name, "lora_init": init, "steps": options.steps, "learning_rate": rate,
           "seed": options.seed, "set": options.set}
    row = results.find(**key)
    if row is None:
        base = written(options, name)
        settings = [f"model={base}", f"data={options.data / 'train.jsonl'}",
                    f"eval_data={options.data / 'heldout.jsonl'}", "method=lora", "lora_rank=16",
                    "sequence_len=128", "micro_batch_size=4", f"max_steps={options.steps}",
                    "report_samples=0", f"seed={options.seed}", f"lora_init={init}",
                    f"learning_rate={rate}", *options.set]
        if init != "default" and base != options.model:
            settings.append(f"lora_original_model={options.model}")
        if BASES[name][0] is None:
            settings += BASES[name][1]
        output = options.work / "run"
        row = key | train(options.program, output, settings)
        events = [json.loads(line) for line in (output / "train_log.jsonl").open(encoding="utf-8")]
        row["before"] = [event["eval_loss"] for event in events if event["event"] == "eval"][0]
        results.add(row)
    print(f"{name}, {init}: {row['before']:.3f}, {row['loss']:.3f}", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="what is rounded and trained over")
    parser.add_argument("--data", type=Path, required=True,
                        help="the directory of train.jsonl and heldout.jsonl")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--only", action="append", choices=[*BASES])
    parser.add_argument("--init", action="append", choices=[*INITS])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], help="name=value for every run")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    results = Results(options.results)
    inits = options.init or [*INITS]
    table = {}
    for init in inits:
        for name in options.only or BASES:
            # A base that rounds nothing here has nothing to give back.
            if init == "loftq" and name == "as the file has it":
                continue
            table[name, init] = run(options, results, name, init)
    print(f"\n{options.steps} steps of 4 x 128 tokens {' '.join(options.set)}\n\n"
          f"| base | before | {' | '.join(inits)} |\n|---|---|{'---|' * len(inits)}")
    for name in options.only or BASES:
        rows = [table.get((name, init)) for init in inits]
        before = next(row["before"] for row in rows if row)
        after = " | ".join(f"{row['loss']:.3f}" if row else "" for row in rows)
        print(f"| {name} | {before:.3f} | {after} |")


if __name__ == "__main__":
    main()
