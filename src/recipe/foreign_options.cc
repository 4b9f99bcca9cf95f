#include "recipe/foreign_options.h"

namespace jackscrew {

namespace {

// Of methods that other programs have as an optimizer as well.
constexpr const char* kGalore = "method=galore; method=qgalore with int8 weights and 8-bit states";
constexpr const char* kLomo = "update=fused, with any method";
constexpr const char* kOtherFullMethods =
    "method=rotary and method=qgalore train every weight in little memory; docs/methods.md has the "
    "settings of BAdam, LISA and HiFT";

constexpr const char* kFreeze =
    "method=rotary and method=qgalore train every weight in little memory, method=lora trains "
    "adapters only";

constexpr bool kSwitch = true;

constexpr ForeignName kOptions[] = {
    {"load_in_4bit quantization_bit",
     "storage=nf4 keeps frozen weights in 4 bits; method=qlora sets it", kSwitch},
    {"quant", "storage=TYPE: of the weights in memory or, where a model is written, in its files"},
    {"load_in_8bit", "storage=int8 keeps frozen weights in 8 bits", kSwitch},
    {"bnb_4bit_quant_type bnb_4bit_compute_dtype quantization_method",
     "storage=nf4 (or nf4_double) and product=bf16 say how weights are kept and multiplied"},
    {"bnb_4bit_use_double_quant double_quantization", "storage=nf4_double", kSwitch},
    {"bf16 fp16 tf32 pure_bf16 mixed_precision bf16_full_eval fp16_full_eval",
     "product=bf16 multiplies in bf16; product=f32 is exact", kSwitch},
    {"torch_dtype dtype",
     "storage=bf16, f16 or f32 says how weights are kept, product how they are multiplied"},
    {"flash_attention flash_attn sdp_attention attn_implementation xformers_attention "
     "flash_optimum",
     "attention never forms the whole matrix of scores here: nothing to set; attention=cudnn is "
     "cuDNN's"},
    {"model_name", "model=DIR or model=FILE.gguf"},
    {"dataset_path dataset_name train_file train_data train_dataset", "data=FILE"},
    {"interleave_probs", "data_weights=X,Y says how often an epoch sees each data set"},
    {"test_datasets validation_file eval_file", "eval_data=FILE"},
    {"dataset_dir", "data=DIR/FILE: data are named by their paths"},
    {"max_seq_len seq_len seq_length block_size context_length ctx_size n_ctx", "sequence_len=N"},
    {"stage",
     "train fine-tunes on answers, or on texts where data are texts; other stages are not "
     "supported yet"},
    {"eval_max_new_tokens",
     "leave it out: report_samples=N says how many sample answers there are, a run's memory how "
     "long"},
    {"do_train do_eval do_predict", "the command says what is done: train, eval or generate",
     kSwitch},
    {"predict_with_generate", "report_samples=N answers prompts of the held-out data", kSwitch},
    {"overwrite_output_dir", "overwrite=true starts over in an output_dir that has a run", kSwitch},
    {"overwrite_cache",
     "leave it out: tokens that a run keeps are made anew where the data have changed"},
    {"dataset_prepared_path",
     "leave it out: tokens of large data are kept in output_dir/tokens, and made anew where the "
     "data have changed"},
    {"strict", "leave it out: an option that is not known is always refused"},
    {"config config_file", "a recipe is named by itself: jackscrew train FILE.yaml"},
    {"use_peft", "method=lora, the default, trains an adapter; method=full trains the whole model"},
    {"lora_parameters", "lora_rank=N, lora_alpha=X and lora_dropout=X are options of their own"},
    {"freeze_trainable_layers freeze_trainable_modules unfrozen_parameters", kFreeze},
    {"lora_target_linear lora_modules",
     "lora_target=all-linear, the default, is every linear layer of the blocks"},
    {"use_pissa pissa_init", "lora_init=pissa", kSwitch},
    {"peft_use_rslora", "use_rslora=true", kSwitch},
    {"lora lora_path", "adapter=DIR applies an adapter; method=lora trains one"},
    {"adapter_path lora_model_dir",
     "adapter=DIR continues training an adapter; output_dir is where the result is written"},
    {"gradient_accumulation", "gradient_accumulation_steps=N"},
    {"per_device_eval_batch_size eval_batch_size eval_accumulation_steps",
     "evaluation chooses its batches itself"},
    {"grad_clip gradient_clipping clip_grad", "max_grad_norm=X"},
    {"beta1 beta2 adam_beta", "adam_beta1=X, adam_beta2=X"},
    {"warmup", "warmup_ratio=X or warmup_steps=N"},
    {"warmup_steps=0.01 warmup_steps=0.02 warmup_steps=0.03 warmup_steps=0.05 warmup_steps=0.06 "
     "warmup_steps=0.1 warmup_steps=0.15 warmup_steps=0.2",
     "warmup_ratio=X is a share of the steps"},
    {"total_steps iters", "max_steps=N"},
    {"checkpoint_steps save_every", "save_steps=N"},
    {"save_first_step", "save_steps=N saves after every N steps, not after the first alone",
     kSwitch},
    {"save_safetensors", "leave it out: weights are always written as safetensors", kSwitch},
    {"log_every_n_steps", "logging_steps=N"},
    {"lr_schedule", "lr_scheduler_type=constant, linear or cosine; warmup_steps=N"},
    {"eval_steps=0.05 eval_steps=0.1 eval_steps=0.2 eval_steps=0.25 eval_steps=0.5 "
     "save_steps=0.05 save_steps=0.1 save_steps=0.2 save_steps=0.25 save_steps=0.5",
     "a number of steps; a share of them is not taken"},
    {"val_size=1% val_size=2% val_size=5% val_size=10% val_size=20%",
     "a share is written as a fraction: val_size=0.05"},
    {"resume=yes resume=no resume=on resume=off resume=none",
     "resume=auto continues from the last checkpoint, resume=never starts over"},
    {"save_strategy eval_strategy evaluation_strategy logging_strategy",
     "save_steps, eval_steps and logging_steps count steps"},
    {"evals_per_epoch saves_per_epoch", "eval_steps and save_steps count steps"},
    {"early_stopping", "early_stopping_patience=N", kSwitch},
    {"wandb_project wandb_entity wandb_name report_to use_wandb mlflow_experiment_name",
     "train writes train_log.jsonl, TensorBoard's files and report.html; nothing is sent anywhere"},
    {"deepspeed fsdp fsdp_config ddp ddp_backend accelerator_config parallelism_config local_rank",
     "`mpirun -n N jackscrew train ...` shares a run out: each rank has a copy of the model, or "
     "with pipeline_stages=N a part of it"},
    {"ddp_timeout", "communication_timeout=SECONDS, for a rank of mpirun that falls silent"},
    {"trust_remote_code hf_use_auth_token push_to_hub hub_model_id hub_token hub_revision revision",
     "nothing is downloaded, uploaded or run from a model's repository"},
    {"neftune_noise_alpha noisy_embedding_alpha", "NEFTune is not there"},
    {"label_smoothing_factor", "label smoothing is not there"},
    {"output_field", "field_output=KEY"},
    {"chat_template=default chat_template=tokenizer_default",
     "chat_template=auto, the default, is the model's own"},
    {"chat_template_jinja chat_template_file chat_template_path", "chat_template=FILE.jinja"},
    {"max_tokens n_predict", "max_new_tokens=N bounds an answer"},
    {"temp", "temperature=X"},
    {"repeat_penalty", "repetition_penalty=X"},
    {"system_prompt", "system=TEXT"},
    {"default_system default_system_message",
     "system=TEXT is for generate and chat; train takes the system prompt that a record has"},
    {"device_map cuda gpu use_cpu no_cuda ngl n_gpu_layers",
     "device=cuda:0 computes on a GPU, device=cpu on the CPU"},
    {"num_workers preprocessing_num_workers dataloader_num_workers dataset_processes "
     "dataloader_prefetch_factor dataloader_persistent_workers dataloader_pin_memory",
     "threads=N is also how many threads read the data"},
    {"beta pref_beta rl rl_beta", "preference training (DPO and the like) is not supported yet"},
    {"special_tokens tokens bos_token eos_token pad_token added_tokens_overrides",
     "special tokens are those of the tokenizer's own files; new ones cannot be added"},
    {"model_type tokenizer_type processor_type is_llama_derived_model rope_theta rope_scaling",
     "the model's files say what it is: leave it out"},
    {"optimizer=adamw_torch optimizer=adamw_torch_fused optimizer=adamw_hf optimizer=adam "
     "optimizer=paged_adamw optimizer=paged_adamw_32bit",
     "optimizer=adamw"},
    {"optimizer=adamw_bnb_8bit optimizer=adamw_torch_8bit optimizer=paged_adamw_8bit",
     "optimizer=adamw_8bit"},
    {"use_galore optimizer=galore_adamw optimizer=galore_adamw_8bit "
     "optimizer=galore_adamw_layerwise optimizer=galore_adamw_8bit_layerwise "
     "optimizer=galore_adafactor optimizer=galore_adafactor_layerwise",
     kGalore, kSwitch},
    {"optimizer=lomo optimizer=adalomo", kLomo},
    {"optimizer=apollo_adamw optimizer=apollo_adamw_layerwise", kOtherFullMethods},
    {"storage=4bit storage=4_bit", "storage=nf4 keeps frozen weights in 4 bits"},
    {"storage=8bit storage=8_bit", "storage=int8 keeps frozen weights in 8 bits"},
    {"lr_scheduler_type=linear_with_warmup",
     "lr_scheduler_type=linear; warmup_ratio and warmup_steps apply to it, too"},
    {"lr_scheduler_type=constant_with_warmup",
     "lr_scheduler_type=constant; warmup_ratio and warmup_steps apply to it, too"},
    {"max_steps=-1", "max_steps=0, the default: num_train_epochs says how long the run is"},
    {"gradient_checkpointing=unsloth", "gradient_checkpointing=true"},
    {"bias lora_bias", "adapters have no biases here: bias=none is what there is, leave it out"},
    {"lora_init=true lora_init=True", "lora_init=default, PEFT's true, is there anyway"},
    {"lora_init=gaussian lora_init=orthogonal lora_init=eva lora_init=olora lora_init=corda",
     "lora_init=default, PEFT's true, or pissa; over quantised weights also loftq"},
    {"lora_init=pissa_niter_1 lora_init=pissa_niter_2 lora_init=pissa_niter_4 "
     "lora_init=pissa_niter_8 lora_init=pissa_niter_16 lora_init=pissa_niter_32",
     "lora_init=pissa"},
    {"loftq_config", "lora_init=loftq"},
    {"fan_in_fan_out lora_fan_in_fan_out task_type peft_type inference_mode auto_mapping",
     "adapters are written as PEFT reads them: leave it out"},
    {"layers_to_transform layers_pattern peft_layers_to_transform exclude_modules",
     "lora_target=REGEX, for the whole paths of modules, says which layers get an adapter"},
    {"trainable_token_indices",
     "modules_to_save=embed_tokens trains the whole embedding beside an adapter"},
    {"prompt_tuning_init", "prompt_init_text=TEXT; without it prompts begin as frequent tokens"},
    {"use_gradient_checkpointing gradient_checkpointing_kwargs",
     "gradient_checkpointing=true or false"},
    {"group_by_length length_column_name pad_to_sequence_len pad_to_max_length padding_free "
     "eval_sample_packing neat_packing",
     "nothing is padded here; packing=true puts several records into one sequence", kSwitch},
    {"assistant_only_loss completion_only_loss roles_to_train",
     "answers are learned, or all with train_on_inputs=true"},
    {"mask_history", "all answers are learned; `train: false` in a message keeps one out"},
    {"dataset_type",
     "records are recognised by their keys; field_messages, field_text and their like name others"},
    {"tokenizer_name_or_path", "tokenizer=PATH"},
    {"data_seed full_determinism", "seed=N: the same recipe gives the same bits again"},
    {"auto_find_batch_size", "`jackscrew plan --fit` finds settings that fit the memory", kSwitch},
    {"torch_compile torch_compile_backend torch_compile_mode liger_kernel use_liger_kernel "
     "use_unsloth unsloth_cross_entropy_loss",
     "kernels are the program's own: leave it out"},
    {"activation_offloading",
     "gradient_checkpointing=true computes activations again instead of keeping them", kSwitch},
    {"lr_scheduler_kwargs cosine_min_lr_ratio min_lr lr_scheduler_type=cosine_with_min_lr",
     "lr_scheduler_type=cosine falls to 0"},
    {"metric_for_best_model greater_is_better",
     "load_best_model_at_end=true takes the lowest loss on eval_data"},
    {"eval_on_start", "eval_data is evaluated before and after the run anyway"},
    {"save_steps=-1", "save_steps=0, the default: no checkpoint every so many steps"},
    {"run_name", "output_dir=DIR names a run"},
    {"disable_tqdm log_level", "quiet=true shows warnings and errors only", kSwitch},
    {"wd", "weight_decay=X"},
    {"plot_loss", "report.html has the curves"},
    {"<<", "a merge key: write what it stands for, one `key: value` line for each setting"},
};

constexpr ForeignName kMethods[] = {
    {"dpo orpo kto simpo grpo ppo rlhf rm",
     "preference training is not supported yet; method=lora or full fine-tunes on the chosen "
     "answers: field_instruction=prompt field_output=chosen where they are texts, "
     "field_messages=chosen where they are whole conversations; lists of messages beside a list "
     "called prompt are to be called completion in the file"},
    {"dora", "method=lora use_dora=true"},
    {"prompt_tuning soft_prompt", "method=prompt"},
    {"pissa", "method=lora lora_init=pissa"},
    {"loftq", "method=qlora lora_init=loftq"},
    {"ia3 prefix adalora oft vera",
     "the adapters supported are LoRA's (method=lora, with use_rslora=true or use_dora=true if "
     "wanted) and soft prompts (method=prompt)"},
    {"q_galore", "method=qgalore"},
    {"galore_adamw galore_adamw_8bit galore_adamw_layerwise galore_adamw_8bit_layerwise", kGalore},
    {"lomo adalomo", kLomo},
    {"apollo badam lisa hift", kOtherFullMethods},
    {"sft finetune fine_tune", "method=lora, qlora, full, rotary or qgalore says how to fine-tune"},
    {"freeze", kFreeze},
    {"pretrain pt", "method=full init=random trains from scratch"},
};

}  // namespace

std::span<const ForeignName> foreign_options() {
  return kOptions;
}

const char* foreign_method(std::string_view name) {
  const ForeignName* method = find_row(kMethods, name);
  return method == nullptr ? nullptr : method->hint;
}

}  // namespace jackscrew
