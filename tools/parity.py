#!/usr/bin/env python3
"""Compares the program with PyTorch, transformers, PEFT, bitsandbytes and others, live.

Run by script/parity, which installs the pinned versions (tools/golden.py names them). Every check
prints one line `ok|FAIL name figure limit`; figures are relative errors in the maximum norm unless
the name says otherwise. A run on fresh random models prints its seed; `--seed` repeats it.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

# Nothing here may be looked up outside: the models are local files.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TQDM_DISABLE"] = "1"

import gguf
import numpy as np
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

import golden
from conversion_parity import check_conversions
from galore_parity import check_galore
from hostile_text import hostile_text
from product_parity import check_products
from quantised_parity import check_quantised
from tiny_models import tiny_tokenizer, write_gguf
from tokenizer_parity import check_tokenizers

MIB = 2**20

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


class Failure(Exception):
    """A check that cannot be carried out; its text becomes the figure."""


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


def eight_bit_states(first: dict):
    """The (name, state) of those parameters that bitsandbytes keeps in 8 bits."""
    return ((name, state) for name, state in first.items()
            if state["state1"].dtype == torch.uint8)


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
        lines = self("data", "tokenize", f"model={model}", f"data={data}", "--json").splitlines()
        return [json.loads(line) for line in lines]

    def logits(self, model: Path, data: Path, output: Path, *more: str) -> dict[str, torch.Tensor]:
        self("logits", f"model={model}", f"data={data}", "product=f32", f"output={output}", *more)
        return load_file(output)

    def loss(self, data: Path, *model: str) -> float:
        return json.loads(self("eval", *model, f"data={data}", "product=f32", "sequence_len=1024",
                               "--json"))["loss"]


class Parity:
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

    # What transformers makes of the GGUF file, loaded once.

    def reference_model(self) -> torch.nn.Module:
        if "model" not in self.loaded:
            self.loaded["model"] = AutoModelForCausalLM.from_pretrained(
                self.gguf.parent, gguf_file=self.gguf.name, dtype=torch.float32,
                attn_implementation="eager").eval()
        return self.loaded["model"]

    def reference_tokenizer(self) -> AutoTokenizer:
        if "tokenizer" not in self.loaded:
            tokenizer = AutoTokenizer.from_pretrained(self.gguf.parent, gguf_file=self.gguf.name)
            # transformers reads the vocabulary from a GGUF but not `tokenizer.ggml.pre`; SmolLM2's
            # own tokenizer.json splits digits first, and so does llama.cpp.
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
            self.loaded["tokenizer"] = tokenizer
        return self.loaded["tokenizer"]

    # The checks.

    def same_ids(self, name: str, ours: list[int], theirs: list[int], show: Callable) -> None:
        differing = sum(a != b for a, b in zip(ours, theirs)) + abs(len(ours) - len(theirs))
        remark = f"of {len(theirs)} ids"
        if differing:
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b),
                      min(len(ours), len(theirs)))
            begin = max(0, at - 2)
            remark += (f"; first at {at}: ours {show(ours[begin:at + 4])}, "
                       f"theirs {show(theirs[begin:at + 4])}")
        self.report.line(name, differing, 0, remark)

    def tiny(self) -> None:
        """Fresh random models: logits, then the losses of ten training steps."""
        rng = random.Random(self.seed)
        shapes = {
            "gqa_tied": dict(hidden=64, ffn=172, layers=3, heads=8, kv_heads=2, tied=True),
            "mha_untied": dict(hidden=48, ffn=100, layers=2, heads=3, kv_heads=3, tied=False),
            "linear": dict(hidden=48, ffn=128, layers=2, heads=4, kv_heads=2, tied=False,
                           rope_parameters={"rope_type": "linear", "rope_theta": 10000.0,
                                            "factor": rng.uniform(1.5, 4)}),
            "llama3": dict(hidden=64, ffn=96, layers=2, heads=4, kv_heads=1, tied=True,
                           rope_parameters={"rope_type": "llama3", "rope_theta": 500.0,
                                            "factor": rng.uniform(4, 32), "low_freq_factor": 1.0,
                                            "high_freq_factor": 4.0,
                                            "original_max_position_embeddings": 64}),
            "odd": dict(hidden=45, ffn=rng.randrange(61, 99, 2), layers=2, heads=5, kv_heads=1,
                        tied=False, head_dim=rng.randrange(6, 54, 2)),
            "mistral": dict(hidden=64, ffn=96, layers=2, heads=4, kv_heads=2, tied=False,
                            head_dim=24, sliding_window=rng.randrange(8, 40)),
            "qwen2": dict(hidden=64, ffn=96, layers=3, heads=4, kv_heads=2, tied=True,
                          rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0,
                                           "factor": rng.uniform(2, 8),
                                           "original_max_position_embeddings": 64}),
            "qwen3": dict(hidden=48, ffn=96, layers=3, heads=4, kv_heads=1, tied=False,
                          head_dim=rng.randrange(8, 32, 2), use_sliding_window=True,
                          sliding_window=rng.randrange(8, 40), max_window_layers=1),
        }
        for name, shape in shapes.items():
            directory = self.work / f"tiny_{name}"
            self.guard(f"tiny.{name}", lambda: self.tiny_model(name, shape, directory, rng))

    def tiny_model(self, name: str, shape: dict, directory: Path, rng: random.Random) -> None:
        tokenizer = tiny_tokenizer(list(TEXTS.values()), 280 + rng.randrange(40))
        tokenizer.save_pretrained(directory)
        config = golden.llama(len(tokenizer), max_position_embeddings=512, **shape)
        kind = name if name in ("mistral", "qwen2", "qwen3") else "llama"
        golden.write_config(golden.Case(name, self.seed, [], config, model_type=kind), directory)
        model = golden.double_model(directory)
        weights = golden.random_weights(model, rng.randrange(2**31))
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        golden.load_weights(model, weights)

        text = self.work / "tiny.txt"
        text.write_bytes((TEXTS["prose"][:90] + TEXTS["scripts"]).encode())
        ours = self.program.logits(directory, text, self.work / "tiny.safetensors")
        self.same_ids(f"tiny.{name}.ids", ours["ids"].tolist(),
                      tokenizer(text.read_text()).input_ids, tokenizer.convert_ids_to_tokens)
        with torch.no_grad(), golden.DoublePrecision():
            theirs = model(input_ids=ours["ids"][None].long(), use_cache=False).logits[0]
        self.report.line(f"tiny.{name}.logits", error(ours["logits"], theirs), 1e-5)

        self.tiny_training(name, directory, model)

    def tiny_training(self, name: str, directory: Path, model: torch.nn.Module) -> None:
        """Ten steps; every step sees every record, so that the order of records does not matter."""
        steps = self.ten_steps(directory, directory / "trained")
        with golden.DoublePrecision():
            theirs = golden.train(model, as_batch(self.program.tokens(directory, self.records)),
                                  weight_decay=0.0)
        self.same_steps(f"tiny.{name}", steps, theirs, loss=1e-4, grad_norm=1e-3, learning_rate=1e-6)
        self.exported(name, directory / "trained", type(model))

    def exported(self, name: str, directory: Path, architecture: type) -> None:
        """What `train` wrote, read by transformers."""
        ours = self.program.logits(directory, self.texts["prose"], self.work / "tiny.safetensors")
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                                     attn_implementation="eager").eval()
        if type(model) is not architecture:
            raise Failure(f"transformers reads a {type(model).__name__}")
        with torch.no_grad():
            theirs = model(input_ids=ours["ids"][None].long(), use_cache=False).logits[0]
        self.report.line(f"tiny.{name}.exported", error(ours["logits"], theirs), 1e-4)

    def gguf_architectures(self) -> None:
        """GGUF files of other architectures, under the names that the gguf package gives tensors."""
        rng = random.Random(self.seed)
        for name in ("qwen2", "qwen3"):
            directory = self.work / f"gguf_{name}"
            tokenizer = tiny_tokenizer(list(TEXTS.values()), 300)
            tokenizer.save_pretrained(directory)
            config = golden.llama(len(tokenizer), 64, 96, 2, 4, 2, tied=True, head_dim=32)
            golden.write_config(golden.Case(name, self.seed, [], config, model_type=name), directory)
            model = golden.double_model(directory)
            weights = golden.random_weights(model, rng.randrange(2**31))
            golden.load_weights(model, weights)
            write_gguf(self.work / f"{name}.gguf", name, config, weights, tokenizer)
            ours = self.program.logits(self.work / f"{name}.gguf", self.texts["prose"],
                                       self.work / "tiny.safetensors")
            # Not from the file: transformers does not read `attention.key_length` of these.
            with torch.no_grad(), golden.DoublePrecision():
                theirs = model(input_ids=ours["ids"][None].long(), use_cache=False).logits[0]
            self.report.line(f"gguf.{name}.logits", error(ours["logits"], theirs), 1e-5)

    def gguf_types(self) -> None:
        """Tensors of every type that the gguf package decodes, of random bytes."""
        rng = np.random.default_rng(self.seed)
        path = self.work / "types.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        exact = {}
        for kind in gguf.GGMLQuantizationType:
            elements, size = gguf.GGML_QUANT_SIZES[kind]
            blocks = rng.integers(0, 256, (512, 4 * size), dtype=np.uint8)
            try:
                with np.errstate(all="ignore"):
                    values = gguf.quants.dequantize(blocks, kind)
            except NotImplementedError:
                continue
            writer.add_tensor(kind.name, blocks, raw_dtype=kind)
            exact[kind.name] = torch.from_numpy(values.astype(np.float32))
            assert values.shape == (512, 4 * elements)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        self.convert(path, self.work / "types", "f32")
        decoded = load_file(self.work / "types" / "model.safetensors")
        for name, theirs in exact.items():
            ours = decoded[name]
            same = ours.view(torch.int32) == theirs.view(torch.int32)
            same |= ours.isnan() & theirs.isnan()  # of which scale is one, with other bits perhaps
            self.report.line(f"gguf.{name}", (~same).sum().item(), 0, "elements with other bits")

    def ten_steps(self, model: Path, output: Path, *more: str) -> list[dict]:
        self.program("train", f"model={model}", f"data={self.records}", f"output_dir={output}",
                     "method=full", "product=f32", "packing=false", "sequence_len=512",
                     "micro_batch_size=2", f"gradient_accumulation_steps={len(RECORDS) // 2}",
                     f"max_steps={golden.STEPS}", f"warmup_steps={golden.WARMUP_STEPS}",
                     f"learning_rate={golden.LEARNING_RATE}", "lr_scheduler_type=cosine",
                     "weight_decay=0", f"max_grad_norm={golden.MAX_GRAD_NORM}", *more)
        log = (output / "train_log.jsonl").read_text()
        events = [json.loads(line) for line in log.splitlines()]
        steps = [e for e in events if e["event"] == "step"]
        if len(steps) != golden.STEPS:
            raise Failure(f"{len(steps)} steps in train_log.jsonl, not {golden.STEPS}")
        return steps

    def states(self) -> None:
        """Ten steps with 8-bit states beside those of bitsandbytes, on the CPU."""
        try:
            import bitsandbytes
        except ImportError as missing:
            print(f"skip states: {missing} (script/setup --oracle does not install it)", flush=True)
            return
        directory, output = self.work / "tiny_states", self.work / "states"
        tokenizer = tiny_tokenizer(list(TEXTS.values()), 300)
        tokenizer.save_pretrained(directory)
        config = golden.llama(len(tokenizer), max_position_embeddings=512, hidden=64, ffn=172,
                              layers=2, heads=8, kv_heads=8, tied=False)
        golden.write_config(golden.Case("states", self.seed, [], config), directory)
        weights = golden.random_weights(golden.double_model(directory), self.seed)
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        batch = as_batch(self.program.tokens(directory, self.records))

        def reference() -> torch.nn.Module:
            return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                                        attn_implementation="eager")

        steps = self.ten_steps(directory, output, "optimizer=adamw_8bit", "save_steps=1",
                               "save_total_limit=0")
        model = reference()
        optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=golden.LEARNING_RATE,
                                                 betas=(0.9, 0.999), eps=1e-8, weight_decay=0)
        first = {}

        def keep_first(*_) -> None:
            if not first:
                first.update({name: {"gradient": parameter.grad.clone()} |
                              {key: value.clone() for key, value in
                               optimizer.state[parameter].items() if torch.is_tensor(value)}
                              for name, parameter in model.named_parameters()})

        optimizer.register_step_post_hook(keep_first)
        theirs = golden.train(model, batch, optimizer=optimizer)["losses"]
        exact = golden.train(reference(), batch, weight_decay=0.0)["losses"]
        ours = torch.tensor([s["loss"] for s in steps], dtype=torch.float64)
        self.report.line("states.10_steps.loss", error(ours, theirs), 1e-3,
                         f"f32 states are {error(exact, theirs):.2g} away")
        saved = load_file(output / "checkpoint-1" / "state.safetensors")
        for moment, key in (("m", "1"), ("v", "2")):
            self.first_states(moment, key, saved, first)
        self.first_codes(saved, first)
        self.first_rounding(saved, first)

    def first_states(self, moment: str, key: str, saved: dict, first: dict) -> None:
        """The moments after one step, by the widest gap between two codes: the CPU code of
        bitsandbytes 0.50 finds codes with a table that is off by several below a thousandth of a
        block's largest, by one now and then above."""
        scale_error, value_error = 0.0, 0.0
        for name, state in eight_bit_states(first):
            scale = state[f"absmax{key}"].double()
            scale_error = max(scale_error, error(saved[f"{name}.{moment}_absmax"], scale))
            values = state[f"qmap{key}"].double()
            ours, theirs = (values[codes.flatten().long()] for codes in
                            (saved[f"{name}.{moment}"], state[f"state{key}"]))
            learnt = (scale > 0).repeat_interleave(256)[:len(ours)]
            value_error = max(value_error, (ours - theirs)[learnt].abs().max().item())
        self.report.line(f"states.1_step.{moment}_absmax", scale_error, 1e-5)
        self.report.line(f"states.1_step.{moment}_values", value_error, 0.0142,
                         "of a block's largest")

    def first_codes(self, saved: dict, first: dict) -> None:
        """Codes of first moments, from a hundredth of a block's largest on (see above)."""
        apart = []
        for name, state in eight_bit_states(first):
            values = state["qmap1"].double()
            ours, theirs = (codes.flatten().long() for codes in
                            (saved[f"{name}.m"], state["state1"]))
            learnt = (state["absmax1"] > 0).repeat_interleave(256)[:len(ours)]
            apart.append((ours - theirs).abs()[learnt & (values[theirs].abs() > 0.01)])
        apart = torch.cat(apart)
        self.report.line("states.1_step.m_codes", (apart > 0).double().mean().item(), 0.01,
                         f"of {len(apart)} differ, by {apart.max().item()} at most")

    def first_rounding(self, saved: dict, first: dict) -> None:
        """Second moments are rounded at random where bitsandbytes rounds to nearest: each is one of
        the two codes around its exact value, and the sum of what rounding adds is that of unbiased
        rounding, within 5 standard deviations."""
        outside, compared, added, variance = 0, 0, 0.0, 0.0
        for name, state in eight_bit_states(first):
            values = state["qmap2"].double()
            scale = state["absmax2"].double().repeat_interleave(256)[:state["gradient"].numel()]
            square = 0.001 * state["gradient"].flatten().double() ** 2  # (1 - beta2) g^2
            exact = (square / scale)[scale > 0].clamp(max=1)
            codes = saved[f"{name}.v"].flatten().long()[scale > 0]
            above = torch.searchsorted(values, exact).clamp(1, len(values) - 1)
            lower, upper = values[above - 1], values[above]
            # Gradients agree to 1e-5 of the block's largest: a value so near a code may have been on
            # its other side.
            slack = (exact.sqrt() + 1e-5) ** 2 - exact
            rounded = values[codes]
            outside += int(((rounded < lower - slack) | (rounded > upper + slack)).sum())
            compared += len(exact)
            # What is not 0 never becomes 0, so below the smallest code rounding is not unbiased.
            unbiased = lower > 0
            added += (rounded - exact)[unbiased].sum().item()
            variance += ((upper - exact) * (exact - lower))[unbiased].sum().item()
        self.report.line("states.1_step.v_codes", outside, 0,
                         f"of {compared} are not beside their value")
        self.report.line("states.1_step.v_bias", abs(added) / variance ** 0.5, 5,
                         "standard deviations of unbiased rounding")

    def tokens(self) -> None:
        """Megabytes of hostile text through SmolLM2's tokenizer."""
        text = hostile_text(5_500_000)
        path = self.work / "hostile.txt"
        path.write_bytes(text.encode())
        tokenizer = self.reference_tokenizer()
        records = self.program.tokens(self.gguf, path)
        if len(records) != 1:
            raise Failure(f"{len(records)} records from one text file")
        self.same_ids("smollm2.ids", records[0]["ids"], tokenizer(text).input_ids,
                      tokenizer.convert_ids_to_tokens)

    def tokenizers(self) -> None:
        """Tokenizers of every family, on megabytes of hostile text."""
        check_tokenizers(self, self.tokenizer_files)

    def chats(self) -> None:
        """Random conversations through SmolLM2's own chat template."""
        rng = random.Random(self.seed)
        text = hostile_text(200_000, seed=self.seed).replace("<|", "< |")

        def piece() -> str:
            begin = rng.randrange(len(text))
            return text[begin:begin + rng.randrange(200)]

        conversations = []
        for _ in range(200):
            messages = [{"role": "system", "content": piece()}] if rng.random() < 0.5 else []
            for _ in range(rng.randrange(1, 4)):
                # We cut the text where an answer begins, as it is when the model generates; behind
                # a letter that makes no difference.
                messages += [{"role": "user", "content": piece()},
                             {"role": "assistant", "content": "A" + piece()}]
            conversations.append(messages)
        path = self.work / "conversations.jsonl"
        path.write_text("".join(json.dumps({"messages": m}) + "\n" for m in conversations))
        tokenizer = self.reference_tokenizer()
        ours = [record["ids"] for record in self.program.tokens(self.gguf, path)]
        theirs = [tokenizer.apply_chat_template(m, return_dict=False) for m in conversations]
        self.same_ids("smollm2.chats", sum(ours, []), sum(theirs, []),
                      tokenizer.convert_ids_to_tokens)

    def logits(self) -> None:
        """SmolLM2's logits of five texts."""
        for name, path in self.texts.items():
            ours = self.program.logits(self.gguf, path, self.work / "logits.safetensors")
            with torch.no_grad():
                theirs = self.reference_model()(ours["ids"][None].long()).logits[0]
            self.report.line(f"smollm2.logits.{name}", error(ours["logits"], theirs), 1e-4,
                             f"{len(ours['ids'])} tokens")

    def short_training(self, method: str, learning_rate: str, *more: str, name: str = "") -> Path:
        name = name or method
        output = self.work / name
        self.program("train", f"model={self.gguf}", f"data={self.records}", f"method={method}",
                     "product=f32", "packing=false", "sequence_len=128", "micro_batch_size=4",
                     "max_steps=2", "warmup_steps=0", "lr_scheduler_type=constant",
                     f"learning_rate={learning_rate}", f"output_dir={output}", *more)
        self.resident_memory(name, output)
        return output

    def resident_memory(self, method: str, output: Path) -> None:
        """The ledger's peak beside what the system counted as resident anonymous memory."""
        events = [json.loads(line) for line in (output / "train_log.jsonl").open()]
        memory = next(event for event in events if event["event"] == "memory")
        booked, resident = memory["device"]["peak"], memory["resident_peak"]
        self.report.line(f"{method}.resident", abs(resident - booked) / MIB,
                         0.05 * booked / MIB + 64,
                         f"MiB apart; {booked / MIB:.0f} booked, {resident / MIB:.0f} resident")

    def compare_loss(self, name: str, ids: list[int], model: torch.nn.Module, *ours: str) -> None:
        theirs = text_loss(model, ids)
        figure = abs(self.program.loss(self.texts["prose"], *ours) - theirs) / theirs
        self.report.line(f"{name}.loss", figure, 1e-5, f"loss {theirs:.5f}")
        # A model that training left as it was would pass the line above and show nothing.
        moved = abs(theirs - text_loss(self.reference_model(), ids))
        self.report.line(f"{name}.unmoved", float(moved < 1e-3), 0,
                         f"loss moved by {moved:.2g} in 2 steps")

    def full(self) -> None:
        """Two steps on all parameters; the exported directory, opened by transformers."""
        output = self.short_training("full", "1e-4")
        tokenizer = AutoTokenizer.from_pretrained(output)
        hostile = hostile_text(20_000, seed=2)
        self.same_ids("full.ids", tokenizer(hostile).input_ids,
                      self.reference_tokenizer()(hostile).input_ids,
                      tokenizer.convert_ids_to_tokens)
        model = AutoModelForCausalLM.from_pretrained(output, dtype=torch.float32,
                                                     attn_implementation="eager").eval()
        self.compare_loss("full", tokenizer(TEXTS["prose"]).input_ids, model, f"model={output}")
        shutil.rmtree(output)

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

    def lora(self) -> None:
        """Two steps of LoRA; the adapter directory, opened by PEFT over the base model."""
        ids = self.reference_tokenizer()(TEXTS["prose"]).input_ids
        for name, *settings in (
                ("lora",),
                ("lora_patterns", r"lora_target=.*layers\.\d*[02]\.(self_attn|mlp)\.(q|v|up)_proj",
                 r"rank_pattern=up_proj=4,layers\.0\..*=2", "alpha_pattern=q_proj=5",
                 "use_rslora=true", "lora_b_learning_rate_ratio=2"),
                ("dora", "use_dora=true", "rank_pattern=down_proj=3"),
                ("lora_saved", "modules_to_save=embed_tokens", "lora_target=q_proj")):
            rate = "5e-4" if name == "lora_saved" else "5e-3"
            output = self.short_training("lora", rate, "lora_r=8", *settings, name=name)
            base = AutoModelForCausalLM.from_pretrained(
                self.gguf.parent, gguf_file=self.gguf.name, dtype=torch.float32,
                attn_implementation="eager")
            model = PeftModel.from_pretrained(base, output, autocast_adapter_dtype=False).eval()
            self.compare_loss(name, ids, model, f"model={self.gguf}", f"adapter={output}")

    def adapters(self) -> None:
        """Adapters of every kind that PEFT began: ten steps of both, then ours opened by PEFT."""
        rng = random.Random(self.seed)
        expression = r"model\.layers\.\d+\.(self_attn\.(q|k)|mlp\.(up|down))_proj"
        everywhere = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        cases = {
            "plain": (True, "f32", dict(target_modules=everywhere)),
            # With alpha / sqrt(rank) as large as the others' alpha / rank: at two to three times that the
            # loss goes up and down, and a difference in the last place grows a hundredfold in ten steps.
            "patterns": (False, "f32", dict(target_modules=expression, use_rslora=True, lora_alpha=3,
                                            rank_pattern={"down_proj": 3, r"layers\.0\..*": 2},
                                            alpha_pattern={"q_proj": 4})),
            "dora": (True, "f32", dict(target_modules=everywhere, use_dora=True)),
            "dora_nf4": (False, "nf4", dict(target_modules=everywhere, use_dora=True)),
            "saved": (False, "nf4", dict(target_modules=["v_proj"],
                                         modules_to_save=["embed_tokens", "lm_head"])),
            "saved_tied": (True, "f32", dict(target_modules=expression, use_dora=True,
                                             modules_to_save=["embed_tokens"],
                                             ensure_weight_tying=True)),
        }
        for name, (tied, storage, config) in cases.items():
            self.guard(f"adapters.{name}",
                       lambda: self.adapter(f"adapters.{name}", tied, storage, config, rng))

    def adapter(self, name: str, tied: bool, storage: str, config: dict,
                rng: random.Random) -> None:
        from peft import LoraConfig, get_peft_model
        from peft.optimizers import create_loraplus_optimizer

        directory, tokenizer, weights = self.three_layers(name, tied, rng.randrange(2**31))
        # What PEFT reads: the values that the base has in its storage.
        decoded = directory
        if storage == "nf4":
            packed, decoded = self.work / f"{name}.packed", self.work / f"{name}.decoded"
            linears = self.work / f"{name}.linears"
            linears.mkdir()
            save_file({n: w for n, w in weights.items() if n.endswith("_proj.weight")},
                      linears / "model.safetensors", metadata={"format": "pt"})
            self.convert(linears, packed, storage)
            self.convert(packed, decoded, "f32")
            values = weights | load_file(decoded / "model.safetensors")
            save_file(values, decoded / "model.safetensors", metadata={"format": "pt"})
            shutil.copy(directory / "config.json", decoded)

        def base() -> torch.nn.Module:
            model = golden.double_model(directory)
            golden.load_weights(model, load_file(decoded / "model.safetensors"))
            return model

        begun, output = self.work / f"{name}.begun", self.work / f"{name}.trained"
        model = get_peft_model(base().float(), LoraConfig(task_type="CAUSAL_LM",
                                                          **(dict(r=4, lora_alpha=8) | config)))
        generator = torch.Generator().manual_seed(rng.randrange(2**31))
        with torch.no_grad():
            for key, parameter in sorted(model.named_parameters()):
                if ".lora_B" in key:  # it would begin as 0, and show little
                    parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        model.save_pretrained(begun)
        steps = self.ten_steps(directory, output, "method=lora", f"adapter={begun}",
                               f"storage={storage}", "lora_b_learning_rate_ratio=4")
        model = PeftModel.from_pretrained(base(), begun, is_trainable=True,
                                          autocast_adapter_dtype=False).double()
        optimizer = create_loraplus_optimizer(model, torch.optim.AdamW, lr=golden.LEARNING_RATE,
                                              loraplus_lr_ratio=4.0, betas=(0.9, 0.999), eps=1e-8)
        batch = as_batch(self.program.tokens(directory, self.records))
        with golden.DoublePrecision():
            theirs = golden.train(model, batch, optimizer=optimizer)
        self.same_steps(name, steps, theirs, loss=1e-5, grad_norm=1e-3)
        model = PeftModel.from_pretrained(base(), output, autocast_adapter_dtype=False).double()
        ids = tokenizer(TEXTS["prose"]).input_ids
        with golden.DoublePrecision():
            loss = text_loss(model.eval(), ids)
        ours = self.program.loss(self.texts["prose"], f"model={directory}", f"adapter={output}",
                                 f"storage={storage}")
        self.report.line(f"{name}.opened", abs(ours - loss) / loss, 1e-5, f"loss {loss:.5f}")

    def pissa(self) -> None:
        """Adapters that begin as principal parts of their weights: ten steps of both, ours opened by PEFT."""
        from peft import LoraConfig, get_peft_model

        output = self.work / "pissa.trained"
        directory, tokenizer, weights = self.three_layers("pissa", True, self.seed)
        # Singular values far from each other: vectors of near ones turn into each other by rounding, and
        # AdamW does not learn the same in another basis.
        for name, weight in weights.items():
            if name.endswith("_proj.weight"):
                u, values, v = torch.linalg.svd(weight.double(), full_matrices=False)
                values = values[0] * 0.93 ** torch.arange(len(values), dtype=torch.float64)
                weights[name] = (u * values @ v).to(weight.dtype)
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})

        def base() -> torch.nn.Module:
            model = golden.double_model(directory)
            golden.load_weights(model, weights)
            return model

        # At a rank of half the width our subspaces are all of it, and the singular vectors exact.
        steps = self.ten_steps(directory, output, "method=lora", "lora_init=pissa", "lora_rank=32",
                               "lora_alpha=4")
        config = LoraConfig(task_type="CAUSAL_LM", r=32, lora_alpha=4, target_modules="all-linear",
                            init_lora_weights="pissa")
        model = get_peft_model(base().float(), config).double()
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=golden.LEARNING_RATE, betas=(0.9, 0.999), eps=1e-8,
                                      weight_decay=0)
        batch = as_batch(self.program.tokens(directory, self.records))
        with golden.DoublePrecision():
            theirs = golden.train(model, batch, optimizer=optimizer)
        self.same_steps("pissa", steps, theirs, loss=1e-5, grad_norm=1e-3)
        ids = tokenizer(TEXTS["prose"]).input_ids
        opened = PeftModel.from_pretrained(base(), output, autocast_adapter_dtype=False).double()
        with golden.DoublePrecision():
            loss, direct = text_loss(opened.eval(), ids), text_loss(model.eval(), ids)
        self.report.line("pissa.10_steps.trained", abs(direct - loss) / loss, 1e-5)
        worst = moved = 0.0
        for path, module in model.named_modules():
            if hasattr(module, "lora_A"):
                other = opened.get_submodule(path)
                trained = module.base_layer.weight + module.get_delta_weight("default")
                ours = other.base_layer.weight + other.get_delta_weight("default")
                worst = max(worst, (ours - trained).abs().max().item())
                moved = max(moved, (trained - other.base_layer.weight).abs().max().item())
        # AdamW takes whole steps where a gradient is nearly 0, and its rounding then says which way.
        self.report.line("pissa.10_steps.weights", worst / moved, 0.1,
                         "largest difference, of the largest that one moved")
        ours = self.program.loss(self.texts["prose"], f"model={directory}", f"adapter={output}")
        self.report.line("pissa.opened", abs(ours - loss) / loss, 1e-5, f"loss {loss:.5f}")

    def prompt(self) -> None:
        """A soft prompt that PEFT began: ten steps of both, then ours opened by PEFT."""
        from peft import PromptTuningConfig, get_peft_model

        tokens = 6
        begun, output = self.work / "prompt.begun", self.work / "prompt.trained"
        directory, tokenizer, weights = self.three_layers("prompt", True, self.seed)

        def base() -> torch.nn.Module:
            model = golden.double_model(directory)
            golden.load_weights(model, weights)
            return model

        torch.manual_seed(self.seed)
        config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=tokens,
                                    prompt_tuning_init="SAMPLE_VOCAB")
        get_peft_model(base().float(), config).save_pretrained(begun)
        steps = self.ten_steps(directory, output, "method=prompt", f"adapter={begun}")
        # PEFT goes on with no prompt that it has read.
        model = get_peft_model(base(), config).double()
        begin = load_file(begun / "adapter_model.safetensors")["prompt_embeddings"]
        with torch.no_grad():
            model.prompt_encoder["default"].embedding.weight.copy_(begin)
        batch = as_batch(self.program.tokens(directory, self.records))
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=golden.LEARNING_RATE, betas=(0.9, 0.999), eps=1e-8,
                                      weight_decay=0)
        with golden.DoublePrecision():
            theirs = golden.train(AfterPrompt(model, tokens), batch, optimizer=optimizer)
        self.same_steps("prompt", steps, theirs, loss=1e-5, grad_norm=1e-3)
        moved = load_file(output / "adapter_model.safetensors")["prompt_embeddings"].double()
        self.report.line("prompt.10_steps.weights",
                         error(moved - begin, trained[0].detach() - begin), 1e-3)
        model = PeftModel.from_pretrained(base(), output, autocast_adapter_dtype=False).double()
        with golden.DoublePrecision():
            loss = text_loss(AfterPrompt(model, tokens).eval(), tokenizer(TEXTS["prose"]).input_ids)
        ours = self.program.loss(self.texts["prose"], f"model={directory}", f"adapter={output}")
        self.report.line("prompt.opened", abs(ours - loss) / loss, 1e-5, f"loss {loss:.5f}")

    def nf4(self) -> None:
        """Weights in NF4 and FP4: files of bitsandbytes read by us, those in NF4 of ours by bitsandbytes."""
        try:
            import bitsandbytes.functional as bnb
        except ImportError as reason:
            print(f"skip nf4: bitsandbytes cannot be imported ({reason})", flush=True)
            return
        generator = torch.Generator().manual_seed(self.seed)
        # Widths that are odd, or multiples of 64: bitsandbytes' CPU kernel (0.50.2) takes the blocks
        # of any other width to begin anew in each row, which its quantising does not.
        matrices = {f"{rows}x{cols}": torch.randn(rows, cols, generator=generator)
                    for rows, cols in ((3, 21), (96, 64), (129, 333), (300, 1024))}
        for kind in ("nf4", "nf4_double", "fp4", "fp4_double"):
            theirs, original, ours = (self.work / f"{kind}.{n}" for n in ("bnb", "f32", "ours"))
            tensors, exact = {}, {}
            for name, matrix in matrices.items():
                codes, state = bnb.quantize_4bit(matrix, blocksize=64, quant_type=kind[:3],
                                                 compress_statistics=kind.endswith("_double"))
                tensors[name] = codes
                tensors |= {f"{name}.{key}": value
                            for key, value in state.as_dict(packed=True).items()}
                exact[name] = bnb.dequantize_4bit(codes, state)
            for directory, content in ((theirs, tensors), (original, matrices)):
                directory.mkdir()
                save_file(content, directory / "model.safetensors", metadata={"format": "pt"})
            self.convert(theirs, ours, "f32")
            decoded = load_file(ours / "model.safetensors")
            # Their nested map is another machine's by a few units in the last place.
            limit = 1e-6 if kind.endswith("_double") else 0
            self.report.line(f"{kind}.decoded", max(error(decoded[n], exact[n]) for n in matrices),
                             limit, "their file, by us and by them")
            if kind.startswith("fp4"):
                continue
            shutil.rmtree(ours)
            self.convert(original, ours, kind)
            encoded = load_file(ours / "model.safetensors")
            again = self.work / f"{kind}.again"
            self.convert(ours, again, "f32")
            decoded = load_file(again / "model.safetensors")
            differing = sum((encoded[n] != tensors[n]).sum().item() for n in matrices)
            self.report.line(f"{kind}.codes", differing, 0, "bytes unlike theirs")
            figures = []
            for name in matrices:
                parts = {key[len(name) + 1:]: value for key, value in encoded.items()
                         if key.startswith(f"{name}.")}
                state = bnb.QuantState.from_dict(parts, device=torch.device("cpu"))
                figures.append(error(decoded[name], bnb.dequantize_4bit(encoded[name], state)))
            self.report.line(f"{kind}.encoded", max(figures), limit, "our file, by us and by them")
        self.nf4_model(bnb)

    def convert(self, source: Path, target: Path, kind: str) -> None:
        done = subprocess.run([str(self.nf4_file), str(source), str(target), kind],
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise Failure(done.stderr.strip())

    def nf4_model(self, bnb) -> None:
        """The logits of a model whose linears bitsandbytes quantised."""
        directory = self.work / "tiny_nf4"
        tokenizer = tiny_tokenizer(list(TEXTS.values()), 300)
        tokenizer.save_pretrained(directory)
        config = golden.llama(len(tokenizer), max_position_embeddings=512, hidden=128,
                              ffn=192, layers=2, heads=4, kv_heads=2, tied=False)
        golden.write_config(golden.Case("nf4", self.seed, [], config), directory)
        model = golden.double_model(directory)
        weights = golden.random_weights(model, self.seed)
        tensors = {}
        for name, matrix in weights.items():
            if not name.endswith("_proj.weight"):
                tensors[name] = matrix
                continue
            tensors[name], state = bnb.quantize_4bit(matrix.float(), blocksize=64, quant_type="nf4",
                                                     compress_statistics=True)
            tensors |= {f"{name}.{key}": value for key, value in state.as_dict(packed=True).items()}
            weights[name] = bnb.dequantize_4bit(tensors[name], state).to(matrix.dtype)
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        golden.load_weights(model, weights)
        path = directory / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": {
            "quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True}}))
        ours = self.program.logits(directory, self.texts["prose"], self.work / "nf4.safetensors")
        with torch.no_grad(), golden.DoublePrecision():
            theirs = model(input_ids=ours["ids"][None].long(), use_cache=False).logits[0]
        self.report.line("nf4.logits", error(ours["logits"], theirs), 1e-5)

    def quantised(self) -> None:
        """Files of the packages that quantise."""
        check_quantised(self.report, self.program, self.work, self.seed,
                        Path(sys.prefix) / "producers")

    def products(self) -> None:
        """Products of bytes and of four bits, against an emulation with the same random numbers."""
        check_products(self.report, self.program, self.work, self.seed)

    def galore(self) -> None:
        """Twenty steps in subspaces, beside the packages of GaLore's authors."""
        check_galore(self.report, self.program, self.work, self.seed, self.records, as_batch)

    def conversions(self) -> None:
        """Merged models against PEFT's, GGUF files against the package gguf and transformers."""
        check_conversions(self.report, self.program, self.work, self.seed,
                          Path(sys.prefix) / "producers", self.gguf,
                          Path(sys.prefix).parent / "llama_cpp/bin/python")

    def guard(self, name: str, check: Callable[[], None]) -> None:
        try:
            check()
        except Failure as failure:
            self.report.broken(name, str(failure))
        except Exception as unexpected:  # one broken check must not hide the others
            self.report.broken(name, f"{type(unexpected).__name__}: {unexpected}".splitlines()[0])


def as_batch(records: list[dict]) -> dict[str, torch.Tensor]:
    """Records as `data tokenize` prints them, laid end to end like the batches of tools/golden.py."""
    ids, targets, ends = [], [], [0]
    for record in records:
        ids += record["ids"]
        # `train` marks the tokens that are learnt; the token before one has it as its target.
        marked = zip(record["ids"][1:], record["train"][1:])
        targets += [token if train else -1 for token, train in marked] + [-1]
        ends.append(len(ids))
    return {"ids": torch.tensor(ids), "targets": torch.tensor(targets),
            "cu_seqlens": torch.tensor(ends)}


class AfterPrompt(torch.nn.Module):
    """A model with a soft prompt, whose logits are those of the text alone."""

    def __init__(self, model: torch.nn.Module, tokens: int) -> None:
        super().__init__()
        self.model, self.tokens = model, tokens

    def forward(self, **inputs):
        out = self.model(**inputs)
        out.logits = out.logits[:, self.tokens:]
        return out


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=Path, required=True, help="the jackscrew program")
    parser.add_argument("--model", type=Path, required=True, help="SmolLM2-135M-Instruct as GGUF")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--nf4_file", type=Path, required=True, help="the program tools/nf4_file.cc")
    parser.add_argument("--tokenizers", type=Path, required=True,
                        help="the directory that script/setup --tokenizers makes")
    names = ["tiny", "gguf_architectures", "gguf_types", "states", "tokens", "tokenizers", "chats",
             "logits", "full", "lora", "adapters", "pissa", "prompt", "nf4", "quantised", "products",
             "galore", "conversions"]
    parser.add_argument("--only", choices=names, action="append",
                        help="run this check only (repeatable)")
    options = parser.parse_args()

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    print(f"seed {options.seed}; torch {torch.__version__}")
    # Beside the caches rather than in /tmp: an exported model takes half a gigabyte.
    scratch = Path(__file__).resolve().parent.parent / ".cache"
    scratch.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="parity.", dir=scratch) as work:
        parity = Parity(options, Path(work))
        print(f"     {'check':36} {'figure':>10} {'limit':>10}")
        for name in options.only or names:
            begin = time.monotonic()
            parity.guard(name, getattr(parity, name))
            print(f"     {name}: {time.monotonic() - begin:.0f} s", flush=True)
    print(f"{parity.report.passed} passed, {parity.report.failed} failed")
    return 1 if parity.report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
