#!/usr/bin/env python3
"""Makes tests/conversion/data/gguf_mixtures.txt: the types that llama.cpp's own quantiser gives the matrices of models.

For each shape (layers, heads, key/value heads, hidden size, feed-forward size, whether the embedding is the head) a
model of random weights is quantised as every mixture. A line of the file has a shape, a mixture, a tensor's name within
a block or the model, and its types by block: "q6_k*4 q4_k". The library is any build of llama.cpp that exports
llama_model_quantize, such as the extension module in the package llama-cpp-cffi.
Usage: tools/gguf_mixtures.py LIBRARY tests/conversion/data/gguf_mixtures.txt   (Python with the package gguf)
"""

import ctypes
import itertools
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np

SHAPES = ["32 8 2 256 512 untied", "30 9 3 576 1536 tied", "16 8 4 256 512 tied", "80 8 2 256 256 untied",
          "80 4 4 256 256 untied", "3 4 4 256 288 tied", "5 4 1 96 288 untied", "1 4 2 256 256 tied"]
VOCABULARY = 32
# llama_ftype of each mixture, by the names of `storage`.
MIXTURES = {"q2_k": 10, "q3_k_s": 11, "q3_k_m": 12, "q3_k_l": 13, "q4_k_s": 14, "q4_k_m": 15, "q5_k_s": 16,
            "q5_k_m": 17, "iq4_nl": 25, "iq4_xs": 30}


class Parameters(ctypes.Structure):
    """The first members of llama_model_quantize_params, and room for the others of any version."""
    _fields_ = [("threads", ctypes.c_int32), ("file_type", ctypes.c_int), ("others", ctypes.c_byte * 256)]


def quantise(library: Path, source: Path, target: Path, mixture: str) -> None:
    """Rounds a GGUF file. Raises RuntimeError where the quantiser refuses."""
    # From the interpreter's names too: such a module takes them from there.
    llama = ctypes.PyDLL(str(library))
    llama.llama_model_quantize_default_params.restype = Parameters
    parameters = llama.llama_model_quantize_default_params()
    parameters.file_type = MIXTURES[mixture]
    if llama.llama_model_quantize(bytes(source), bytes(target), ctypes.byref(parameters)) != 0:
        raise RuntimeError(f"llama.cpp refuses to make {mixture} of {source}")


def write_model(path: Path, shape: str) -> None:
    *sizes, tied = shape.split()
    layers, heads, values, hidden, wide = map(int, sizes)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(wide)
    writer.add_head_count(heads)
    writer.add_head_count_kv(values)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([f"t{i}" for i in range(VOCABULARY)])
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(["a b"])
    rng = np.random.default_rng(0)
    matrices = {"token_embd": (VOCABULARY, hidden)} | ({} if tied == "tied" else {"output": (VOCABULARY, hidden)})
    keys = hidden // heads * values
    for i in range(layers):
        matrices |= {f"blk.{i}.{name}": rows for name, rows in {
            "attn_q": (hidden, hidden), "attn_k": (keys, hidden), "attn_v": (keys, hidden),
            "attn_output": (hidden, hidden), "ffn_gate": (wide, hidden), "ffn_up": (wide, hidden),
            "ffn_down": (hidden, wide)}.items()}
    for name, rows in matrices.items():
        writer.add_tensor(f"{name}.weight", rng.normal(size=rows).astype(np.float16))
    for name in ["output_norm", *(f"blk.{i}.{norm}" for i in range(layers) for norm in ("attn_norm", "ffn_norm"))]:
        writer.add_tensor(f"{name}.weight", np.ones(hidden, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def types_of(path: Path) -> dict[str, list[str]]:
    """tensor name without its block -> types in the order of blocks."""
    types: dict[str, list[str]] = {}
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors if len(tensor.shape) == 2}
    for name in sorted(found, key=lambda name: int(name.split(".")[1]) if name.startswith("blk.") else -1):
        parts = name.split(".")
        types.setdefault(parts[-2], []).append(found[name].tensor_type.name.lower())
    return types


def runs(types: list[str]) -> str:
    groups = [(name, len(list(same))) for name, same in itertools.groupby(types)]
    return " ".join(name if count == 1 else f"{name}*{count}" for name, count in groups)


def main() -> None:
    library = Path(sys.argv[1])
    lines = []
    with tempfile.TemporaryDirectory() as place:
        model, quantised = Path(place) / "model.gguf", Path(place) / "quantised.gguf"
        for shape in SHAPES:
            write_model(model, shape)
            for mixture in MIXTURES:
                quantise(library, model, quantised, mixture)
                for name, types in types_of(quantised).items():
                    lines.append(f"{shape} {mixture} {name} {runs(types)}\n")
    Path(sys.argv[2]).write_text("".join(lines))


if __name__ == "__main__":
    main()
