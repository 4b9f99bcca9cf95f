"""Compares the 8-bit states of AdamW with those of bitsandbytes. Called by tools/parity.py."""

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import golden
from parity_rig import TEXTS, Report, Rig, as_batch, error, worse
from tiny_models import tiny_tokenizer


def eight_bit_states(first: dict):
    """The (name, state) of parameters that bitsandbytes keeps in 8 bits."""
    return ((name, state) for name, state in first.items()
            if state["state1"].dtype == torch.uint8)


def check_states(rig: Rig) -> None:
    """Ten steps with 8-bit states, compared with those of bitsandbytes on the CPU."""
    try:
        import bitsandbytes
    except ImportError as missing:
        print(f"skip states: {missing} (script/setup --oracle installs it)", flush=True)
        return
    directory, output = rig.work / "tiny_states", rig.work / "states"
    tokenizer = tiny_tokenizer(list(TEXTS.values()), 300)
    tokenizer.save_pretrained(directory)
    config = golden.llama(len(tokenizer), max_position_embeddings=512, hidden=64, ffn=172,
                          layers=2, heads=8, kv_heads=8, tied=False)
    golden.write_config(golden.Case("states", rig.seed, [], config), directory)
    weights = golden.random_weights(golden.double_model(directory), rig.seed)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    batch = as_batch(rig.program.tokens(directory, rig.records))

    def reference() -> torch.nn.Module:
        return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                                    attn_implementation="eager")

    steps = rig.ten_steps(directory, output, "optimizer=adamw_8bit", "save_steps=1",
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
    rig.report.line("states.10_steps.loss", error(ours, theirs), 1e-3,
                    f"f32 states are {error(exact, theirs):.2g} away")
    saved = load_file(output / "checkpoint-1" / "state.safetensors")
    for moment, key in (("m", "1"), ("v", "2")):
        first_states(rig.report, moment, key, saved, first)
    first_codes(rig.report, saved, first)
    first_rounding(rig.report, saved, first)


def first_states(report: Report, moment: str, key: str, saved: dict, first: dict) -> None:
    """Compares the moments after one step, in units of the widest gap between two codes: the CPU
    code of bitsandbytes 0.50 looks codes up in a table that is off by several codes below a
    thousandth of a block's largest, and occasionally by one above."""
    scale_error, value_error = 0.0, 0.0
    for name, state in eight_bit_states(first):
        scale = state[f"absmax{key}"].double()
        scale_error = worse(scale_error, error(saved[f"{name}.{moment}_absmax"], scale))
        values = state[f"qmap{key}"].double()
        ours, theirs = (values[codes.flatten().long()] for codes in
                        (saved[f"{name}.{moment}"], state[f"state{key}"]))
        learnt = (scale > 0).repeat_interleave(256)[:len(ours)]
        value_error = worse(value_error, (ours - theirs)[learnt].abs().max().item())
    report.line(f"states.1_step.{moment}_absmax", scale_error, 1e-5)
    report.line(f"states.1_step.{moment}_values", value_error, 0.0142,
                "of a block's largest")


def first_codes(report: Report, saved: dict, first: dict) -> None:
    """Compares codes of first moments from a hundredth of a block's largest on (see first_states)."""
    apart = []
    for name, state in eight_bit_states(first):
        values = state["qmap1"].double()
        ours, theirs = (codes.flatten().long() for codes in
                        (saved[f"{name}.m"], state["state1"]))
        learnt = (state["absmax1"] > 0).repeat_interleave(256)[:len(ours)]
        apart.append((ours - theirs).abs()[learnt & (values[theirs].abs() > 0.01)])
    apart = torch.cat(apart)
    report.line("states.1_step.m_codes", (apart > 0).double().mean().item(), 0.01,
                f"of {len(apart)} differ, by {apart.max().item()} at most")


def first_rounding(report: Report, saved: dict, first: dict) -> None:
    """Second moments are rounded stochastically, while bitsandbytes rounds to nearest: each must be
    one of the two codes around its exact value, and the sum of rounding errors must be that of
    unbiased rounding, within 5 standard deviations."""
    outside, compared, added, variance = 0, 0, 0.0, 0.0
    for name, state in eight_bit_states(first):
        values = state["qmap2"].double()
        scale = state["absmax2"].double().repeat_interleave(256)[:state["gradient"].numel()]
        square = 0.001 * state["gradient"].flatten().double() ** 2  # (1 - beta2) g^2
        exact = (square / scale)[scale > 0].clamp(max=1)
        codes = saved[f"{name}.v"].flatten().long()[scale > 0]
        above = torch.searchsorted(values, exact).clamp(1, len(values) - 1)
        lower, upper = values[above - 1], values[above]
        # Gradients agree to 1e-5 of the block's largest: a value that close to a code may have been
        # on its other side.
        slack = (exact.sqrt() + 1e-5) ** 2 - exact
        rounded = values[codes]
        outside += int(((rounded < lower - slack) | (rounded > upper + slack)).sum())
        compared += len(exact)
        # A number other than 0 never becomes 0, so rounding is biased below the smallest code.
        unbiased = lower > 0
        added += (rounded - exact)[unbiased].sum().item()
        variance += ((upper - exact) * (exact - lower))[unbiased].sum().item()
    report.line("states.1_step.v_codes", outside, 0,
                f"of {compared} are not beside their value")
    report.line("states.1_step.v_bias", abs(added) / variance ** 0.5, 5,
                "standard deviations of unbiased rounding")
