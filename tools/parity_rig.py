"""Shared by all checks of tools/parity.py: the program, texts and records, steps to compare, the report."""

import argparse
import json
import math
import subprocess
from pathlib import Path
from typing import Callable

import torch
from safetensors.torch import load_file, save_file

import golden
from tiny_models import tiny_tokenizer

TEXTS = {
    "prose": "A jackscrew lifts a house with one hand, a turn at a time. The load is carried by the "
             "thread, and the thread does not slip back when the hand rests.",
    "code": "def clip(g, limit):\n    norm = sum(x * x for x in g) ** 0.5\n"
            "    return [x * min(1, limit / norm) for x in g]\n",
    "numbers": "In 1969, 3 men flew 384,400 km; pi is 3.14159265 and e is 2.71828.",
    "scripts": "Привет, мир! 你好，世界。 こんにちは 👩‍👩‍👧‍👦 naïve café",
    "one_word": "Lantern",
}
RECORDS = [
    ("Define: lever", "a rigid bar that turns about a fulcrum"),
    ("Define: screw", "a thread wound about a cylinder"),
    ("Define: pulley", "a wheel with a groove for a rope"),
    ("Define: wedge", "a block that tapers to a thin edge"),
    ("Define: crank", "an arm set at a right angle to a shaft, by which motion is given to it"),
    ("Define: axle", "a rod on which a wheel turns"),
    ("Define: spring", "a coil that gives way and returns"),
    ("Define: gear", "a toothed wheel that works with others"),
]


def json_lines(text: str) -> list[dict]:
    """The records of JSON Lines. str.splitlines would also split at U+0085 and U+2028."""
    return [json.loads(line) for line in text.split("\n") if line]


def worse(worst: float, figure: float) -> float:
    """The larger of two figures; NaN, which max() may pass over, stays."""
    return worst if math.isnan(worst) or figure <= worst else figure


class Failure(Exception):
    """A check that cannot run; its text is reported as the figure."""


class Report:
    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0

    def line(self, name: str, figure: float, limit: float, remark: str = "") -> None:
        ok = figure <= limit  # NaN fails
        self.count(ok)
        verdict = "ok  " if ok else "FAIL"
        print(f"{verdict} {name:36} {figure:10.3g} {limit:10.3g}  {remark}".rstrip(), flush=True)

    def broken(self, name: str, reason: str) -> None:
        self.count(False)
        print(f"FAIL {name:36} {reason}", flush=True)

    def count(self, ok: bool) -> None:
        self.passed += ok
        self.failed += not ok


class Program:
    def __init__(self, path: Path) -> None:
        self.path = path.resolve()

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run([str(self.path), *arguments], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["(silent)"])[-1]
            raise Failure(f"`jackscrew {arguments[0]}` ended with {done.returncode}: {last}")
        return done.stdout

    def tokens(self, model: Path, data: Path) -> list[dict]:
        return json_lines(self("data", "tokenize", f"model={model}", f"data={data}", "--json"))

    def logits(self, model: Path, data: Path, output: Path, *more: str) -> dict[str, torch.Tensor]:
        self("logits", f"model={model}", f"data={data}", "product=f32", f"output={output}",
             "overwrite=true", *more)
        return load_file(output)

    def loss(self, data: Path, *model: str) -> float:
        return json.loads(self("eval", *model, f"data={data}", "product=f32", "sequence_len=1024",
                               "--json"))["loss"]


# AdamW divides gradients by their size: with an epsilon near 0, one that is nearly 0 moves its weight
# by a full step in a direction that rounding decides, and in one model of hundreds the loss shows it.
# This one is far below most gradients here and far above their rounding.
ADAM_EPSILON = 1e-4


class Rig:
    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.report = Report()
        self.program = Program(options.program)
        self.nf4_file: Path = options.nf4_file.resolve()
        self.gguf: Path = options.model.resolve()
        self.tokenizer_files: Path = options.tokenizers.resolve()
        self.seed: int = options.seed
        self.work = work
        self.loaded: dict[str, object] = {}
        self.texts = {}
        for name, text in TEXTS.items():
            self.texts[name] = work / f"{name}.txt"
            self.texts[name].write_bytes(text.encode())
        self.records = work / "records.jsonl"
        self.records.write_text("".join(json.dumps({"instruction": i, "output": o}) + "\n"
                                        for i, o in RECORDS))

    def guard(self, name: str, check: Callable[[], None]) -> None:
        try:
            check()
        except Failure as failure:
            self.report.broken(name, str(failure))
        except Exception as unexpected:  # one broken check must not hide the others
            self.report.broken(name, f"{type(unexpected).__name__}: {unexpected}".splitlines()[0])

    def ten_steps(self, model: Path, output: Path, *more: str) -> list[dict]:
        self.program("train", f"model={model}", f"data={self.records}", f"output_dir={output}",
                     "method=full", "product=f32", "packing=false", "sequence_len=512",
                     "micro_batch_size=2", f"gradient_accumulation_steps={len(RECORDS) // 2}",
                     f"max_steps={golden.STEPS}", f"warmup_steps={golden.WARMUP_STEPS}",
                     f"learning_rate={golden.LEARNING_RATE}", "lr_scheduler_type=cosine",
                     "weight_decay=0", f"max_grad_norm={golden.MAX_GRAD_NORM}", *more)
        events = json_lines((output / "train_log.jsonl").read_text())
        steps = [e for e in events if e["event"] == "step"]
        if len(steps) != golden.STEPS:
            raise Failure(f"{len(steps)} steps in train_log.jsonl, not {golden.STEPS}")
        return steps

    def three_layers(self, name: str, tied: bool, seed: int) -> tuple[Path, object, dict]:
        """A random Llama of three layers: its directory, its tokenizer, its weights."""
        directory = self.work / name
        tokenizer = tiny_tokenizer(list(TEXTS.values()), 300)
        tokenizer.save_pretrained(directory)
        shape = golden.llama(len(tokenizer), max_position_embeddings=1024, hidden=64, ffn=96,
                             layers=3, heads=4, kv_heads=2, tied=tied)
        golden.write_config(golden.Case(name, self.seed, [], shape), directory)
        weights = golden.random_weights(golden.double_model(directory), seed)
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        return directory, tokenizer, weights

    def same_steps(self, name: str, steps: list[dict], theirs: dict, **limits: float) -> None:
        columns = {"loss": "losses", "grad_norm": "grad_norms", "learning_rate": "learning_rates"}
        for key, limit in limits.items():
            ours = torch.tensor([s[key] for s in steps], dtype=torch.float64)
            self.report.line(f"{name}.10_steps.{key}", error(ours, theirs[columns[key]]), limit)

    def convert(self, source: Path, target: Path, kind: str) -> None:
        done = subprocess.run([str(self.nf4_file), str(source), str(target), kind],
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise Failure(done.stderr.strip())


def as_batch(records: list[dict]) -> dict[str, torch.Tensor]:
    """Records as `data tokenize` prints them, laid end to end like the batches of tools/golden.py."""
    ids, targets, ends = [], [], [0]
    for record in records:
        ids += record["ids"]
        # `train` marks the tokens that are targets; a target belongs to the token before it.
        marked = zip(record["ids"][1:], record["train"][1:])
        targets += [token if train else -1 for token, train in marked] + [-1]
        ends.append(len(ids))
    return {"ids": torch.tensor(ids), "targets": torch.tensor(targets),
            "cu_seqlens": torch.tensor(ends)}


def text_loss(model: torch.nn.Module, ids: list[int]) -> float:
    """Mean negative log-likelihood of every token but the first."""
    tokens = torch.tensor(ids)
    with torch.no_grad():
        logits = model(input_ids=tokens[None]).logits[0]
    return torch.nn.functional.cross_entropy(logits[:-1].double(), tokens[1:]).item()


def error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    if ours.shape != theirs.shape:
        raise Failure(f"shape {tuple(ours.shape)}, not {tuple(theirs.shape)}")
    return golden.relative_error(ours, theirs)
