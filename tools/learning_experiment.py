#!/usr/bin/env python3
"""What a method gives up against full training: a small Llama from scratch on English text.

Every arm is a run of the program on the same text, bytes as tokens: a Llama of 3.6M parameters, 3 % of
them outside the linear layers of its blocks, so that the method has to do almost all of the work. Prints a
Markdown table of held-out losses and, for each arm, the command behind it. Standard library only.

  tools/learning_experiment.py --program build/release/jackscrew --work runs/learning [--tokens 5000000]
                               --only NAME ... [--seed 1 ...] [--set product=bf16 ...]

The text is the glosses and examples of WordNet (Debian package wordnet-base).
"""

import argparse
import json
import random
import subprocess
from pathlib import Path

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
    "qgalore": QGALORE,
    "qgalore, lazy": [*QGALORE, "lazy_overlap=0.5"],
    "qgalore, rounded to nearest": [*QGALORE, "update_rounding=nearest"],
}


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


def run(program: Path, work: Path, name: str, settings: list[str], seed: int, steps: int) -> float:
    output = work / f"{name.replace(' ', '_').replace('%', '').replace(',', '')}_{seed}"
    command = [str(program), "train", f"model={work / 'config.json'}", "init=random",
               "tokenizer=bytes", f"data={work / 'train.txt'}", f"eval_data={work / 'valid.txt'}",
               f"sequence_len={SEQUENCE}", f"micro_batch_size={ROWS}", f"max_steps={steps}",
               "warmup_ratio=0.05", "logging_steps=100", f"seed={seed}", f"output_dir={output}",
               *settings]
    print("$", " ".join(command), flush=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    events = [json.loads(line) for line in (output / "train_log.jsonl").open(encoding="utf-8")]
    return [event["eval_loss"] for event in events if event["event"] == "eval"][-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=5_000_000)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--only", action="append", choices=list(ARMS), required=True)
    parser.add_argument("--seed", type=int, action="append")
    parser.add_argument("--set", action="append", default=[], help="name=value for every arm")
    parser.add_argument("--set_method", action="append", default=[],
                        help="name=value for every arm but full")
    options = parser.parse_args()
    prepare(options.work, options.tokens)
    steps = options.tokens // (SEQUENCE * ROWS)
    rows = []
    for seed in options.seed or [1]:
        for name in options.only:
            settings = [*ARMS[name], f"learning_rate={options.learning_rate}", *options.set]
            if name != "full":
                settings += options.set_method
            loss = run(options.program, options.work, name, settings, seed, steps)
            rows.append((name, seed, loss))
            print(f"{name}, seed {seed}: {loss:.4f}", flush=True)
    full = {seed: loss for name, seed, loss in rows if name == "full"}
    print(f"\n{steps} steps of {ROWS} x {SEQUENCE} bytes, learning rate {options.learning_rate}, "
          f"{' '.join(options.set + options.set_method)}\n\n| arm | seed | held-out loss | against full |\n|---|---|---|---|")
    for name, seed, loss in rows:
        gap = f"{100 * (loss / full[seed] - 1):+.1f} %" if seed in full else ""
        print(f"| {name} | {seed} | {loss:.4f} | {gap} |")


if __name__ == "__main__":
    main()
