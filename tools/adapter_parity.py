"""Compares adapters of every kind with PEFT's. Called by tools/parity.py."""

import random
import shutil

import torch
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import load_file, save_file

import golden
from parity_rig import ADAM_EPSILON, TEXTS, Rig, as_batch, error, text_loss, worse


def check_adapters(rig: Rig) -> None:
    """Starts adapters of every kind with PEFT: ten steps of both, then PEFT opens the program's."""
    rng = random.Random(rig.seed)
    expression = r"model\.layers\.\d+\.(self_attn\.(q|k)|mlp\.(up|down))_proj"
    everywhere = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    cases = {
        "plain": (True, "f32", dict(target_modules=everywhere)),
        # alpha / sqrt(rank) is as large as the others' alpha / rank: at two to three times that, the
        # loss oscillates, and a difference in the last place grows a hundredfold in ten steps.
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
        rig.guard(f"adapters.{name}",
                  lambda: check_adapter(rig, f"adapters.{name}", tied, storage, config, rng))


def check_adapter(rig: Rig, name: str, tied: bool, storage: str, config: dict,
                  rng: random.Random) -> None:
    directory, tokenizer, weights = rig.three_layers(name, tied, rng.randrange(2**31))
    # PEFT reads the base's values as its storage rounds them.
    decoded = directory
    if storage == "nf4":
        packed, decoded = rig.work / f"{name}.packed", rig.work / f"{name}.decoded"
        linears = rig.work / f"{name}.linears"
        linears.mkdir()
        save_file({n: w for n, w in weights.items() if n.endswith("_proj.weight")},
                  linears / "model.safetensors", metadata={"format": "pt"})
        rig.convert(linears, packed, storage)
        rig.convert(packed, decoded, "f32")
        values = weights | load_file(decoded / "model.safetensors")
        save_file(values, decoded / "model.safetensors", metadata={"format": "pt"})
        shutil.copy(directory / "config.json", decoded)

    def base() -> torch.nn.Module:
        model = golden.double_model(directory)
        golden.load_weights(model, load_file(decoded / "model.safetensors"))
        return model

    begun, output = rig.work / f"{name}.begun", rig.work / f"{name}.trained"
    model = get_peft_model(base().float(), LoraConfig(task_type="CAUSAL_LM",
                                                      **(dict(r=4, lora_alpha=8) | config)))
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    with torch.no_grad():
        for key, parameter in sorted(model.named_parameters()):
            if ".lora_B" in key:  # starting at 0, it would test little
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(begun)
    steps = rig.ten_steps(directory, output, "method=lora", f"adapter={begun}",
                          f"storage={storage}", "lora_b_learning_rate_ratio=4",
                          f"adam_epsilon={ADAM_EPSILON}")
    model = PeftModel.from_pretrained(base(), begun, is_trainable=True,
                                      autocast_adapter_dtype=False).double()
    optimizer = create_loraplus_optimizer(model, torch.optim.AdamW, lr=golden.LEARNING_RATE,
                                          loraplus_lr_ratio=4.0, betas=(0.9, 0.999),
                                          eps=ADAM_EPSILON)
    batch = as_batch(rig.program.tokens(directory, rig.records))
    with golden.DoublePrecision():
        theirs = golden.train(model, batch, optimizer=optimizer)
    rig.same_steps(name, steps, theirs, loss=1e-5, grad_norm=1e-3)
    model = PeftModel.from_pretrained(base(), output, autocast_adapter_dtype=False).double()
    ids = tokenizer(TEXTS["prose"]).input_ids
    with golden.DoublePrecision():
        loss = text_loss(model.eval(), ids)
    ours = rig.program.loss(rig.texts["prose"], f"model={directory}", f"adapter={output}",
                            f"storage={storage}")
    rig.report.line(f"{name}.opened", abs(ours - loss) / loss, 1e-5, f"loss {loss:.5f}")


class AfterPrompt(torch.nn.Module):
    """Wraps a model with a soft prompt and returns only the logits of the text."""

    def __init__(self, model: torch.nn.Module, tokens: int) -> None:
        super().__init__()
        self.model, self.tokens = model, tokens

    def forward(self, **inputs):
        out = self.model(**inputs)
        out.logits = out.logits[:, self.tokens:]
        return out


def check_pissa(rig: Rig) -> None:
    """Adapters that start as principal parts of their weights: ten steps of both, PEFT opens ours."""
    output = rig.work / "pissa.trained"
    directory, tokenizer, weights = rig.three_layers("pissa", True, rig.seed)
    # Well separated singular values: rounding mixes the vectors of close ones, and AdamW does not
    # learn the same in another basis.
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

    # At a rank of half the width the program's subspace is the whole space, so its singular vectors are exact.
    steps = rig.ten_steps(directory, output, "method=lora", "lora_init=pissa", "lora_rank=32",
                          "lora_alpha=4", f"adam_epsilon={ADAM_EPSILON}")
    config = LoraConfig(task_type="CAUSAL_LM", r=32, lora_alpha=4, target_modules="all-linear",
                        init_lora_weights="pissa")
    model = get_peft_model(base().float(), config).double()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=golden.LEARNING_RATE, betas=(0.9, 0.999),
                                  eps=ADAM_EPSILON, weight_decay=0)
    batch = as_batch(rig.program.tokens(directory, rig.records))
    with golden.DoublePrecision():
        theirs = golden.train(model, batch, optimizer=optimizer)
    rig.same_steps("pissa", steps, theirs, loss=1e-5, grad_norm=1e-3)
    ids = tokenizer(TEXTS["prose"]).input_ids
    opened = PeftModel.from_pretrained(base(), output, autocast_adapter_dtype=False).double()
    with golden.DoublePrecision():
        loss, direct = text_loss(opened.eval(), ids), text_loss(model.eval(), ids)
    rig.report.line("pissa.10_steps.trained", abs(direct - loss) / loss, 1e-5)
    worst = moved = 0.0
    for path, module in model.named_modules():
        if hasattr(module, "lora_A"):
            other = opened.get_submodule(path)
            trained = module.base_layer.weight + module.get_delta_weight("default")
            ours = other.base_layer.weight + other.get_delta_weight("default")
            worst = worse(worst, (ours - trained).abs().max().item())
            moved = max(moved, (trained - other.base_layer.weight).abs().max().item())
    rig.report.line("pissa.10_steps.weights", worst / moved, 1e-3,
                    "largest difference, of the largest that one moved")
    ours = rig.program.loss(rig.texts["prose"], f"model={directory}", f"adapter={output}")
    rig.report.line("pissa.opened", abs(ours - loss) / loss, 1e-5, f"loss {loss:.5f}")


def check_prompt(rig: Rig) -> None:
    """Starts a soft prompt with PEFT: ten steps of both, then PEFT opens the program's."""
    tokens = 6
    begun, output = rig.work / "prompt.begun", rig.work / "prompt.trained"
    directory, tokenizer, weights = rig.three_layers("prompt", True, rig.seed)

    def base() -> torch.nn.Module:
        model = golden.double_model(directory)
        golden.load_weights(model, weights)
        return model

    torch.manual_seed(rig.seed)
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=tokens,
                                prompt_tuning_init="SAMPLE_VOCAB")
    get_peft_model(base().float(), config).save_pretrained(begun)
    steps = rig.ten_steps(directory, output, "method=prompt", f"adapter={begun}",
                          f"adam_epsilon={ADAM_EPSILON}")
    # PEFT cannot continue to train a prompt that it has read.
    model = get_peft_model(base(), config).double()
    begin = load_file(begun / "adapter_model.safetensors")["prompt_embeddings"]
    with torch.no_grad():
        model.prompt_encoder["default"].embedding.weight.copy_(begin)
    batch = as_batch(rig.program.tokens(directory, rig.records))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=golden.LEARNING_RATE, betas=(0.9, 0.999),
                                  eps=ADAM_EPSILON, weight_decay=0)
    with golden.DoublePrecision():
        theirs = golden.train(AfterPrompt(model, tokens), batch, optimizer=optimizer)
    rig.same_steps("prompt", steps, theirs, loss=1e-5, grad_norm=1e-3)
    moved = load_file(output / "adapter_model.safetensors")["prompt_embeddings"].double()
    rig.report.line("prompt.10_steps.weights",
                    error(moved - begin, trained[0].detach() - begin), 1e-3)
    model = PeftModel.from_pretrained(base(), output, autocast_adapter_dtype=False).double()
    with golden.DoublePrecision():
        loss = text_loss(AfterPrompt(model, tokens).eval(), tokenizer(TEXTS["prose"]).input_ids)
    ours = rig.program.loss(rig.texts["prose"], f"model={directory}", f"adapter={output}")
    rig.report.line("prompt.opened", abs(ours - loss) / loss, 1e-5, f"loss {loss:.5f}")
