"""Compares the products in bytes and in four bits with an emulation in double precision on PyTorch.

A tiny random Llama takes one training step in which a single linear is multiplied by the product in
question, all else in f32. The emulation has the same random numbers (Philox, in numpy): the loss, the
gradient of that weight (dW) and those of all other weights (which hear of dx) must agree. Adam with an
epsilon far above every gradient leaves weights that tell the gradient. Called by tools/parity.py.

The program's sums in f32 are some 1e-6 off: a number closer than that to where rounding turns from one
code to the next may take either. Weights are drawn anew until none is.
"""

import json
import random
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import golden
from tiny_models import tiny_tokenizer

GROUP = 64  # columns, or tokens, of a contraction that share a scale
GRADIENT_ROUNDING = 7  # base/philox.h, RandomPurpose
EPSILON, LEARNING_RATE = 1e6, 1e9
TEXT = ("A jackscrew lifts a house with one hand, a turn at a time. The load is carried by the thread, "
        "and the thread does not slip back when the hand rests.")
TOKENS = 67  # the second group of tokens is a short one
# Of a code: some times what sums in f32 are off for the largest ones, of four bits and of eight; of a
# weight, which is exact, what dividing it is off.
MARGINS = {"nibbles": 1e-5, "bytes": 8e-5}
WEIGHT_MARGIN = 1e-5
DRAWS = 500
# name: the settings, the levels of x in a step (0: those of four bits), whether there is a transform,
# and whether dW is in integers.
PRODUCTS = {
    "int8": ("product=int8", "bytes", False, False),
    "int8_dw": ("product=int8 int8_dw=int8", "bytes", False, True),
    "w4a8": ("product=w4a8", "bytes", True, True),
    "int4": ("product=int4", "nibbles", True, True),
    "int4_block16": ("product=int4 int4_block=16", "nibbles", True, True),
}
LINEARS = {"down_proj": "layers.1.mlp", "o_proj": "layers.0.self_attn"}


def philox(block: np.ndarray, purpose_and_step: int, tensor: int, seed: int) -> list[np.ndarray]:
    """Philox4x32-10 (Salmon et al., SC11): four numbers for every counter."""
    mask = np.uint64(0xFFFFFFFF)
    c0, c1 = block & mask, block >> np.uint64(32)
    c2 = np.full_like(block, purpose_and_step)
    c3 = np.full_like(block, tensor)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = ((p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0), p1 & mask,
                          (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1), p0 & mask)
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def name_hash(name: str) -> int:
    value = 2166136261
    for byte in name.encode():
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
    return value


def uniforms(name: str, tokens: int, width: int, seed: int, step: int) -> torch.Tensor:
    """Of every token and column the number in [0, 1) with which its gradient is rounded."""
    token = np.arange(tokens, dtype=np.uint64)[:, None]
    column = np.arange(width, dtype=np.uint64)[None, :]
    groups = np.uint64(-(-width // GROUP))
    group = token * groups + column // np.uint64(GROUP)
    four = philox(np.uint64(16) * group + column % np.uint64(16), GRADIENT_ROUNDING << 28 | step,
                  name_hash(name), seed)
    chosen = np.choose((column % np.uint64(GROUP) // np.uint64(16)).astype(np.int64).repeat(tokens, 0),
                       four)
    return torch.from_numpy((chosen >> np.uint64(8)).astype(np.float64) * 2.0**-24)


class Rounding:
    """To the nearest or by a random number, and how close the closest number was to the other code, in
    margins."""

    def __init__(self, margin: float) -> None:
        self.margin = margin
        self.closest = 1e9

    def note(self, distance: torch.Tensor, margin: float) -> None:
        self.closest = min(self.closest, distance.abs().min().item() / margin)

    def nearest(self, values: torch.Tensor, margin: float) -> torch.Tensor:
        self.note(0.5 - (values - values.round()).abs(), margin)
        return values.round()

    def random(self, values: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        below = values.floor()
        # What is zero, or the largest of its group, is so in f32 too.
        exact = values == values.round()
        self.note(torch.where(exact, 1.0, values - below - uniform), self.margin)
        return below + (uniform < values - below)


def in_groups(values: torch.Tensor, limit: int, size: int, rounding: Rounding,
              uniform: torch.Tensor | None = None):
    """Rows rounded in groups of `size` columns, the largest magnitude to `limit`."""
    rows, columns = values.shape
    padded = torch.nn.functional.pad(values, (0, -columns % size)).reshape(rows, -1, size)
    scale = padded.abs().amax(-1, keepdim=True) / limit
    scaled = (padded / torch.where(scale > 0, scale, 1.0)).reshape(rows, -1)[:, :columns]
    if uniform is None:
        codes = rounding.nearest(scaled, rounding.margin)
    else:
        # The largest of a group is the limit, but for the last bit of a division.
        whole = (scaled - scaled.round()).abs() < 1e-12
        codes = rounding.random(torch.where(whole, scaled.round(), scaled), uniform)
    return codes * scale.repeat(1, 1, size).reshape(rows, -1)[:, :columns]


def transformed(values: torch.Tensor, block: int) -> torch.Tensor:
    """Every block of the rows times the orthogonal Hadamard matrix, which is its own inverse."""
    matrix = torch.ones(1, 1, dtype=values.dtype)
    while matrix.shape[0] < block:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return (values.reshape(-1, block) @ matrix / block**0.5).reshape(values.shape)


def in_nibbles(values: torch.Tensor, rounding: Rounding, margin: float):
    """Codes, steps and what was not cut off of rows in four bits."""
    step = 0.335 * values.square().mean(1, keepdim=True).sqrt()
    scaled = values / torch.where(step > 0, step, 1.0)
    rounding.note(scaled - 7, margin)
    rounding.note(scaled + 8, margin)
    return rounding.nearest(scaled.clamp(-8, 7), margin), step, ((scaled >= -8) & (scaled <= 7)).to(values.dtype)


class Linear(torch.autograd.Function):
    """y = x Wᵀ as a product of the program computes it and its gradients."""

    @staticmethod
    def forward(ctx, x, weight, how):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        limit, rounding = how["limit"], how["rounding"]
        if how["transforms"]:
            block = how["block"] or min(128, shape[-1] & -shape[-1])
            w_codes, w_step, w_inside = in_nibbles(transformed(weight, block), rounding,
                                                   WEIGHT_MARGIN)
            turned = transformed(x, block)
            if how["x"] == "nibbles":
                x_codes, x_step, x_inside = in_nibbles(turned, rounding, rounding.margin)
            else:
                x_step = turned.abs().amax(1, keepdim=True) / limit
                x_codes = rounding.nearest(turned / x_step, rounding.margin)
                x_inside = torch.ones_like(turned)
            saved = w_codes, w_step, w_inside, x_codes, x_step, x_inside
            y = (x_codes * x_step) @ (w_codes * w_step).T
        else:
            block = 0
            w_step = weight.abs().amax(1, keepdim=True) / 127
            w_codes = rounding.nearest(weight / w_step, WEIGHT_MARGIN)
            saved = w_codes, w_step, x
            y = in_groups(x, limit, GROUP, rounding) @ (w_codes * w_step).T
        ctx.save_for_backward(*saved)
        ctx.how, ctx.shape, ctx.block = how, shape, block
        return y.reshape(*shape[:-1], -1)

    @staticmethod
    def backward(ctx, dy):
        how, rounding = ctx.how, ctx.how["rounding"]
        dy = dy.reshape(-1, dy.shape[-1])
        limit = 7 if how["x"] == "nibbles" else how["limit"]
        numbers = [uniforms(how["name"] + suffix, *dy.shape, how["seed"], 0)
                   for suffix in ("", " of columns")]

        def columns(token_scale):
            return in_groups((dy * token_scale).T, limit, GROUP, rounding, numbers[1].T)

        w_codes, w_step = ctx.saved_tensors[:2]
        dx = in_groups(dy * w_step.T, limit, GROUP, rounding, numbers[0]) @ w_codes
        if how["transforms"]:
            w_inside, x_codes, x_step, x_inside = ctx.saved_tensors[2:]
            dx = transformed(x_inside * dx, ctx.block)
            dw = transformed(w_inside * (columns(x_step) @ x_codes), ctx.block)
        elif how["dw"]:
            x = ctx.saved_tensors[2]
            dw = columns(1.0) @ in_groups(x.T, 127, x.shape[0], rounding).T
        else:
            dw = dy.T @ ctx.saved_tensors[2]
        return dx.reshape(ctx.shape), dw, None


class Replaced(torch.nn.Module):
    def __init__(self, linear: torch.nn.Module, how: dict) -> None:
        super().__init__()
        self.weight, self.how = linear.weight, how

    def forward(self, x):
        return Linear.apply(x, self.weight, self.how)


def drawn(directory: Path, ids: torch.Tensor, path: str, how: dict, rng: random.Random):
    """Weights, the model with its linear replaced, and the loss behind which its gradients are."""
    for _ in range(DRAWS):
        model = golden.double_model(directory)
        weights = golden.random_weights(model, rng.randrange(2**31))
        golden.load_weights(model, weights)
        how["rounding"] = Rounding(MARGINS[how["x"]])
        place, module = path.rsplit(".", 1)
        linear = model.get_submodule(path)
        setattr(model.get_submodule(place), module, Replaced(linear, how))
        with golden.DoublePrecision():
            logits = model(input_ids=ids[None], use_cache=False).logits[0]
            loss = torch.nn.functional.cross_entropy(logits[:-1].double(), ids[1:])
            loss.backward()
        if how["rounding"].closest > 1:
            return weights, model, loss.item()
    raise RuntimeError(f"{path}: in each of {DRAWS} draws a number lies between two codes")


def check_products(report, program, work: Path, seed: int) -> None:
    rng = random.Random(seed)
    directory = work / "products"
    tokenizer = tiny_tokenizer([TEXT], 280)
    tokenizer.save_pretrained(directory)
    # The MLP's width is 32 times an odd number; the last group of its gradient is a short one.
    config = golden.llama(len(tokenizer), max_position_embeddings=512, hidden=64, ffn=96, layers=2,
                          heads=4, kv_heads=2, tied=False)
    golden.write_config(golden.Case("products", seed, [], config), directory)
    records = work / "products.jsonl"
    text = next(TEXT[:end] for end in range(len(TEXT))
                if len(tokenizer(TEXT[:end]).input_ids) >= TOKENS)
    records.write_text(json.dumps({"text": text}) + "\n")
    level = json.loads(program("doctor", "--json"))["isa"]
    limit = 127 if level.endswith(("vnni", "bf16")) else 63
    modules = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"}
    ids = None
    for name, (settings, x, transforms, dw) in PRODUCTS.items():
        for module, place in LINEARS.items():
            path = f"model.{place}.{module}"
            how = {"name": f"{path}.weight", "x": x, "transforms": transforms, "dw": dw, "seed": seed,
                   "limit": limit, "block": 16 if "block=16" in settings else 0}
            if ids is None:
                save_file(golden.random_weights(golden.double_model(directory), 0),
                          directory / "model.safetensors", metadata={"format": "pt"})
                ids = torch.tensor(program.tokens(directory, records)[0]["ids"])
            weights, model, loss = drawn(directory, ids, path, how, rng)
            save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
            other = "layers.0.*" if ".1." in place else "layers.1.*"
            output = work / f"products_{name}_{module}"
            program("train", f"model={directory}", f"data={records}", f"output_dir={output}",
                    "method=full", *settings.split(), "packing=false", "sequence_len=512",
                    f"product_exclude={','.join(sorted(modules - {module}))},{other}", "max_steps=1",
                    "micro_batch_size=1", "gradient_accumulation_steps=1", "warmup_steps=0",
                    "lr_scheduler_type=constant", "weight_decay=0", "max_grad_norm=0",
                    f"learning_rate={LEARNING_RATE}", f"adam_epsilon={EPSILON}", f"seed={seed}")
            log = [json.loads(line) for line in (output / "train_log.jsonl").read_text().splitlines()]
            step = next(entry for entry in log if entry.get("event") == "step")
            trained = load_file(output / "model.safetensors")
            worst = 0.0
            for key, parameter in model.named_parameters():
                ours = (weights[key].double() - trained[key].double()) * (EPSILON / LEARNING_RATE)
                figure = golden.relative_error(ours, parameter.grad)
                if key == how["name"]:
                    report.line(f"products.{name}.{module}.dW", figure, 1e-5)
                else:
                    worst = max(worst, figure)
            report.line(f"products.{name}.{module}.loss", abs(step["loss"] / loss - 1), 1e-6)
            report.line(f"products.{name}.{module}.dx", worst, 1e-5, "of all other gradients")
