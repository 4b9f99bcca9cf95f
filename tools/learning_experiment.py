#!/usr/bin/env python3
"""What a method gives up against full training: a small Llama from scratch, or a real one fine-tuned.

  tools/learning_experiment.py --program build/release/jackscrew --work runs/learning [--tokens 5000000]
                               --only NAME ... [--seed 1 ...] [--set product=bf16 ...]

From scratch, every arm is a run of the program on the same text (the glosses and examples of WordNet,
Debian package wordnet-base), bytes as tokens: a Llama of 3.6M parameters, 3 % of them outside the linear
layers of its blocks, so that the method has to do almost all of the work.

  tools/learning_experiment.py --program build/release/jackscrew --work runs/finetuning
                               --model .cache/model/NAME.gguf --data .cache/demo --only NAME ...

Fine-tuning, on train.jsonl of --data. The rank of an arm that ends in "same memory" is the largest with
which its run takes no more device memory than `qgalore` by `jackscrew plan`.

Each arm is run with a bracket of learning rates, one from the next by a factor of about three, until the
best of them has a worse one on either side. Prints every command, and a Markdown table of the best runs.
--results FILE keeps each run as a line of JSON, and a run that is there is not run again. Standard library
only.
"""

import argparse
import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Callable

WORDNET = Path("/usr/share/wordnet")
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 260,
    "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 8,
    "num_attention_heads": 6, "num_key_value_heads": 6, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "bos_token_id": 256, "eos_token_id": 257,
}
SEQUENCE, ROWS = 256, 8  # tokens of a sequence, sequences of a step

ROTARY = ["method=rotary"]
GALORE, QGALORE = ["method=galore"], ["method=qgalore"]
ARMS = {
    "full": ["method=full"],
    "rotary 50%": [*ROTARY, "active_params=50%"],
    "rotary 25%": [*ROTARY, "active_params=25%"],
    "rotary 10%": [*ROTARY, "active_params=10%"],
    "static only": [*ROTARY, "active_params=10%", "group_learning_rate=0"],
    "galore": GALORE,
    "galore, rank 12.5%": [*GALORE, "galore_rank=12.5%"],
    "galore, aligned": [*GALORE, "subspace_basis=aligned"],
    "galore, moments as they were": [*GALORE, "subspace_basis=original"],
    "galore, random subspaces": [*GALORE, "subspace=random"],
    "galore, bf16 weights": [*GALORE, "storage=bf16"],
    "galore, int4 subspaces": [*GALORE, "projection_dtype=int4"],
    "galore, 8-bit states": [*GALORE, "optimizer=adamw_8bit"],
    "galore, int8 weights": [*GALORE, "storage=int8_affine"],
    "galore, fused update": [*GALORE, "update=fused", "max_grad_norm_of=weight"],
    "qgalore": QGALORE,
    "qgalore, update after": [*QGALORE, "update=after", "max_grad_norm_of=model"],
    "qgalore, lazy": [*QGALORE, "lazy_overlap=0.5"],
    "qgalore, rounded to nearest": [*QGALORE, "update_rounding=nearest"],
}

SAME = "same memory"
# name: (settings, middle of the bracket of learning rates)
FINETUNING_ARMS = {
    "full": (["method=full"], 1e-4),
    "full, 8-bit states": (["method=full", "optimizer=adamw_8bit"], 1e-4),
    "qgalore": (QGALORE, 1e-4),
    "qgalore, rank 12.5%": ([*QGALORE, "galore_rank=12.5%"], 1e-4),
    f"lora, {SAME}": (["method=lora"], 3e-4),
    f"lora over bf16, {SAME}": (["method=lora", "storage=bf16"], 3e-4),
    f"qlora, {SAME}": (["method=lora", "storage=nf4"], 3e-4),
    "qlora, rank 16": (["method=lora", "storage=nf4", "lora_rank=16"], 3e-4),
}
MIDDLE_RATE = 1e-3  # from scratch
RATES = [float(f"{digit}e{power}") for power in range(-6, 0) for digit in (1, 3)]


def glosses(seed: int) -> list[str]:
    lines = []
    for part in ("noun", "verb", "adj", "adv"):
        for line in (WORDNET / f"data.{part}").read_text(encoding="latin-1").splitlines():
            if " | " in line and not line.startswith(" "):
                words, gloss = line.split(" | ", 1)
                lines.append(f"{words.split()[4].replace('_', ' ')}: {gloss.strip()}")
    random.Random(seed).shuffle(lines)
    return lines


def prepare(work: Path, tokens: int) -> None:
    work.mkdir(parents=True, exist_ok=True)
    lines = glosses(0)
    held_out = lines[:1500]
    (work / "valid.txt").write_text("\n".join(held_out) + "\n", encoding="utf-8")
    text = "\n".join(lines[1500:]) + "\n"
    (work / "train.txt").write_text(text[:tokens], encoding="utf-8")
    (work / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")


class Results:
    """Finished runs by their settings; kept in a file, if one is given."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows = []
        if path and path.exists():
            self.rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def find(self, **wanted) -> dict | None:
        return next((row for row in self.rows if all(row.get(k) == v for k, v in wanted.items())), None)

    def add(self, row: dict) -> None:
        self.rows.append(row)
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def train(program: Path, output: Path, settings: list[str]) -> dict:
    """Runs the program, keeping only its log and report; returns the held-out loss and the bytes."""
    command = [str(program), "train", *settings, f"output_dir={output}"]
    print("$", " ".join(command), flush=True)
    shutil.rmtree(output, ignore_errors=True)
    subprocess.run([*command, "--quiet"], check=True, stdout=subprocess.DEVNULL)
    events = [json.loads(line) for line in (output / "train_log.jsonl").open(encoding="utf-8")]
    for weights in output.glob("*.safetensors"):
        weights.unlink()
    return {"loss": [event["eval_loss"] for event in events if event["event"] == "eval"][-1],
            "device_bytes": events[0]["planned_peak"]}


def best_rate(loss_at: Callable[[float], float], middle: float) -> float:
    """A rate in RATES that is better than its neighbours."""
    losses: dict[int, float] = {}
    at = RATES.index(middle)
    while True:
        around = [at - 1, at, at + 1]
        losses |= {index: loss_at(RATES[index]) for index in around if index not in losses}
        lowest = min(around, key=losses.__getitem__)
        if lowest == at:
            return RATES[at]
        at = lowest


def from_scratch(options: argparse.Namespace, results: Results) -> None:
    work, steps = options.work, options.tokens // (SEQUENCE * ROWS)
    prepare(work, options.tokens)

    def run(name: str, seed: int, rate: float) -> dict:
        key = {"arm": name, "seed": seed, "steps": steps, "learning_rate": rate,
               "set": options.set, "set_method": options.set_method if name != "full" else []}
        row = results.find(**key)
        if row is None:
            row = key | train(options.program, work / "run", [
                f"model={work / 'config.json'}", "init=random", "tokenizer=bytes",
                f"data={work / 'train.txt'}", f"eval_data={work / 'valid.txt'}",
                f"sequence_len={SEQUENCE}", f"micro_batch_size={ROWS}", f"max_steps={steps}",
                "warmup_ratio=0.05", "logging_steps=100", f"seed={seed}", *ARMS[name],
                f"learning_rate={rate}", *key["set"], *key["set_method"]])
            results.add(row)
        print(f"{name}, seed {seed}, learning rate {rate:g}: {row['loss']:.4f}", flush=True)
        return row

    seeds = options.seed or [1]
    rows = []
    for name in options.only:
        rate = options.learning_rate or best_rate(
            lambda rate: run(name, seeds[0], rate)["loss"], MIDDLE_RATE)
        rows += [run(name, seed, rate) for seed in seeds]
    full = {row["seed"]: row["loss"] for row in rows if row["arm"] == "full"}
    print(f"\n{steps} steps of {ROWS} x {SEQUENCE} bytes {' '.join(options.set + options.set_method)}\n\n"
          "| arm | seed | learning rate | held-out loss | against full |\n|---|---|---|---|---|")
    for row in rows:
        gap = f"{100 * (row['loss'] / full[row['seed']] - 1):+.1f} %" if row["seed"] in full else ""
        print(f"| {row['arm']} | {row['seed']} | {row['learning_rate']:g} | {row['loss']:.4f} | {gap} |")


def device_bytes(program: Path, settings: list[str]) -> int:
    command = [str(program), "plan", *settings, "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(done.stdout)["device"]["peak"]


def same_memory_rank(program: Path, settings: list[str], budget: int) -> int:
    """The largest LoRA rank with which a run takes at most the budget."""
    low, high = 1, 512
    while high - low > 1:
        middle = (low + high) // 2
        fits = device_bytes(program, [*settings, f"lora_rank={middle}"]) <= budget
        low, high = (middle, high) if fits else (low, middle)
    return low


def picture(rows: list[dict]) -> str:
    """Plots the best losses of the arms against the bytes of their runs, in the style of report.html."""
    width, height, left, right, top, bottom = 640, 280, 64, 150, 12, 44
    most = 1.05 * max(row["device_bytes"] for row in rows)
    low, high = (edge(row["loss"] for row in rows) for edge in (min, max))
    low, high = low - 0.1 * (high - low), high + 0.1 * (high - low)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
           'font-family="system-ui, sans-serif" font-size="12" fill="#60676f">']

    def at(row: dict) -> tuple[float, float]:
        return (left + row["device_bytes"] / most * (width - left - right),
                top + (high - row["loss"]) / (high - low) * (height - top - bottom))

    for i in range(5):
        loss = low + i / 4 * (high - low)
        y = at({"device_bytes": 0, "loss": loss})[1]
        out.append(f'<line stroke="#e3e6e9" x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"/>'
                   f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{loss:.3f}</text>')
    for i in range(int(most / 2**30) + 1):
        x = at({"device_bytes": i * 2**30, "loss": low})[0]
        out.append(f'<text x="{x:.1f}" y="{height - bottom + 18}" text-anchor="middle">{i} GiB</text>')
    out.append(f'<text x="{left}" y="{height - 6}">held-out loss, device memory of the run</text>')
    for row in rows:
        x, y = at(row)
        out.append(f'<circle fill="#2563ad" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
                   f'<text x="{x + 8:.1f}" y="{y + 4:.1f}">{row["arm"]}</text>')
    return "\n".join([*out, "</svg>", ""])


def finetuning(options: argparse.Namespace, results: Results) -> None:
    steps = options.steps
    run = [f"model={options.model}", f"data={options.data / 'train.jsonl'}",
           f"eval_data={options.data / 'heldout.jsonl'}", "sequence_len=128", "packing=false",
           "micro_batch_size=16", f"max_steps={steps}", "lr_scheduler_type=cosine", *options.set]
    best = []
    for name in options.only:
        settings, middle = FINETUNING_ARMS[name]
        settings = [*run, *settings]
        if name.endswith(SAME):
            budget = device_bytes(options.program, [*run, *QGALORE])
            settings.append(f"lora_rank={same_memory_rank(options.program, settings, budget)}")

        rows = {}

        def loss_at(rate: float) -> float:
            key = {"arm": name, "steps": steps, "learning_rate": rate, "settings": settings}
            row = results.find(**key)
            if row is None:
                row = key | train(options.program, options.work / "run", [
                    *settings, "report_samples=0", f"learning_rate={rate}"])
                results.add(row)
            print(f"{name}, learning rate {rate:g}: {row['loss']:.4f}", flush=True)
            rows[rate] = row
            return row["loss"]

        best.append(rows[best_rate(loss_at, middle)])
    print(f"\n{steps} steps of 16 records\n\n"
          "| arm | device memory | learning rate | held-out loss |\n|---|---|---|---|")
    for row in best:
        rank = [setting for setting in row["settings"] if setting.startswith("lora_rank=")]
        print(f"| {', '.join([row['arm'], *rank])} | {row['device_bytes'] / 2**20:.0f} MiB "
              f"| {row['learning_rate']:g} | {row['loss']:.4f} |")
    if options.picture:
        options.picture.write_text(picture(best), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--only", action="append", choices=[*ARMS, *FINETUNING_ARMS], required=True)
    parser.add_argument("--set", action="append", default=[], help="name=value for every arm")
    scratch = parser.add_argument_group("from scratch")
    scratch.add_argument("--tokens", type=int, default=5_000_000)
    scratch.add_argument("--learning_rate", type=float,
                         help="for every arm; none: the best of a bracket with the first seed, for each")
    scratch.add_argument("--seed", type=int, action="append")
    scratch.add_argument("--set_method", action="append", default=[],
                         help="name=value for every arm but full")
    tuning = parser.add_argument_group("fine-tuning")
    tuning.add_argument("--model", type=Path, help="what is fine-tuned")
    tuning.add_argument("--data", type=Path, help="the directory of train.jsonl and heldout.jsonl")
    tuning.add_argument("--steps", type=int, default=40)
    tuning.add_argument("--picture", type=Path, help="an SVG file of the table")
    options = parser.parse_args()
    arms = FINETUNING_ARMS if options.model else ARMS
    for name in options.only:
        if name not in arms:
            parser.error(f"{name} is no arm of this experiment: {', '.join(arms)}")
    if options.model and not options.data:
        parser.error("--model needs --data")
    options.work.mkdir(parents=True, exist_ok=True)
    (finetuning if options.model else from_scratch)(options, Results(options.results))


if __name__ == "__main__":
    main()
