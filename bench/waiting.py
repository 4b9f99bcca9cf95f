#!/usr/bin/env python3
"""How long should a thread that waits for work spin before it sleeps? Tokens a second of a program
that generates, by libgomp's setting, on a machine that does nothing else and on a busy one.

    waiting.py --program build/release/jackscrew --model MODEL.gguf [--threads 2] [--rounds 5]
               [--others 0,2] [--tokens 32] [--raw FILE]

`--others`: how many processes that compute without end share the machine. Settings alternate within
a round, and each figure is the median of the rounds; in brackets, its share of the best.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess

SETTINGS = {
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "spin 100": {"GOMP_SPINCOUNT": "100"},
    "spin 300": {"GOMP_SPINCOUNT": "300"},
    "spin 1000": {"GOMP_SPINCOUNT": "1000"},
    "spin 3000": {"GOMP_SPINCOUNT": "3000"},
    "spin 10000": {"GOMP_SPINCOUNT": "10000"},
    "active": {"OMP_WAIT_POLICY": "active"},
    "as we choose": {},  # src/cli/waiting.cc
}


def burn():
    while True:
        pass


def rate(options, setting):
    environment = {key: value for key, value in os.environ.items()
                   if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    command = [options.program, "generate", f"model={options.model}", "prompt=Tell me of the sea.",
               f"max_new_tokens={options.tokens}", f"threads={options.threads}", "--json"]
    done = subprocess.run(command, env={**environment, **setting}, check=True,
                          capture_output=True, text=True)
    return json.loads(done.stdout)["tokens_per_second"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--others", default="0,2")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--raw")
    options = parser.parse_args()
    raw = []
    for others in map(int, options.others.split(",")):
        burners = [multiprocessing.Process(target=burn, daemon=True) for _ in range(others)]
        for burner in burners:
            burner.start()
        rates = {name: [] for name in SETTINGS}
        for _ in range(options.rounds):
            for name, setting in SETTINGS.items():
                rates[name].append(rate(options, setting))
        for burner in burners:
            burner.terminate()
        medians = {name: statistics.median(values) for name, values in rates.items()}
        best = max(medians.values())
        print(f"{options.threads} threads beside {others} others, tokens/s")
        for name, median in medians.items():
            print(f"  {name:<12}{median:8.1f}  ({100 * median / best:3.0f} %)  "
                  f"{min(rates[name]):.1f} to {max(rates[name]):.1f}")
        raw.append({"threads": options.threads, "others": others, "tokens_per_second": rates})
    if options.raw:
        with open(options.raw, "w", encoding="utf-8") as out:
            json.dump(raw, out, indent=1)


if __name__ == "__main__":
    main()
