#!/usr/bin/env python3
"""How long should a thread that waits for work spin before it sleeps? Tokens a second of a program
that generates, by libgomp's setting, on a machine that does nothing else and on a busy one.

    waiting.py --program build/release/jackscrew --model MODEL.gguf [--threads 2] [--rounds 5]
               [--others 0,2,2@2] [--tokens 256] [--settings passive,active] [--raw FILE]

`--others`: how many processes that compute without end share the machine; `2@3`: two that begin three
seconds after the program. Settings alternate within a round, and each figure is the median of the
rounds; in brackets, its share of the best.
"""

import argparse
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import threading

SETTINGS = {
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "spin 100": {"GOMP_SPINCOUNT": "100"},
    "spin 300": {"GOMP_SPINCOUNT": "301"},  # with 300 the program chooses
    "spin 1000": {"GOMP_SPINCOUNT": "1000"},
    "spin 3000": {"GOMP_SPINCOUNT": "3000"},
    "spin 10000": {"GOMP_SPINCOUNT": "10000"},
    "active": {"OMP_WAIT_POLICY": "active"},
    "as we choose": {},  # src/cli/waiting.cc
}


def burn():
    while True:
        pass


class Others:
    """Processes that compute while `with` lasts, from `delay` seconds after its beginning."""

    def __init__(self, text):
        count, _, delay = text.partition("@")
        self.delay = float(delay or 0)
        self.burners = [multiprocessing.Process(target=burn, daemon=True)
                        for _ in range(int(count))]
        for burner in self.burners:
            burner.start()
        self.tell(signal.SIGSTOP)

    def tell(self, number):
        for burner in self.burners:
            os.kill(burner.pid, number)

    def __enter__(self):
        self.timer = threading.Timer(self.delay, self.tell, [signal.SIGCONT])
        if self.delay == 0:
            self.tell(signal.SIGCONT)
        else:
            self.timer.start()

    def __exit__(self, *_):
        self.timer.cancel()
        self.tell(signal.SIGSTOP)

    def end(self):
        self.tell(signal.SIGKILL)


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
    parser.add_argument("--others", default="0,2,2@2")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--raw")
    options = parser.parse_args()
    raw = []
    for text in options.others.split(","):
        others = Others(text)
        rates = {name: [] for name in options.settings.split(",")}
        for _ in range(options.rounds):
            for name, of_round in rates.items():
                with others:
                    of_round.append(rate(options, SETTINGS[name]))
        others.end()
        medians = {name: statistics.median(values) for name, values in rates.items()}
        best = max(medians.values())
        print(f"{options.threads} threads beside {text} others, tokens/s")
        for name, median in medians.items():
            print(f"  {name:<12}{median:8.1f}  ({100 * median / best:3.0f} %)  "
                  f"{min(rates[name]):.1f} to {max(rates[name]):.1f}")
        raw.append({"threads": options.threads, "others": text, "tokens_per_second": rates})
    if options.raw:
        with open(options.raw, "w", encoding="utf-8") as out:
            json.dump(raw, out, indent=1)


if __name__ == "__main__":
    main()
