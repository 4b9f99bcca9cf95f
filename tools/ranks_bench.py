#!/usr/bin/env python3
"""What it costs to share a step between ranks on one machine: ratios, taken in turns within one run.

  tools/ranks_bench.py --program build/release/jackscrew [--model MODEL] [--rounds 3]

  replicas  two ranks of one thread, a lane each, against one rank of two threads that does both lanes:
            the exchange of gradients is what is lost
  pipeline  two stages of one thread, M micro-batches in a step, against one rank of one thread that does the
            same: (M + 1) / M times the imbalance of the stages is what a pipeline of two takes of half the time

Prints Markdown tables with the commands. Standard library only; ranks are started by mpirun.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile
from pathlib import Path

STEPS, WARM = 6, 2  # steps of a run, and how many of them are not timed


def tokens_per_second(output: Path) -> float:
    events = [json.loads(line) for line in (output / "train_log.jsonl").read_text().splitlines()]
    rates = [event["tokens_per_second"] for event in events if event["event"] == "step"]
    return statistics.harmonic_mean(rates[WARM:])


def sent_in_a_step(output: Path) -> float:
    events = [json.loads(line) for line in (output / "train_log.jsonl").read_text().splitlines()]
    sent = [event["sent_stream"] + event["sent_gradient"] for event in events if event["event"] == "rank"]
    return max(sent, default=0) / STEPS


class Bench:
    def __init__(self, program: Path, model: str, work: Path):
        self.program, self.model, self.work, self.count = program, model, work, 0
        words = [f"word{i}" for i in range(997)]
        draw = random.Random(0)
        (work / "text.txt").write_text("\n".join(" ".join(draw.choices(words, k=60)) for _ in range(3000)))

    def run(self, ranks: int, settings: list[str]) -> Path:
        self.count += 1
        output = self.work / f"run{self.count}"
        command = [str(self.program), "train", *self.model.split(), f"data={self.work / 'text.txt'}",
                   f"max_steps={STEPS}", "report_samples=0", "learning_rate=1e-6", f"output_dir={output}",
                   *settings]
        if ranks > 1:
            command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *command]
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        return output


def ratio(bench: Bench, rounds: int, one: tuple[int, list[str]], many: tuple[int, list[str]]) -> tuple[float, float]:
    ratios, sent = [], 0.0
    for _ in range(rounds):
        before = tokens_per_second(bench.run(*one))
        output = bench.run(*many)
        ratios.append(tokens_per_second(output) / before)
        sent = sent_in_a_step(output)
    return statistics.median(ratios), sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--program", type=Path, default=Path("build/release/jackscrew"))
    parser.add_argument("--model", default="model=smollm2-135m init=random tokenizer=bytes",
                        help="settings of the model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["replicas", "pipeline"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(options.program.resolve(), options.model, Path(directory))
        if options.only != "pipeline":
            print("| replicas | 2 ranks of 1 thread / 1 rank of 2 threads | a rank sends in a step |\n|---|---|---|")
            for method in ("method=full", "method=lora"):
                step = [method, "data_parallel=2", "sequence_len=512", "micro_batch_size=4"]
                value, sent = ratio(bench, options.rounds, (1, [*step, "threads=2"]), (2, [*step, "threads=1"]))
                print(f"| `{method}` | {value:.3f} | {sent / 2**20:.1f} MiB |", flush=True)
        if options.only != "replicas":
            print("\n| micro-batches in a step | 2 stages / 1 rank, each of 1 thread | 2 M / (M + 1) |\n|---|---|---|")
            for count in (1, 2, 4, 8, 16):
                step = ["method=lora", f"gradient_accumulation_steps={count}", "sequence_len=256",
                        "micro_batch_size=1", "threads=1"]
                value, _ = ratio(bench, options.rounds, (1, step), (2, [*step, "pipeline_stages=2"]))
                print(f"| {count} | {value:.3f} | {2 * count / (count + 1):.3f} |", flush=True)


if __name__ == "__main__":
    main()
