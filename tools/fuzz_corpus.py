#!/usr/bin/env python3
"""Makes the seeds in tests/fuzz/corpus/ from the data of the tests: small and deterministic.

Files of earlier findings there (regression-*) stay.

    python3 tools/fuzz_corpus.py
"""

import argparse
import json
import pathlib
import struct

TESTS = pathlib.Path(__file__).resolve().parent.parent / "tests"
CORPUS = TESTS / "fuzz" / "corpus"


def put(target, name, data):
    path = CORPUS / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)


def safetensors(tensors):
    """Bytes of a file of {name: (dtype, shape, bytes)}."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        begin = len(data)
        data += content
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
       0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
       0.7229568362236023, 1.0]


def weights():
    yield "plain", safetensors({
        "model.embed_tokens.weight": ("F32", [2, 3], floats(*range(6))),
        "b": ("BF16", [4], bytes(8)), "scalar": ("I64", [], bytes(8)), "empty": ("F16", [0], b"")})
    state = json.dumps({"quant_type": "nf4", "blocksize": 64, "shape": [2, 64],
                        "dtype": "bfloat16"}).encode()
    yield "nf4", safetensors({
        "a.weight": ("U8", [64, 1], bytes(range(64))),
        "a.weight.absmax": ("F32", [2], floats(1, 2)),
        "a.weight.quant_map": ("F32", [16], floats(*NF4)),
        "a.weight.quant_state.bitsandbytes__nf4": ("U8", [len(state)], state)})


class Gguf:
    def __init__(self):
        self.values, self.tensors, self.data, self.counts = b"", b"", b"", [0, 0]

    @staticmethod
    def counted(text):
        return struct.pack("<Q", len(text)) + text.encode()

    def value(self, key, kind, content):
        self.values += self.counted(key) + struct.pack("<I", kind) + content
        self.counts[1] += 1

    def u32(self, key, value):
        self.value(key, 4, struct.pack("<I", value))

    def f32(self, key, value):
        self.value(key, 6, floats(value))

    def text(self, key, value):
        self.value(key, 8, self.counted(value))

    def array(self, key, kind, items):
        self.value(key, 9, struct.pack("<IQ", kind, len(items)) + b"".join(items))

    def tensor(self, name, *extents):
        size = 4
        for extent in extents:
            size *= extent
        self.tensors += self.counted(name) + struct.pack(
            f"<I{len(extents)}QIQ", len(extents), *extents, 0, len(self.data))
        self.data += bytes(-(-size // 32) * 32)
        self.counts[0] += 1

    def bytes(self):
        head = b"GGUF" + struct.pack("<IQQ", 3, *self.counts) + self.values + self.tensors
        return head + bytes(-len(head) % 32) + self.data


def gguf(architecture, model):
    out = Gguf()
    own = architecture
    out.text("general.architecture", own)
    for key, value in [("block_count", 1), ("context_length", 8), ("embedding_length", 4),
                       ("feed_forward_length", 4), ("attention.head_count", 2),
                       ("attention.head_count_kv", 1), ("rope.dimension_count", 2)]:
        out.u32(f"{own}.{key}", value)
    out.f32(f"{own}.attention.layer_norm_rms_epsilon", 1e-5)
    out.f32(f"{own}.rope.freq_base", 1e4)
    out.text("tokenizer.ggml.model", model)
    if model == "gpt2":
        out.text("tokenizer.ggml.pre", "llama-bpe")
        tokens, types = ["a", "b", "ab", "<s>", "</s>"], [1, 1, 1, 3, 3]
        out.array("tokenizer.ggml.merges", 8, [Gguf.counted("a b")])
    else:
        tokens, types = ["<unk>", "<s>", "</s>", "▁", "a", "▁a"], [2, 3, 3, 1, 1, 1]
        out.array("tokenizer.ggml.scores", 6, [floats(-i) for i in range(len(tokens))])
    out.array("tokenizer.ggml.tokens", 8,
              [struct.pack("<Q", len(t.encode())) + t.encode() for t in tokens])
    out.array("tokenizer.ggml.token_type", 5, [struct.pack("<i", t) for t in types])
    out.u32("tokenizer.ggml.bos_token_id", tokens.index("<s>"))
    out.u32("tokenizer.ggml.eos_token_id", tokens.index("</s>"))
    out.value("tokenizer.ggml.add_bos_token", 7, b"\1")
    out.text("tokenizer.chat_template", "{{ messages[0].content }}")
    out.tensor("token_embd.weight", 4, len(tokens))
    for name, *extents in [("attn_norm", 4), ("ffn_norm", 4), ("attn_q", 4, 4), ("attn_k", 4, 2),
                           ("attn_v", 4, 2), ("attn_output", 4, 4), ("ffn_gate", 4, 4),
                           ("ffn_up", 4, 4), ("ffn_down", 4, 4)]:
        out.tensor(f"blk.0.{name}.weight", *extents)
    out.tensor("output_norm.weight", 4)
    return out.bytes()


def small_tokenizer(path):
    """A tokenizer.json with few tokens, so that mutations mostly hit the rest of the file."""
    root = json.loads(path.read_text())
    added = {token["content"] for token in root["added_tokens"]}
    kept = [t for t in root["model"]["vocab"] if t in added or len(t) == 1][:60]
    merges, vocabulary = [], set(kept)
    for merge in root["model"]["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        if left in vocabulary and right in vocabulary and len(merges) < 20:
            vocabulary.add(left + right)
            kept.append(left + right)
            merges.append(merge)
    ids = {token: i for i, token in enumerate(dict.fromkeys(kept))}
    root["model"]["vocab"], root["model"]["merges"] = ids, merges
    root["added_tokens"] = [dict(t, id=ids[t["content"]]) for t in root["added_tokens"]
                            if t["content"] in ids]
    return json.dumps(root, ensure_ascii=False, separators=(",", ":"))


def pieces():
    """A SentencePiece model of a few pieces."""
    def field(number, content):
        return bytes([number << 3 | 2, len(content)]) + content

    def varint(number, value):
        key, out = number << 3, b""
        while key > 127:
            out, key = out + bytes([key & 127 | 128]), key >> 7
        return out + bytes([key, value])

    out = b""
    for text, score, kind in [("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3), ("▁", -1, 1),
                              ("a", -2, 1), ("▁a", -3, 1), ("x", 0, 4)]:
        out += field(1, field(1, text.encode()) + b"\x15" + floats(score) + varint(3, kind))
    out += field(2, varint(3, 2) + varint(40, 0) + varint(41, 1) + varint(42, 2))
    return out + field(3, field(1, b"identity") + varint(3, 1) + varint(4, 0) + varint(5, 1))


RECORDS = [
    {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"},
                  {"role": "assistant", "content": "a", "weight": 0}]},
    {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "\u00e9"}]},
    {"messages": [{"role": "user", "content": "q"},
                  {"role": "assistant", "content": "", "tool_calls": [
                      {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]},
                  {"role": "tool", "content": "2"}],
     "tools": [{"type": "function", "function": {"name": "f"}}]},
    {"instruction": "q", "input": "i", "system": None, "output": "a"},
    {"prompt": "q", "completion": "a"},
    {"text": "a"},
]


def main():
    for path in CORPUS.glob("*/*"):
        if not path.name.startswith("regression-"):
            path.unlink()
    for name, data in weights():
        put("safetensors", name, data)
    for path in sorted((TESTS / "golden" / "quantised").glob("*")):
        config = json.loads((path / "config.json").read_text())["quantization_config"]
        put("quantised", path.name,
            json.dumps(config).encode() + b"\0" + (path / "model.safetensors").read_bytes())
    for architecture, model in [("llama", "gpt2"), ("qwen2", "gpt2"), ("llama", "llama")]:
        put("gguf", f"{architecture}_{model}", gguf(architecture, model))
    for path in sorted((TESTS / "text" / "data").glob("*_tokenizer.json")):
        put("tokenizer_json", path.stem, small_tokenizer(path))
    put("tokenizer_json", "config", json.dumps({
        "add_bos_token": True, "bos_token": "<s>", "eos_token": {"content": "</s>"},
        "legacy": False, "add_prefix_space": True,
        "added_tokens_decoder": {"5": {"content": "<x>", "special": True}},
        "chat_template": [{"name": "default", "template": "{{ messages }}"}]}))
    put("tokenizer_model", "sentencepiece", pieces())
    tiktoken = (TESTS / "text" / "data" / "tiktoken.model").read_text().splitlines()
    put("tokenizer_model", "tiktoken", "\n".join(tiktoken[:280]) + "\n")
    for path in sorted((TESTS / "golden").glob("*/config.json")):
        put("config_json", path.parent.name, path.read_text())
    lora = json.loads((TESTS / "golden" / "lora" / "adapter_config.json").read_text())
    lora["target_modules"] = ["q_proj"]
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    put("adapter", "lora", json.dumps(lora).encode() + b"\0" + safetensors({
        name + "A.weight": ("F32", [4, 2], bytes(32)),
        name + "B.weight": ("BF16", [2, 4], bytes(16))}))
    prompt = {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 2, "num_transformer_submodules": 1}
    put("adapter", "prompt", json.dumps(prompt).encode() + b"\0" + safetensors({
        "prompt_embeddings": ("F32", [2, 4], bytes(32))}))
    for path in sorted((TESTS / "text" / "jinja" / "templates").glob("*.jinja")):
        put("template", path.stem, path.read_text())
    put("records", "lines", "\n".join(json.dumps(record) for record in RECORDS))
    put("records", "array", json.dumps(RECORDS, indent=1))
    put("csv", "plain", "instruction,output\nq,a\n\"two, \"\"x\"\"\",\"b\nc\"\n")
    put("csv", "mark", "\ufefftext\r\na\r\n\r\n\"b\"\r\n")
    state = safetensors({"active": ("U8", [4], bytes(4)), "w": ("F32", [2, 4], bytes(32))})
    info = {"format": 1, "step": 2, "version": "0.1.0", "isa": "x86-64-v3", "product": "f32",
            "state_bytes": len(state), "state_crc32c": 0,
            "masters": {"w": {"file": "00000000.bin", "crc32c": 1}}}
    put("checkpoint", "both", json.dumps(info).encode() + b"\0" + state)
    for path in sorted((TESTS.parent / "recipes").glob("*.yaml")):
        put("recipe", path.stem, path.read_text())
    put("recipe", "list", "a: [1, 'two', \"three\"]\nb:\n  - x\n  - &y z\nc: *y\n? d\n: |\n  e\n")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    main()
