"""Compares galore with the authors' packages, galore-torch and q-galore-torch. Called by tools/parity.py.

A tiny random Llama takes twenty steps, three of its linears (taller than wide, wider than tall, square) in
subspaces that are the singular vectors of a gradient; all else by AdamW. Both see every record in every step.
Three differences are given to the reference rather than compared:

- They compute a subspace from the gradient of the step that first uses it; the program uses the step before,
  so that no gradient waits for it. Here their projector is told to refresh one step earlier.
- The program's first subspace is random. The reference starts with the same one.
- They keep moments unchanged when the basis changes, so that the signs of singular vectors, which are
  arbitrary, change the result. Their signs are matched to the program's.

The error of singular vectors is that of the gradients divided by the gap between singular values: models are
drawn anew until the gaps are wide enough for a comparison.
"""

import random
from pathlib import Path
from typing import Callable

import torch
from galore_torch import GaLoreAdamW
from galore_torch.galore_projector import GaLoreProjector
from q_galore_torch.q_galore_projector import GaLoreProjector as QuantisedProjector
from safetensors.torch import load_file, save_file

import golden
from parity_rig import json_lines, worse
from tiny_models import tiny_tokenizer

STEPS, GAP, RANK = 20, 10, 4
REFRESHES = (1, GAP + 1)  # before these steps, counted from 0
LEARNING_RATE, GALORE_RATE, SCALE = 1e-3, 1e-2, 0.25
BETA2, EPSILON = 0.999, 1e-8
TEXT = "A jackscrew lifts a house with one hand, a turn at a time."
# Relative to the largest singular value. Gradients agree to about 1e-6 of it, so projectors to about 1e-4.
NARROWEST_GAP = 0.003
DRAWS = 100
TALL, WIDE, SQUARE = "layers.0.mlp.up_proj", "layers.1.mlp.down_proj", "layers.1.self_attn.o_proj"
CASES = {  # name: (the program's side, their projection, the linears); a square one has no other side
    "small": ("small", "std", (TALL, WIDE, SQUARE)),
    "big": ("big", "reverse_std", (TALL, WIDE)),
}


def narrowest_gap(gradient: torch.Tensor) -> float:
    """The narrowest gap between the singular values that matter, relative to the largest."""
    values = torch.linalg.svdvals(gradient)[:RANK + 1]
    return ((values[:-1] - values[1:]).min() / values[0]).item()


class OneStepEarlier(GaLoreProjector):
    """A projector that refreshes when it is told to, not by the count of steps."""

    def project(self, gradient: torch.Tensor, step: int) -> torch.Tensor:
        return super().project(gradient, 1)  # no multiple of the gap

    def refresh(self, gradient: torch.Tensor) -> None:
        super().project(gradient, 0)

    def basis(self) -> torch.Tensor:
        """A view of the basis as [size, rank], whichever way round theirs is."""
        return self.ortho_matrix if self.ortho_matrix.shape[1] == self.rank else self.ortho_matrix.T


class Check:
    def __init__(self, report, program, work: Path, seed: int, records: Path,
                 as_batch: Callable[[list[dict]], dict[str, torch.Tensor]]) -> None:
        self.report, self.program, self.work = report, program, work
        self.records, self.as_batch = records, as_batch
        self.random = random.Random(seed)

    def draw(self, directory: Path) -> dict[str, torch.Tensor]:
        tokenizer = tiny_tokenizer([TEXT], 300)
        tokenizer.save_pretrained(directory)
        config = golden.llama(len(tokenizer), max_position_embeddings=512, hidden=64, ffn=172, layers=2,
                              heads=4, kv_heads=2, tied=True)
        golden.write_config(golden.Case("galore", 0, [], config), directory)
        weights = golden.random_weights(golden.double_model(directory), self.random.randrange(2**31))
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        return weights

    def train(self, directory: Path, output: Path, targets: tuple[str, ...], steps: int, *more: str) -> list:
        """Runs the program; returns the learning rates of its steps."""
        self.program("train", f"model={directory}", f"data={self.records}", f"output_dir={output}",
                     "overwrite=true", "method=galore", "product=f32", "packing=false", "sequence_len=512",
                     "micro_batch_size=4", "gradient_accumulation_steps=2", f"max_steps={steps}",
                     "warmup_steps=1", "lr_scheduler_type=constant", f"learning_rate={LEARNING_RATE}",
                     f"galore_learning_rate={GALORE_RATE}", f"galore_scale={SCALE}", f"galore_rank={RANK}",
                     f"galore_target={','.join(targets)}", f"projection_update_gap={GAP}",
                     "projection_window=1", "stagger_refreshes=false", "subspace=svd",
                     "subspace_basis=original", f"adam_beta2={BETA2}", f"adam_epsilon={EPSILON}",
                     "weight_decay=0", "max_grad_norm=0", "save_steps=1", "save_total_limit=0", *more)
        events = json_lines((output / "train_log.jsonl").read_text())
        return [event["learning_rate"] for event in events if event["event"] == "step"]

    def state(self, output: Path, step: int, name: str) -> torch.Tensor:
        """The basis of a linear in the checkpoint after `step` steps."""
        return load_file(output / f"checkpoint-{step}/state.safetensors")[f"model.{name}.weight.projection"]

    def basis(self, output: Path, step: int, name: str) -> torch.Tensor:
        return self.state(output, step, name).view(torch.float32).reshape(-1, RANK).double()

    def reference(self, directory: Path, weights: dict, output: Path, rates: list[float], case: str):
        """Returns the weights after the same steps by galore-torch, the largest difference of projectors
        and the narrowest gap of singular values."""
        _, kind, targets = CASES[case]
        model = golden.double_model(directory)
        golden.load_weights(model, weights)
        batch = self.as_batch(self.program.tokens(directory, self.records))
        inside = {name: model.get_parameter(f"model.{name}.weight") for name in targets}
        others = [p for p in model.parameters() if all(p is not q for q in inside.values())]
        optimizer = GaLoreAdamW(
            [{"params": others, "factor": 1.0},
             {"params": list(inside.values()), "factor": GALORE_RATE / LEARNING_RATE, "rank": RANK,
              "update_proj_gap": GAP, "scale": SCALE, "proj_type": kind}],
            betas=(0.9, BETA2), no_deprecation_warning=True)
        projectors = {}
        for name, parameter in inside.items():
            projectors[name] = OneStepEarlier(RANK, update_proj_gap=GAP, scale=SCALE, proj_type=kind)
            first = self.basis(output, 1, name)
            tall = (parameter.shape[0] >= parameter.shape[1]) == (kind == "std")
            projectors[name].ortho_matrix = first.T if tall else first
            optimizer.state[parameter] = {"step": 0, "projector": projectors[name]}
        bases = {(step, name): self.basis(output, step + 1, name) for step in REFRESHES for name in targets}
        difference, gap = 0.0, 1.0
        with golden.DoublePrecision():
            for step, rate in enumerate(rates):
                if step in REFRESHES:
                    for name, parameter in inside.items():
                        gap = min(gap, narrowest_gap(parameter.grad))
                        projectors[name].refresh(parameter.grad)
                        ours, theirs = bases[step, name], projectors[name].basis()
                        difference = worse(difference, (ours @ ours.T - theirs @ theirs.T).abs().max().item())
                        theirs *= (ours * theirs).sum(0).sign()
                optimizer.zero_grad()
                golden.forward(model, batch)[1].backward()
                for group in optimizer.param_groups:
                    group["lr"] = rate * group["factor"]
                    # Their epsilon is added before the bias correction of the second moment.
                    group["eps"] = EPSILON * (1.0 - BETA2 ** (step + 1)) ** 0.5
                optimizer.step()
        return {name: p.detach() for name, p in inside.items()}, difference, gap

    def twenty_steps(self, case: str) -> None:
        side, _, targets = CASES[case]
        for draw in range(DRAWS):
            directory = self.work / f"galore_{case}_{draw}"
            output = directory / "trained"
            weights = self.draw(directory)
            rates = self.train(directory, output, targets, STEPS, f"galore_side={side}")
            theirs, difference, gap = self.reference(directory, weights, output, rates, case)
            if gap >= NARROWEST_GAP:
                break
        remark = f"model {draw + 1}, whose singular values are {gap:.2g} apart"
        self.report.line(f"galore.{case}.projectors", difference, 1e-4, remark)
        ours = load_file(output / "model.safetensors")
        for name, parameter in theirs.items():
            before = weights[f"model.{name}.weight"].double()
            value = ours[f"model.{name}.weight"]
            self.report.line(f"galore.{case}.{name.split('.')[-1]}",
                             golden.relative_error(value.double() - before, parameter - before), 1e-3,
                             f"of what it moved; {golden.relative_error(value, parameter):.1g} of the weight")

    def four_bits(self) -> None:
        """Compares a basis in Q-GaLore's four bits. Its optimizer synchronises with a GPU in every step, so
        nothing more of it runs without one."""
        for draw in range(DRAWS):
            directory = self.work / f"galore_int4_{draw}"
            output = directory / "trained"
            weights = self.draw(directory)
            model = golden.double_model(directory)
            golden.load_weights(model, weights)
            batch = self.as_batch(self.program.tokens(directory, self.records))
            with golden.DoublePrecision():
                golden.forward(model, batch)[1].backward()
            gradient = model.get_parameter(f"model.{WIDE}.weight").grad
            if narrowest_gap(gradient) >= NARROWEST_GAP:
                break
        self.train(directory, output, (WIDE,), 2, "projection_dtype=int4")
        gradient = gradient.float()
        stored = self.state(output, 2, WIDE)
        size = gradient.shape[0] * RANK
        packed, groups = stored[:size // 2], size // 256
        codes = torch.stack([packed >> 4, packed & 15], 1).reshape(groups, 256).double()
        scales = stored[size // 2:size // 2 + 4 * groups].view(torch.float32).double()[:, None]
        zeros = stored[-groups:].double()[:, None]
        ours = (codes - zeros) * scales

        projector = QuantisedProjector(RANK, quant=True, group_size=256, n_bit=4)
        exact = projector.get_orthogonal_matrix(gradient, RANK, "left")
        exact = exact * (ours.reshape(exact.shape) * exact).sum(0).sign().float()
        their_codes, their_scales, their_zeros, _ = projector._quantize(exact, 256, 4)
        theirs = (their_codes.double() - their_zeros) * their_scales.double()
        # Where an element is halfway between two codes, either is right.
        steps = exact.reshape(groups, 256).double() / their_scales
        tie = (steps - steps.floor() - 0.5).abs() < 1e-2
        apart = ((ours - theirs).abs() / their_scales)[~tie]
        self.report.line("galore.int4", apart.max().item(), 1e-3,
                         f"of a step; {int(tie.sum())} of {size} elements are between two codes")


def check_galore(report, program, work: Path, seed: int, records: Path,
                 as_batch: Callable[[list[dict]], dict[str, torch.Tensor]]) -> None:
    check = Check(report, program, work, seed, records, as_batch)
    for case in CASES:
        check.twenty_steps(case)
    check.four_bits()
