"""Trains a tiny model by many recipes and prints a CRC-32 of everything that a run writes: checkpoints,
result and every line of the log, without fields that depend on time, speed or the machine.

    tools/fingerprints.py PROGRAM LEVEL

One line each: recipe, file, CRC. The same on every machine of one instruction-set level; a changed line is
a changed bit. script/fingerprints compares with the committed tables.
"""

import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import zlib

HIDDEN, WIDTH, LAYERS, VOCABULARY = 64, 160, 2, 260

# Rotations every 2 steps, so that 6 steps have two of them after the first.
ROTARY = "method=rotary storage=int8 steps_per_rotation=2 active_params=40%"

# name: the model, and the recipe.
RECIPES = {
    "full": ("model_untied", "method=full"),
    "full_bf16": ("model_untied", "method=full storage=bf16 gradient_accumulation_steps=3 save_steps=2"),
    "full_adamw_8bit": ("model_untied", "method=full optimizer=adamw_8bit"),
    "lora": ("model_untied", "method=lora lora_rank=4 lora_dropout=0.1 use_rslora=true"),
    "lora_q4_1": ("q4_1.gguf", "method=lora lora_rank=4"),
    "lora_nf4": ("model_untied", "method=qlora lora_rank=4"),
    "rotary_matrix": ("model_untied", f"{ROTARY} rotation_groups=matrix"),
    "rotary_block_files": ("model_tied", f"{ROTARY} active_params=60% rotation_groups=block master=mmap"),
    "rotary_churn_moments": ("model_untied", f"{ROTARY} churn=0.5 moments=keep optimizer=adamw"),
    "rotary_bf16_masters": ("model_untied", f"{ROTARY} master_dtype=bf16 rotation_order=importance static=rotate"),
    "int8": ("model_untied", "method=full storage=int8_row product=int8"),
    "lora_int8": ("model_tied", "method=lora lora_rank=4 storage=int8_row product=int8"),
    "int8_dw": ("model_untied", "method=full storage=int8_row product=int8 int8_dw=int8"),
    "w4a8": ("model_untied", "method=full product=w4a8 gradient_accumulation_steps=2"),
    "int4": ("model_tied", "method=full storage=bf16 product=int4 product_exclude=layers.0.*"),
    "int4_paper": ("model_untied", "method=full product=int4 int4_mode=paper int4_block=search int4_cold_steps=3"),
    "lora_int4": ("model_untied", "method=lora lora_rank=4 lora_dropout=0.1 storage=nf4 product=int4 int4_block=32"),
    "tied": ("model_tied", "method=full gradient_checkpointing=true weight_decay=0.1"),
    "unpacked": ("model_untied", "method=full packing=false"),
    "tied_unpacked": ("model_tied", "method=lora lora_rank=4 packing=false gradient_accumulation_steps=2"),
    "affine": ("model_tied", "method=full storage=int8_affine"),
    "galore": ("model_untied", "method=galore projection_update_gap=2 weight_decay=0.1"),
    "galore_bf16_8bit": ("model_tied", "method=galore storage=bf16 projection_update_gap=2 optimizer=adamw_8bit"),
    "qgalore": ("model_untied", "method=qgalore projection_update_gap=3 projection_window=2"),
    "prompt": ("model_tied", "method=prompt prompt_tokens=4 learning_rate=1e-2"),
    "lora_fused": ("model_untied", "method=lora lora_rank=4 update=fused max_grad_norm_of=weight"),
}
# Only for instruction-set levels that have bf16 arithmetic.
BF16_RECIPES = {
    "product_bf16": ("model_untied", "method=full storage=bf16 product=bf16 gradient_accumulation_steps=2"),
    "lora_product_bf16": ("model_tied", "method=lora lora_rank=4 lora_dropout=0.1 storage=nf4 product=bf16"),
}

# Fields of the log and of checkpoint.json that depend on time, speed or the machine.
PASSING = {"time", "tokens_per_second", "seconds", "seconds_beside", "resident_peak", "cpu", "version", "isa",
           "threads", "crc32c", "graphs", "mapped"}


def model_name(tied):
    return "model_tied" if tied else "model_untied"


def model_config(tied):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_hidden_layers": LAYERS,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
            "tie_word_embeddings": tied, "bos_token_id": 256, "eos_token_id": 257}


def gguf(path):
    """Writes a GGUF file of the same shape: blocks in Q4_1, the rest in F32, from a seeded generator."""
    numbers = random.Random(7)

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    def entry(key, kind, value):
        packed = {4: "<I", 6: "<f", 8: None}[kind]
        return text(key) + struct.pack("<I", kind) + (text(value) if packed is None else struct.pack(packed, value))

    def f32(count, scale, offset=0.0):
        return b"".join(struct.pack("<f", offset + scale * numbers.uniform(-1, 1)) for _ in range(count))

    def q4_1(rows, columns):  # blocks of 32: f16 scale, f16 minimum, 16 bytes of codes
        block = lambda: struct.pack("<ee", numbers.uniform(0.01, 0.03), numbers.uniform(-0.2, -0.1))
        return b"".join(block() + numbers.randbytes(16) for _ in range(rows * columns // 32))

    tensors = []

    def vector(name, size):
        tensors.append((name, (size,), 0, f32(size, 0.1, 1.0)))

    def matrix(name, rows, columns):
        tensors.append((name, (columns, rows), 3, q4_1(rows, columns)))

    tensors.append(("token_embd.weight", (HIDDEN, VOCABULARY), 0, f32(VOCABULARY * HIDDEN, 0.05)))
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        vector(block + "attn_norm.weight", HIDDEN)
        matrix(block + "attn_q.weight", HIDDEN, HIDDEN)
        matrix(block + "attn_k.weight", HIDDEN // 2, HIDDEN)
        matrix(block + "attn_v.weight", HIDDEN // 2, HIDDEN)
        matrix(block + "attn_output.weight", HIDDEN, HIDDEN)
        vector(block + "ffn_norm.weight", HIDDEN)
        matrix(block + "ffn_gate.weight", WIDTH, HIDDEN)
        matrix(block + "ffn_up.weight", WIDTH, HIDDEN)
        matrix(block + "ffn_down.weight", HIDDEN, WIDTH)
    vector("output_norm.weight", HIDDEN)
    entries = [entry("general.architecture", 8, "llama"), entry("llama.block_count", 4, LAYERS),
               entry("llama.context_length", 4, 128), entry("llama.embedding_length", 4, HIDDEN),
               entry("llama.feed_forward_length", 4, WIDTH), entry("llama.attention.head_count", 4, 4),
               entry("llama.attention.head_count_kv", 4, 2),
               entry("llama.attention.layer_norm_rms_epsilon", 6, 1e-5),
               entry("llama.vocab_size", 4, VOCABULARY)]
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + b"".join(entries)
    offset = 0
    for name, shape, kind, data in tensors:
        out += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        out += struct.pack("<IQ", kind, offset)
        offset += -(-len(data) // 32) * 32
    out += b"\0" * (-len(out) % 32)
    for _, _, _, data in tensors:
        out += data + b"\0" * (-len(data) % 32)
    with open(path, "wb") as file:
        file.write(out)


def records(path, count):
    with open(path, "w") as file:
        for i in range(count):
            answer = f"It is {i * 7 % 31}" + "." * (i % 9)
            file.write(json.dumps({"instruction": f"Say number {i}", "output": answer}) + "\n")


def lasting(value):
    """A JSON value without the fields in PASSING."""
    if isinstance(value, dict):
        return {key: lasting(part) for key, part in value.items() if key not in PASSING}
    return [lasting(part) for part in value] if isinstance(value, list) else value


def content(path):
    with open(path, "rb") as file:
        data = file.read()
    if path.endswith(".jsonl"):
        return [json.dumps(lasting(json.loads(line))).encode() for line in data.splitlines()]
    if path.endswith("checkpoint.json"):
        return [json.dumps(lasting(json.loads(data))).encode()]
    return [data]


def fingerprint(directory):
    """{file: CRC} of a run; for the log, one CRC per kind of event."""
    out = {}
    for root, _, names in sorted(os.walk(directory)):
        for name in sorted(names):
            path = os.path.join(root, name)
            where = os.path.relpath(path, directory)
            # Renderings of the log, files with dates, and the recipe, which names the level.
            if name.startswith("events.out") or name in ("report.html", "recipe.yaml", "run.lock"):
                continue
            for part in content(path):
                key = where
                if name.endswith(".jsonl"):
                    key = f"{where}:{json.loads(part).get('event', '')}"
                out[key] = zlib.crc32(part, out.get(key, 0))
    return out


def main():
    program, level = os.path.abspath(sys.argv[1]), sys.argv[2]
    recipes = RECIPES | (BF16_RECIPES if level in ("x86-64-v4-bf16", "x86-64-v4-amx") else {})
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        for tied in (True, False):
            os.mkdir(model_name(tied))
            with open(f"{model_name(tied)}/config.json", "w") as file:
                json.dump(model_config(tied), file)
        gguf("q4_1.gguf")
        records("train.jsonl", 40)
        records("valid.jsonl", 5)
        for name, (model, recipe) in recipes.items():
            source = f"model={model}" if model.endswith(".gguf") else f"model={model}/config.json init=random"
            given = (f"{source} tokenizer=bytes data=train.jsonl eval_data=valid.jsonl output_dir={name} "
                     f"isa={level} threads=2 sequence_len=64 micro_batch_size=2 max_steps=6 logging_steps=1 "
                     f"eval_steps=3 save_steps=3 learning_rate=2e-3 report_samples=1 {recipe}")
            # Where a key is repeated the last one counts, the recipe's.
            settings = dict(word.split("=", 1) for word in given.split())
            done = subprocess.run([program, "train", *(f"{k}={v}" for k, v in settings.items())],
                                  capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"{name}: {done.stdout}{done.stderr}")
            for where, crc in fingerprint(name).items():
                print(f"{name} {where} {crc:08x}")


if __name__ == "__main__":
    main()
