// A recipe: everything that a run was asked to do, resolved and checked.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/command_line.h"
#include "base/file.h"
#include "base/options.h"
#include "data/record_fields.h"
#include "kernels/device.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "recipe/run_options.h"

namespace jackscrew {

enum class LongRecord;  // data/dataset.h

// The options that only one learner or one product reads.
struct MethodTable {
  const char* choice;  // the option that chooses it: "learner"
  const char* name;    // the value that does: "lora"
  std::span<const OptionSpec> options;
};

// Where frozen weights live on a CPU: in memory, or in the mapping of their file if they are used
// as they are stored there. With `automatic`, a training run keeps them in memory: it lasts longer
// than loading, its budget should include what each step reads, and huge pages are read faster.
enum class WeightPlace : uint8_t { automatic, memory, mmap };

// When a run ends before its last step.
struct WatchOptions {
  int64_t early_stopping_patience = 0;  // evaluations without a better one; 0: never stops
  double loss_watchdog_threshold = 0;   // of a step's loss; 0: never stops
  int64_t loss_watchdog_patience = 1;   // logged steps in a row above it
};

// A model that train writes beside its result.
struct RunExport {
  std::string text;     // as in the recipe: "gguf:q4_k_m"
  bool gguf = false;    // else a Hugging Face directory
  std::string storage;  // as merge and export take it; "keep" where none is given
};

// The options of run_options.h as typed values; the help there explains them.
struct Recipe {
  std::string model;
  std::string adapter;                // the first of `adapters`; empty: none
  std::vector<std::string> adapters;  // several: for commands that merge them into one model
  bool random_init = false;
  std::string checkpoint_dtype;
  std::string tokenizer;
  std::string chat_template;
  std::optional<std::chrono::year_month_day> chat_date;  // none: today

  std::vector<std::string> data;
  std::vector<double> data_weights;  // one for each of data, or empty
  std::vector<std::string> eval_data;
  double val_size = 0;
  int64_t max_samples = 0;   // 0: all
  LongRecord long_record{};  // truncate
  int64_t sequence_len = 0;
  bool packing = false;
  bool train_on_inputs = false;
  RecordFields fields;
  bool skip_bad_records = false;

  std::string method;
  std::string storage;
  WeightPlace weights = WeightPlace::automatic;
  std::string product;
  std::vector<std::string> product_exclude;
  std::string learner;
  std::string optimizer;
  std::optional<bool> gradient_checkpointing;  // nullopt: when memory needs it

  int64_t micro_batch_size = 0;
  int64_t gradient_accumulation_steps = 0;
  int64_t data_parallel = 0;  // lanes of a step; 0: one for each replica
  int64_t pipeline_stages = 1;
  std::vector<int64_t> stage_split;  // blocks of each stage; empty: as equal as possible
  // Of each rank; empty: `device` and `device_memory` of all. See of_rank() in session/place.h.
  std::vector<std::string> rank_devices;
  std::vector<int64_t> rank_device_memory;                  // bytes
  std::chrono::duration<double> communication_timeout{30};  // seconds
  int64_t max_steps = 0;                                    // 0: by epochs
  double num_train_epochs = 0;
  double learning_rate = 0;
  ScheduleKind lr_schedule = ScheduleKind::cosine;
  double warmup_ratio = 0;
  std::optional<int64_t> warmup_steps;  // takes precedence over the ratio
  WeightDecay weight_decay;
  double max_grad_norm = 0;  // 0: no clipping
  bool clip_each_weight = false;
  bool fused_update = false;
  double adam_beta1 = 0;
  double adam_beta2 = 0;
  double adam_epsilon = 0;
  uint64_t seed = 0;

  std::string device;
  int threads = 1;
  std::string isa;
  AttentionLibrary attention = AttentionLibrary::own;
  std::optional<int64_t> device_memory;  // bytes
  std::optional<int64_t> host_memory;    // bytes

  std::string output_dir;
  bool overwrite = false;
  int64_t logging_steps = 0;
  int64_t eval_steps = 0;        // 0: only at the end
  int64_t save_steps = 0;        // 0: only at the end
  int64_t save_total_limit = 0;  // 0: no limit
  std::string resume;            // "auto", "never" or a checkpoint
  int64_t report_samples = 0;
  bool load_best_model_at_end = false;
  WatchOptions watch;
  int64_t stride = 0;  // 0: sequence_len

  std::vector<RunExport> exports;       // of train
  std::string format;                   // auto, hf, gguf, gptq or exl2
  std::vector<double> adapter_weights;  // one for each of adapters, or empty
  int64_t max_shard_bytes = 0;
  std::optional<double> max_merge_loss;  // nats

  std::string prompt;
  std::string system;   // empty: none
  int64_t context = 0;  // of a chat
  int64_t max_new_tokens = 0;
  double temperature = 0;
  int64_t top_k = 0;  // 0: all
  double top_p = 0;

  std::string output;
  bool json = false;
  bool quiet = false;
  bool fit = false;
  int ranks = 1;
  bool verbose = false;
  bool print_config = false;

  OptionSet options;                        // all values; learners and products read theirs here
  std::vector<std::string> skipped_titles;  // option tables of learners and products not in use
  std::vector<std::string> operands;        // of the command line, without the recipe file
  // Set by whoever runs the recipe, see open_device(); not part of its text.
  std::vector<fs::path> python_environments;

  // The resolved recipe as YAML, which reads back as the same run.
  std::string to_yaml() const { return options.to_yaml(skipped_titles); }
};

// The options of all learners and products in the program.
std::span<const MethodTable> method_tables();

// The title of such an option table: "Learner lora".
std::string method_title(const MethodTable& table);

// All options of a run with their defaults, including those of `tables`.
OptionSet run_options(std::span<const MethodTable> tables);

// Applies the preset of `method` to options that are not set explicitly, then checks the values
// against each other. Throws Error(usage) naming contradictory options.
Recipe resolve_recipe(OptionSet options, std::span<const MethodTable> tables);

// The recipe with another method if neither a method nor a learner was set; else as it is.
Recipe with_method(Recipe recipe, const std::string& method, const std::string& origin);

// Reads a recipe from a command's arguments: the first operand that ends in .yaml or .yml is the
// recipe file, and the arguments override it. Throws Error(usage).
Recipe read_recipe(std::span<const std::string> arguments, std::span<const MethodTable> tables);

}  // namespace jackscrew
