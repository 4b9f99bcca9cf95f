"""Opens GPTQ directories with gptqmodel on the CPU: writes the values that it finds, prints the losses of a text.

The arguments are an output directory and the models'. Called by tools/calibrated_parity.py with the Python of
.cache/gptqmodel. Reads the ids of the text, [...], from stdin, prints {model: [number of GPTQ layers, loss]}; writes
OUTPUT/MODEL.safetensors.
"""

import json
import os
import sys
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = ""
# gptqmodel has torch compile its decoder, by a C++ compiler and for seconds a layer.
os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch
from safetensors.torch import save_file


def main() -> None:
    output, *directories = map(Path, sys.argv[1:])
    ids = torch.tensor(json.load(sys.stdin))[None]
    # gptqmodel writes to both streams.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    from gptqmodel import BACKEND, GPTQModel
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear

    said = {}
    for directory in directories:
        model = GPTQModel.load(str(directory), device="cpu", backend=BACKEND.TORCH, dtype=torch.float16).model
        layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, TorchLinear)}
        values = dict(model.named_parameters())
        values |= {f"{name}.weight": layer.dequantize_weight().T.contiguous() for name, layer in layers.items()}
        values |= {f"{name}.bias": layer.bias for name, layer in layers.items() if layer.bias is not None}
        save_file(values, output / f"{directory.name}.safetensors")
        with torch.no_grad():
            logits = model(ids).logits[0].float()
        loss = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:])
        said[directory.name] = [len(layers), loss.item()]
    json.dump(said, answer)
    answer.flush()


if __name__ == "__main__":
    main()
