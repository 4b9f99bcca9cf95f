// The table of subcommands: what each is called, shows in its help, and reads.
#include <algorithm>
#include <initializer_list>

#include "cli/commands.h"
#include "cli/quantise.h"
#include "conversion/rate_fit.h"
#include "recipe/run_options.h"

namespace jackscrew {

namespace {

using Names = std::vector<std::string>;

Names joined(std::initializer_list<Names> lists) {
  Names all;
  for (const Names& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// A new subcommand is a new row here.
std::vector<Subcommand> make_table() {
  using namespace option_titles;
  const Names tokens = {"tokenizer", "chat_template", "chat_date"};
  const Names products = {"weights", "product", "product_exclude", "attention"};
  const Names computing = joined({{"storage", "seed"}, products});
  const Names scored = {"eval_data", "max_samples", "sequence_len", "excess_length_strategy",
                        "train_on_inputs"};
  const Names written = {"output_dir", "overwrite", "json"};
  const Names random = {"init", "checkpoint_dtype"};
  const Names of_a_run = {kMethod, kSchedule, kRanks};
  // For merge and export, where they quantise to a rate that a training run has room for.
  const auto fits_a_run = [](const OptionSet& options) {
    return quantises(options) && rate_fits_a_run(options);
  };
  const std::vector<Subcommand::Accepted> rounding = {{{kData, kQuantisation}, quantises},
                                                      {of_a_run, fits_a_run}};
  return {
      {.name = "train",
       .summary = "fine-tune a model, or train one from scratch",
       .usage = "[RECIPE.yaml] [name=value ...]",
       .examples = {"jackscrew train model=SmolLM2-135M data=train.jsonl output_dir=runs/first",
                    "jackscrew train run.yaml learning_rate=1e-4 method=full"},
       .tables = {kModel, kData, kRecords, kRanks, kMethod, kSchedule, kMachine, kOutput},
       .options = {"overwrite", "max_shard_size"},
       .run = run_train,
       .writes_recipes = true,
       .by_ranks = true},
      {.name = "eval",
       .summary = "measure the loss and perplexity of a model",
       .usage = "model=MODEL data=FILE [name=value ...]",
       .examples = {"jackscrew eval model=runs/first data=heldout.jsonl",
                    "jackscrew eval model=SmolLM2-135M data=a.jsonl,book.txt stride=512 --json"},
       .tables = {kModel, kData, kRecords, kEvaluation, kMachine},
       .options = joined({computing, {"json"}}),
       .unused = {"packing"},
       .asked = random,
       .run = run_eval},
      {.name = "plan",
       .summary = "show the memory that a training run needs, and what would reduce it",
       .usage = "[RECIPE.yaml] [name=value ...]",
       .examples = {"jackscrew plan run.yaml device_memory=16GiB",
                    "jackscrew plan model=llama-7b init=random method=full",
                    "jackscrew plan model=model.gguf method=lora sequence_len=4096 --json"},
       .tables = {kModel, kData, kRanks, kMethod, kSchedule, kMachine, kOutput},
       .options = {"max_shard_size", "fit", "ranks", "json"},
       .accepted = {{{kRecords}}},
       .run = run_plan,
       .writes_recipes = true},
      {.name = "generate",
       .summary = "generate text from a prompt",
       .usage = "model=M prompt=TEXT [name=value ...]",
       .examples = {"jackscrew generate model=runs/mine prompt=\"What is a jackscrew?\"",
                    "jackscrew generate model=model.gguf prompt=Hello temperature=0.8 top_p=0.95",
                    "jackscrew generate model=runs/mine < prompt.txt",
                    "jackscrew generate model=model.gguf adapter=runs/lora prompt=Hello --json"},
       .tables = {kModel, kGeneration, kMachine},
       .options = joined({computing, {"json"}}),
       .unused = {"context"},
       .asked = random,
       .run = run_generate},
      {.name = "chat",
       .summary = "chat with a model, one message per line",
       .usage = "model=M [name=value ...]",
       .examples =
           {"jackscrew chat model=runs/mine",
            "jackscrew chat model=model.gguf system=\"Answer in one sentence.\" temperature=0.7"},
       .tables = {kModel, kGeneration, kMachine},
       .options = joined({computing, {"json"}}),
       .unused = {"prompt"},
       .asked = random,
       .run = run_chat},
      {.name = "inspect",
       .summary = "show what is in a model, a shape or an adapter",
       .usage = "PATH [--verbose] [--json]",
       .examples = {"jackscrew inspect model.gguf", "jackscrew inspect runs/lora --verbose",
                    "jackscrew inspect llama-60m --json"},
       .options = {"model", "verbose", "json"},
       .run = run_inspect},
      {.name = "data",
       .summary = "show how data are read, tokenized and trained on",
       .usage = "preview|stats|tokenize model=M data=D [name=value ...]",
       .examples = {"jackscrew data preview model=model.gguf data=train.jsonl",
                    "jackscrew data stats model=model.gguf data=train.jsonl sequence_len=512",
                    "jackscrew data tokenize model=model.gguf data=book.txt --json"},
       .tables = {kModel, kData, kRecords},
       .options = {"micro_batch_size", "gradient_accumulation_steps", "seed", "prompt_tokens",
                   "threads", "json"},
       .unused = {"eval_data"},
       .run = run_data},
      {.name = "merge",
       .summary = "make one model of a model and adapters",
       .usage = "model=M adapter=A[,A] output_dir=DIR|output=FILE.gguf [name=value ...]",
       .examples = {"jackscrew merge model=SmolLM2-135M adapter=runs/lora output_dir=merged",
                    "jackscrew merge model=model.gguf adapter=runs/lora output=merged.gguf "
                    "storage=q8_0 eval_data=heldout.jsonl max_merge_loss=0.01",
                    "jackscrew merge model=M adapter=a,b adapter_weight=0.7,0.3 output_dir=both "
                    "storage=bf16"},
       .tables = {kModel, kRecords, kConversion, kMachine},
       .options = joined({computing, scored, written}),
       .unused = joined({random, {"data_weights", "val_size", "packing"}}),
       .accepted = rounding,
       .run = run_merge},
      {.name = "export",
       .summary = "write a model as files for other programs: GGUF, Hugging Face, GPTQ, EXL2",
       .usage = "model=M output_dir=DIR|output=FILE.gguf [name=value ...]",
       .examples = {"jackscrew export model=runs/mine output=mine.gguf storage=q8_0",
                    "jackscrew export model=model.gguf output_dir=model-hf storage=bf16",
                    "jackscrew export model=runs/mine output_dir=mine-exl2 format=exl2"},
       .tables = {kModel, kRecords, kConversion, kMachine},
       .options = joined({computing, scored, written}),
       .unused = joined({random, {"data_weights", "val_size", "packing"}}),
       .accepted = rounding,
       .run = run_export},
      {.name = "quantize",
       .summary = "round a model to few bits, calibrated on text (GGUF, GPTQ, EXL2, NF4)",
       .usage =
           "model=M [adapter=A[,A]] [data=FILE] output_dir=DIR|output=FILE.gguf [name=value ...]",
       .examples =
           {"jackscrew quantize model=M data=book.txt output=m.gguf storage=q4_k_m",
            "jackscrew quantize model=SmolLM2-135M data=train.jsonl output_dir=gptq bits=4",
            "jackscrew quantize model=M data=book.txt output_dir=small bits=3 group_size=64 "
            "desc_act=true eval_data=heldout.jsonl",
            "jackscrew quantize format=exl2 bits=4.25 model=M output_dir=D",
            "jackscrew quantize model=M adapter=runs/lora data=book.txt output_dir=D",
            "jackscrew quantize model=M data=book.txt output_dir=D --dry-run"},
       .tables = {kModel, kData, kRecords, kQuantisation, kConversion, kMachine},
       .options = joined({computing, written, {"ranks"}}),
       .unused = joined({random, {"data_weights", "val_size", "packing"}}),
       .accepted = {{of_a_run, rate_fits_a_run}},
       .run = run_quantise},
      {.name = "compare",
       .summary = "show how far models are from the first of them: loss, KL, size, speed",
       .usage = "MODEL MODEL [MODEL ...] eval_data=FILE [name=value ...]",
       .examples = {"jackscrew compare SmolLM2-135M q8_0.gguf q4_k.gguf eval_data=heldout.jsonl",
                    "jackscrew compare model.gguf q4_k_m.gguf eval_data=book.txt output=page.html"},
       .tables = {kRecords, kMachine},
       .options = joined({tokens, products, scored, {"json", "output", "overwrite"}}),
       .run = run_compare},
      {.name = "report",
       .summary = "write report.html of a training run from its log, also while it is running",
       .usage = "OUTPUT_DIR",
       .examples = {"jackscrew report runs/mine"},
       .options = {"output_dir"},
       .run = run_report},
      {.name = "logits",
       .summary = "write a text's ids and logits to a safetensors file",
       .usage = "model=M data=FILE output=OUT.safetensors [name=value ...]",
       .examples = {"jackscrew logits model=model.gguf data=book.txt output=logits.safetensors"},
       .tables = {kModel, kData, kRecords, kMachine},
       .options = joined({computing, {"output", "overwrite"}}),
       .asked = random,
       .run = run_logits,
       .hidden = true},
      {.name = "doctor",
       .summary = "show what the program finds on this machine",
       .usage = "[--json]",
       .examples = {"jackscrew doctor", "mpirun -n 2 --bind-to none jackscrew doctor"},
       .options = {"json"},
       .run = run_doctor,
       .by_ranks = true},
      {.name = "config",
       .summary = "write, check and explain recipes",
       .usage = "init METHOD [--all] | validate FILE.yaml [name=value ...] | schema",
       .words = {"METHOD: a method, as `jackscrew help train` lists them, or another recipe of the "
                 "program, such as int4",
                 "--all: every option that this method and product have, with its value"},
       .examples = {"jackscrew config init lora > run.yaml",
                    "jackscrew config validate run.yaml learning_rate=1e-4",
                    "jackscrew config schema > recipe.schema.json"},
       .run = run_config},
  };
}

}  // namespace

const std::vector<Subcommand>& command_table() {
  static const std::vector<Subcommand> kTable = make_table();
  return kTable;
}

const Subcommand* find_subcommand(std::string_view name) {
  for (const Subcommand& command : command_table()) {
    if (command.name == name) return &command;
  }
  return nullptr;
}

bool Subcommand::shows(const OptionSpec& option, const std::string& title) const {
  const std::string_view wanted = option.name;
  // with_recipe() reads these for every command.
  const bool always = wanted == "quiet" || wanted == "print_config";
  if (std::ranges::find(unused, wanted) != unused.end()) return false;
  return always || std::ranges::find(tables, title) != tables.end() ||
         std::ranges::find(options, wanted) != options.end();
}

bool Subcommand::uses(const OptionSpec& option, const std::string& title,
                      const OptionSet& given) const {
  if (shows(option, title)) return true;
  if (std::ranges::find(unused, option.name) != unused.end()) return false;
  return std::ranges::any_of(accepted, [&](const Accepted& also) {
    return std::ranges::find(also.tables, title) != also.tables.end() &&
           (also.with == nullptr || also.with(given));
  });
}

bool Subcommand::must_be_asked(const OptionSpec& option) const {
  return std::ranges::find(asked, option.name) != asked.end();
}

}  // namespace jackscrew
