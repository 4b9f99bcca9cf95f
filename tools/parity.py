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
import sys
import tempfile
import time
from functools import reduce
from pathlib import Path
from typing import Callable

# Nothing may be downloaded: the models are local files.
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
from adapter_parity import check_adapters, check_pissa, check_prompt
from conversion_parity import check_conversions
from galore_parity import check_galore
from hostile_text import hostile_text
from parity_rig import ADAM_EPSILON, TEXTS, Failure, Rig, as_batch, error, text_loss, worse
from product_parity import check_products
from quantised_parity import check_quantised
from state_parity import check_states
from tiny_models import tiny_tokenizer, write_gguf
from tokenizer_parity import check_tokenizers

MIB = 2**20


def unlike_nf4(ours: torch.Tensor, theirs: torch.Tensor, matrix: torch.Tensor, numbers: torch.Tensor) -> int:
    """How many codes [elements / 2] of a matrix differ, two in a byte; `numbers` [16] are what they stand for.

    Not where the value is as near to either number in f32: there bitsandbytes' kernels differ among
    themselves. The one for CPUs takes the first of two equal distances, those for GPUs compare with the middle.
    """
    count = matrix.numel()
    blocks = torch.nn.functional.pad(matrix.flatten(), (0, -count % 64)).double().view(-1, 64)
    values = (blocks / blocks.abs().amax(1, keepdim=True)).flatten()[:count]
    a, b = (torch.stack((codes.flatten() >> 4, codes.flatten() & 15), 1).flatten()[:count].long()
            for codes in (ours, theirs))
    middle = (numbers[a] + numbers[b]) / 2
    return ((a != b) & ((values - middle).abs() > 2 ** -23)).sum().item()


class Parity(Rig):
    # The GGUF file as transformers reads it, loaded once.

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
            "smollm3": dict(hidden=48, ffn=96, layers=4, heads=4, kv_heads=2, tied=True,
                            head_dim=rng.randrange(8, 32, 2),
                            no_rope_layers=[rng.randrange(2) for _ in range(4)], pad_token_id=0),
        }
        for name, shape in shapes.items():
            directory = self.work / f"tiny_{name}"
            self.guard(f"tiny.{name}", lambda: self.tiny_model(name, shape, directory, rng))

    def tiny_model(self, name: str, shape: dict, directory: Path, rng: random.Random) -> None:
        tokenizer = tiny_tokenizer(list(TEXTS.values()), 280 + rng.randrange(40))
        tokenizer.save_pretrained(directory)
        config = golden.llama(len(tokenizer), max_position_embeddings=512, **shape)
        kind = name if name in ("mistral", "qwen2", "qwen3", "smollm3") else "llama"
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
        steps = self.ten_steps(directory, directory / "trained", f"adam_epsilon={ADAM_EPSILON}")
        optimizer = torch.optim.AdamW(model.parameters(), lr=golden.LEARNING_RATE,
                                      betas=(0.9, 0.999), eps=ADAM_EPSILON, weight_decay=0)
        with golden.DoublePrecision():
            theirs = golden.train(model, as_batch(self.program.tokens(directory, self.records)),
                                  optimizer=optimizer)
        self.same_steps(f"tiny.{name}", steps, theirs, loss=1e-5, grad_norm=1e-4, learning_rate=1e-6)
        self.exported(name, directory / "trained", type(model))

    def exported(self, name: str, directory: Path, architecture: type) -> None:
        """transformers reads what `train` wrote."""
        ours = self.program.logits(directory, self.texts["prose"], self.work / "tiny.safetensors")
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                                     attn_implementation="eager").eval()
        if type(model) is not architecture:
            raise Failure(f"transformers reads a {type(model).__name__}")
        with torch.no_grad():
            theirs = model(input_ids=ours["ids"][None].long(), use_cache=False).logits[0]
        self.report.line(f"tiny.{name}.exported", error(ours["logits"], theirs), 1e-4)

    def gguf_architectures(self) -> None:
        """GGUF files of other architectures, with tensor names from the gguf package."""
        rng = random.Random(self.seed)
        for name in ("qwen2", "qwen3", "smollm3"):
            directory = self.work / f"gguf_{name}"
            tokenizer = tiny_tokenizer(list(TEXTS.values()), 300)
            tokenizer.save_pretrained(directory)
            # Four blocks: the last of SmolLM3's does not rotate.
            config = golden.llama(len(tokenizer), 64, 96, 4, 4, 2, tied=True, head_dim=32,
                                  pad_token_id=0,
                                  rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
            golden.write_config(golden.Case(name, self.seed, [], config, model_type=name), directory)
            model = golden.double_model(directory)
            weights = golden.random_weights(model, rng.randrange(2**31))
            golden.load_weights(model, weights)
            write_gguf(self.work / f"{name}.gguf", name, config, weights, tokenizer)
            ours = self.program.logits(self.work / f"{name}.gguf", self.texts["prose"],
                                       self.work / "tiny.safetensors")
            # The model is not read from the file: transformers ignores `attention.key_length` there.
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
            same |= ours.isnan() & theirs.isnan()  # a NaN scale may have other bits
            self.report.line(f"gguf.{name}", (~same).sum().item(), 0, "elements with other bits")

    def states(self) -> None:
        """Ten steps with 8-bit states, compared with those of bitsandbytes on the CPU."""
        check_states(self)

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
                # The program cuts the text where an answer begins, as in generation; after a letter
                # that makes no difference.
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
        """Compares the ledger's peak with the system's count of resident anonymous memory."""
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
        # A model that training did not change would pass the check above.
        moved = abs(theirs - text_loss(self.reference_model(), ids))
        self.report.line(f"{name}.unmoved", float(moved < 1e-3), 0,
                         f"loss moved by {moved:.2g} in 2 steps")

    def full(self) -> None:
        """Two steps on all parameters; transformers opens the exported directory."""
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

    def lora(self) -> None:
        """Two steps of LoRA; PEFT opens the adapter directory with the base model."""
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
        """Starts adapters of every kind with PEFT: ten steps of both, then PEFT opens the program's."""
        check_adapters(self)

    def pissa(self) -> None:
        """Adapters that start as principal parts of their weights."""
        check_pissa(self)

    def prompt(self) -> None:
        """A soft prompt that PEFT started."""
        check_prompt(self)

    def nf4(self) -> None:
        """NF4 and FP4: the program reads files of bitsandbytes, bitsandbytes the program's NF4."""
        try:
            import bitsandbytes.functional as bnb
        except ImportError as reason:
            print(f"skip nf4: bitsandbytes cannot be imported ({reason})", flush=True)
            return
        generator = torch.Generator().manual_seed(self.seed)
        # Widths are odd or multiples of 64: for any other width, bitsandbytes' CPU kernel (0.50.2)
        # decodes as if blocks began anew in each row, which is not how it quantises.
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
            # Their nested map differs between machines by a few units in the last place.
            limit = 1e-6 if kind.endswith("_double") else 0
            self.report.line(f"{kind}.decoded", reduce(worse, (error(decoded[n], exact[n]) for n in matrices)),
                             limit, "their file, by us and by them")
            if kind.startswith("fp4"):
                continue
            shutil.rmtree(ours)
            self.convert(original, ours, kind)
            encoded = load_file(ours / "model.safetensors")
            again = self.work / f"{kind}.again"
            self.convert(ours, again, "f32")
            decoded = load_file(again / "model.safetensors")
            numbers = bnb.get_4bit_type("nf4", device="cpu").double()
            differing = sum(unlike_nf4(encoded[n], tensors[n], matrices[n], numbers) for n in matrices)
            self.report.line(f"{kind}.codes", differing, 0, "codes unlike theirs")
            figures = []
            for name in matrices:
                parts = {key[len(name) + 1:]: value for key, value in encoded.items()
                         if key.startswith(f"{name}.")}
                state = bnb.QuantState.from_dict(parts, device=torch.device("cpu"))
                figures.append(error(decoded[name], bnb.dequantize_4bit(encoded[name], state)))
            self.report.line(f"{kind}.encoded", reduce(worse, figures), limit, "our file, by us and by them")
        self.nf4_model(bnb)

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
        """Reads files written by the packages that quantise."""
        check_quantised(self.report, self.program, self.work, self.seed,
                        Path(sys.prefix) / "producers")

    def products(self) -> None:
        """Products in bytes and in four bits, compared with an emulation with the same random numbers."""
        check_products(self.report, self.program, self.work, self.seed)

    def galore(self) -> None:
        """Twenty steps in subspaces, compared with the packages of GaLore's authors."""
        check_galore(self.report, self.program, self.work, self.seed, self.records, as_batch)

    def conversions(self) -> None:
        """Merged models and files beside PEFT, the package gguf, transformers, gptqmodel, ExLlamaV2 and llama.cpp."""
        llama_cpp, gptqmodel = (Path(sys.prefix).parent / name / "bin/python" for name in ("llama_cpp", "gptqmodel"))
        check_conversions(self.report, self.program, self.work, self.seed,
                          Path(sys.prefix) / "producers", self.gguf, llama_cpp, gptqmodel)

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
    parser.add_argument("--without", choices=names, action="append", default=[],
                        help="leave this check out (repeatable)")
    options = parser.parse_args()

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    print(f"seed {options.seed}; torch {torch.__version__}")
    # In .cache rather than in /tmp: an exported model takes half a gigabyte.
    scratch = Path(__file__).resolve().parent.parent / ".cache"
    scratch.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="parity.", dir=scratch) as work:
        parity = Parity(options, Path(work))
        print(f"     {'check':36} {'figure':>10} {'limit':>10}")
        for name in options.only or names:
            if name in options.without:
                continue
            begin = time.monotonic()
            parity.guard(name, getattr(parity, name))
            print(f"     {name}: {time.monotonic() - begin:.0f} s", flush=True)
    print(f"{parity.report.passed} passed, {parity.report.failed} failed")
    return 1 if parity.report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
