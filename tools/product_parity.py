"""Compares the products in bytes and in four bits with an emulation in double precision on PyTorch.

A tiny random Llama takes one training step in which a single linear is multiplied by the product in
question, all else in f32. The emulation has the same random numbers (Philox, in numpy): the loss, the
gradient of that weight (dW) and those of all other weights (which depend on dx) must agree. Adam with an
epsilon far above every gradient makes the change of a weight proportional to its gradient. Called by
tools/parity.py.

A number closer to a rounding boundary than the error of sums in f32 may take either of two codes. An
emulation in f32 estimates that error, group by group. Where a figure exceeds its limit, these few numbers
are tried with their other codes, the most effective first, until the figures are within their limits or
none helps; the report says how many took the other code.
"""

import contextlib
import json
import random
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import golden
from parity_rig import json_lines, worse
from tiny_models import tiny_tokenizer

GROUP = 64  # columns, or tokens, of a contraction that share a scale
GRADIENT_ROUNDING = 7  # base/philox.h, RandomPurpose
EPSILON, LEARNING_RATE = 1e6, 1e9
TEXT = ("A jackscrew lifts a house with one hand, a turn at a time. The load is carried by the thread, "
        "and the thread does not slip back when the hand rests.")
TOKENS = 67  # so the second group of tokens is short
# A number may take the other code if its distance to it is at most MARGIN times the largest error of
# PyTorch's f32 in its group: the program adds in another order, and the largest of 64 errors is about
# twice the usual one.
MARGIN = 6
LIMIT, LOSS_LIMIT = 1e-5, 1e-6
# name: the settings, what x is rounded to, whether there is a transform, and whether dW is in integers.
PRODUCTS = {
    "int8": ("product=int8", "bytes", False, False),
    "int8_dw": ("product=int8 int8_dw=int8", "bytes", False, True),
    "w4a8": ("product=w4a8", "bytes", True, True),
    "int4": ("product=int4", "nibbles", True, True),
    "int4_block16": ("product=int4 int4_block=16", "nibbles", True, True),
}
LINEARS = {"down_proj": "layers.1.mlp", "o_proj": "layers.0.self_attn"}


def philox(block: np.ndarray, purpose_and_step: int, tensor: int, seed: int) -> list[np.ndarray]:
    """Philox4x32-10 (Salmon et al., SC11): four numbers per counter."""
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
    """The numbers in [0, 1) that round the gradient, for every token and column."""
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
    """Rounds numbers to codes: to the first of two candidates, or to the second for numbers in `others`.
    Records the candidates of every choice. A rounding in f32 takes the codes of the one that it follows, so
    that its errors are those of sums alone."""

    def __init__(self, others: frozenset = frozenset(), follows: "Rounding | None" = None) -> None:
        self.others, self.follows = others, follows  # others: (choice, place) of each such number
        self.values: list[torch.Tensor] = []  # one entry per choice, as in the two below
        self.distances: list[tuple[torch.Tensor, int]] = []  # to the other code; the size of a group
        self.codes: list[torch.Tensor] = []

    def choose(self, values, first, second, distance, size: int) -> torch.Tensor:
        choice = len(self.codes)
        codes = first.clone(memory_format=torch.contiguous_format)
        for at, place in self.others:
            if at == choice:
                codes.view(-1)[place] = second.reshape(-1)[place]
        if self.follows is not None:
            codes = self.follows.codes[choice].to(values.dtype)
        self.values.append(values.detach().double())
        self.distances.append((distance.detach().double().abs(), size))
        self.codes.append(codes.detach())
        return codes

    def nearest(self, values: torch.Tensor, size: int) -> torch.Tensor:
        code = values.round()
        return self.choose(values, code, code + (values - code).sign(), 0.5 - (values - code).abs(), size)

    def random(self, values: torch.Tensor, uniform: torch.Tensor, size: int) -> torch.Tensor:
        below = values.floor()
        above = (uniform < values - below).to(values.dtype)
        # Zero and the largest number of a group are exact in f32 too.
        exact = values == values.round()
        return self.choose(values, below + above, below + 1 - above,
                           torch.where(exact, 1.0, values - below - uniform), size)

    def within(self, values: torch.Tensor, least: int, most: int) -> torch.Tensor:
        inside = ((values >= least) & (values <= most)).to(values.dtype)
        distance = torch.minimum((values - least).abs(), (values - most).abs())
        return self.choose(values, inside, 1 - inside, distance, values.shape[1])

    def between(self, in_f32: "Rounding") -> list[tuple[int, int]]:
        """(choice, place) of every number to which sums in f32 might give the other code."""
        found = []
        for choice, (distance, size) in enumerate(self.distances):
            off = (self.values[choice] - in_f32.values[choice]).abs()
            rows, columns = off.shape
            off = torch.nn.functional.pad(off, (0, -columns % size)).reshape(rows, -1, size)
            off = off.amax(2, keepdim=True).repeat(1, 1, size).reshape(rows, -1)[:, :columns]
            # A group that happens to be exact here may elsewhere be off by the last bit of its largest number.
            off = off.clamp(min=self.values[choice].abs().max().item() * 2.0**-23)
            places = (distance <= MARGIN * off).reshape(-1).nonzero().reshape(-1)
            found += [(choice, place) for place in places.tolist()]
        return found


def in_groups(values: torch.Tensor, limit: int, size: int, rounding: Rounding,
              uniform: torch.Tensor | None = None):
    """Rows rounded in groups of `size` columns, the largest magnitude to `limit`."""
    rows, columns = values.shape
    padded = torch.nn.functional.pad(values, (0, -columns % size)).reshape(rows, -1, size)
    scale = padded.abs().amax(-1, keepdim=True) / limit
    scaled = (padded / torch.where(scale > 0, scale, 1.0)).reshape(rows, -1)[:, :columns]
    if uniform is None:
        codes = rounding.nearest(scaled, size)
    else:
        # The largest number of a group is the limit, except for the last bit of a division.
        largest = scaled.abs() >= limit * (1 - 1e-6)
        codes = rounding.random(torch.where(largest, scaled.round(), scaled), uniform, size)
    return codes * scale.repeat(1, 1, size).reshape(rows, -1)[:, :columns]


def transformed(values: torch.Tensor, block: int) -> torch.Tensor:
    """Multiplies every block of the rows by the orthogonal Hadamard matrix, which is its own inverse."""
    matrix = torch.ones(1, 1, dtype=values.dtype)
    while matrix.shape[0] < block:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return (values.reshape(-1, block) @ matrix / block**0.5).reshape(values.shape)


def in_nibbles(values: torch.Tensor, rounding: Rounding):
    """Rounds rows to four bits: codes, steps, and a mask of the values that were not clipped."""
    width = values.shape[1]
    step = 0.335 * values.square().mean(1, keepdim=True).sqrt()
    scaled = values / torch.where(step > 0, step, 1.0)
    inside = rounding.within(scaled, -8, 7)
    return rounding.nearest(scaled.clamp(-8, 7), width), step, inside


class Linear(torch.autograd.Function):
    """y = x Wᵀ and its gradients, as a product of the program computes them."""

    @staticmethod
    def forward(ctx, x, weight, how):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        limit, rounding = how["limit"], how["rounding"]
        block = 0
        if how["transforms"]:
            block = how["block"] or min(128, shape[-1] & -shape[-1])
            w_codes, w_step, w_inside = in_nibbles(transformed(weight, block), rounding)
            turned = transformed(x, block)
            if how["x"] == "nibbles":
                x_codes, x_step, x_inside = in_nibbles(turned, rounding)
            else:
                x_step = turned.abs().amax(1, keepdim=True) / limit
                x_codes = rounding.nearest(turned / x_step, shape[-1])
                x_inside = torch.ones_like(turned)
            saved = w_codes, w_inside, x_codes, x_inside
            y = (x_codes * x_step) @ (w_codes * w_step).T
        else:
            w_step = weight.abs().amax(1, keepdim=True) / 127
            x_step = None
            w_codes = rounding.nearest(weight / w_step, shape[-1])
            saved = w_codes, in_groups(x.T, 127, x.shape[0], rounding).T if how["dw"] else x
            y = in_groups(x, limit, GROUP, rounding) @ (w_codes * w_step).T
        ctx.save_for_backward(w_step, x_step, *saved)
        ctx.how, ctx.shape, ctx.block = how, shape, block
        return y.reshape(*shape[:-1], -1)

    @staticmethod
    def backward(ctx, dy):
        how = ctx.how
        dy = dy.reshape(-1, dy.shape[-1])
        limit = 7 if how["x"] == "nibbles" else how["limit"]
        w_step, x_step, w_codes, *saved = ctx.saved_tensors
        numbers = [uniforms(how["name"] + suffix, *dy.shape, how["seed"], 0)
                   for suffix in ("", " of columns")]

        def columns(token_scale):
            return in_groups((dy * token_scale).T, limit, GROUP, how["rounding"], numbers[1].T)

        dx = in_groups(dy * w_step.T, limit, GROUP, how["rounding"], numbers[0]) @ w_codes
        if how["transforms"]:
            w_inside, x_codes, x_inside = saved
            dx = transformed(x_inside * dx, ctx.block)
            dw = transformed(w_inside * (columns(x_step) @ x_codes), ctx.block)
        else:
            dw = (columns(1.0) if how["dw"] else dy.T) @ saved[0]
        return dx.reshape(ctx.shape), dw, None


class Replaced(torch.nn.Module):
    def __init__(self, linear: torch.nn.Module, how: dict) -> None:
        super().__init__()
        self.weight, self.how = linear.weight, how

    def forward(self, x):
        return Linear.apply(x, self.weight, self.how)


class Emulation:
    """The model with one linear emulating a product of the program, in double precision or in f32."""

    def __init__(self, directory: Path, path: str, how: dict, dtype: torch.dtype) -> None:
        self.how, self.double = dict(how), dtype == torch.float64
        self.model = golden.double_model(directory).to(dtype)
        place, module = path.rsplit(".", 1)
        linear = self.model.get_submodule(path)
        setattr(self.model.get_submodule(place), module, Replaced(linear, self.how))

    def step(self, weights: dict, ids: torch.Tensor, rounding: Rounding) -> float:
        """Returns the loss; the gradients are left in the model."""
        golden.load_weights(self.model, weights)
        self.model.zero_grad()
        self.how["rounding"] = rounding
        with golden.DoublePrecision() if self.double else contextlib.nullcontext():
            logits = self.model(input_ids=ids[None], use_cache=False).logits[0]
            loss = torch.nn.functional.cross_entropy(logits[:-1], ids[1:])
            loss.backward()
        return loss.item()


class Figures:
    """How far the program's loss and gradients are from an emulation's."""

    def __init__(self, emulation: Emulation, loss: float, ours: dict, our_loss: float) -> None:
        self.loss, self.dw, self.others, self.squares = abs(our_loss / loss - 1), 0.0, 0.0, 0.0
        for name, parameter in emulation.model.named_parameters():
            off = golden.relative_error(ours[name], parameter.grad)
            if name == emulation.how["name"]:
                self.dw = off
            else:
                self.others = worse(self.others, off)
            difference = (ours[name] - parameter.grad) / parameter.grad.abs().max()
            self.squares += difference.square().sum().item()

    def hold(self) -> bool:
        return self.loss <= LOSS_LIMIT and self.dw <= LIMIT and self.others <= LIMIT


def compare(directory: Path, path: str, how: dict, weights: dict, ids: torch.Tensor, ours: dict,
            our_loss: float) -> tuple[Figures, int]:
    """Returns the figures, and how many numbers took their other code."""
    double, single = (Emulation(directory, path, how, dtype) for dtype in (torch.float64, torch.float32))

    def emulated(others: frozenset) -> tuple[Figures, Rounding]:
        rounding = Rounding(others)
        loss = double.step(weights, ids, rounding)
        return Figures(double, loss, ours, our_loss), rounding

    others: frozenset = frozenset()
    figures, rounding = emulated(others)
    while not figures.hold():
        in_f32 = Rounding(follows=rounding)
        single.step(weights, ids, in_f32)
        # Switch the number that helps most; it may switch back in a later round.
        trials = [(others ^ {number}, *emulated(others ^ {number})) for number in rounding.between(in_f32)]
        best = min(trials, key=lambda trial: trial[1].squares, default=None)
        if best is None or best[1].squares >= figures.squares:
            break
        others, figures, rounding = best
    return figures, len(others)


def check_products(report, program, work: Path, seed: int) -> None:
    rng = random.Random(seed)
    directory = work / "products"
    tokenizer = tiny_tokenizer([TEXT], 280)
    tokenizer.save_pretrained(directory)
    # The MLP's width is 32 times an odd number, so the last group of its gradient is short.
    config = golden.llama(len(tokenizer), max_position_embeddings=512, hidden=64, ffn=96, layers=2,
                          heads=4, kv_heads=2, tied=False)
    golden.write_config(golden.Case("products", seed, [], config), directory)
    records = work / "products.jsonl"
    text = next(TEXT[:end] for end in range(len(TEXT))
                if len(tokenizer(TEXT[:end]).input_ids) >= TOKENS)
    records.write_text(json.dumps({"text": text}) + "\n")
    level = json.loads(program("doctor", "--json"))["isa"]
    limit = 63 if level.endswith(("v3", "v4")) else 127
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
            weights = golden.random_weights(golden.double_model(directory), rng.randrange(2**31))
            save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
            other = "layers.0.*" if ".1." in place else "layers.1.*"
            output = work / f"products_{name}_{module}"
            program("train", f"model={directory}", f"data={records}", f"output_dir={output}",
                    "method=full", *settings.split(), "packing=false", "sequence_len=512",
                    f"product_exclude={','.join(sorted(modules - {module}))},{other}", "max_steps=1",
                    "micro_batch_size=1", "gradient_accumulation_steps=1", "warmup_steps=0",
                    "lr_scheduler_type=constant", "weight_decay=0", "max_grad_norm=0",
                    f"learning_rate={LEARNING_RATE}", f"adam_epsilon={EPSILON}", f"seed={seed}")
            log = json_lines((output / "train_log.jsonl").read_text())
            step = next(entry for entry in log if entry.get("event") == "step")
            trained = load_file(output / "model.safetensors")
            ours = {key: (weights[key].double() - value.double()) * (EPSILON / LEARNING_RATE)
                    for key, value in trained.items()}
            figures, turned = compare(directory, path, how, weights, ids, ours, step["loss"])
            note = f"{turned} of the numbers between two codes took the other" if turned else ""
            report.line(f"products.{name}.{module}.dW", figures.dw, LIMIT, note)
            report.line(f"products.{name}.{module}.loss", figures.loss, LOSS_LIMIT)
            report.line(f"products.{name}.{module}.dx", figures.others, LIMIT, "of all other gradients")
