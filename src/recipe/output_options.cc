#include "recipe/output_options.h"

#include <algorithm>

#include "base/error.h"

namespace jackscrew {

namespace {

using enum OptionType;

constexpr OptionSpec kOutputOptions[] = {
    {.name = "output_dir",
     .type = text,
     .default_text = "",
     .help = "directory for checkpoints, logs and the final model",
     .affects_result = false,
     .is_path = true},
    {.name = "logging_steps",
     .type = integer,
     .default_text = "1",
     .help = "log every so many steps",
     .min = 1,
     .affects_result = false},
    {.name = "eval_steps",
     .type = integer,
     .default_text = "0",
     .help = "evaluate every so many steps; 0: only before and after the run",
     .min = 0,
     .affects_result = false},
    {.name = "save_steps",
     .type = integer,
     .default_text = "0",
     .help = "save a checkpoint every so many steps, and at the end; 0: only when interrupted or "
             "asked to, and with load_best_model_at_end",
     .aliases = "checkpoint_save_steps",
     .min = 0,
     .affects_result = false},
    {.name = "save_total_limit",
     .type = integer,
     .default_text = "2",
     .help = "checkpoints to keep; 0: all",
     .min = 0,
     .max = 1e9,
     .affects_result = false},
    {.name = "resume",
     .type = text,
     .default_text = "auto",
     .help = "auto (or true): continue from the last checkpoint in output_dir, if any; never (or "
             "false); or the path of a checkpoint",
     .aliases = "resume_from_checkpoint",
     .affects_result = false,
     .is_path = true},
    {.name = "export",
     .type = list,
     .default_text = "",
     .help =
         "models for other programs that train leaves in output_dir/exports as well, adapters "
         "merged: hf or gguf and, behind a colon, their storage: gguf:q4_k_m,hf:bf16; bnb: hf:nf4",
     .affects_result = false},
    {.name = "report_samples",
     .type = integer,
     .default_text = "2",
     .help = "sample answers in report.html, before and after training; 0: none",
     .min = 0,
     .max = 100,
     .affects_result = false},
    {.name = "load_best_model_at_end",
     .type = boolean,
     .default_text = "false",
     .help =
         "export the model of the best evaluation, and keep its checkpoint, instead of the last"},
    {.name = "early_stopping_patience",
     .type = integer,
     .default_text = "0",
     .help =
         "stop after this many evaluations in a row without a new best (the one before training "
         "does not count); 0: never",
     .min = 0},
    {.name = "loss_watchdog_threshold",
     .type = number,
     .default_text = "0",
     .help = "abort (exit code 6) when the loss stays above this; 0: never",
     .min = 0,
     .affects_result = false},
    {.name = "loss_watchdog_patience",
     .type = integer,
     .default_text = "3",
     .help = "consecutive logged steps above the threshold before that",
     .min = 1,
     .affects_result = false},
};

constexpr OptionSpec kEvaluationOptions[] = {
    {.name = "stride",
     .type = integer,
     .default_text = "0",
     .help =
         "in .txt files, tokens from the start of one window to the next; less than sequence_len: "
         "windows overlap, and each token is scored once, with more context; 0: sequence_len",
     .min = 0,
     .affects_result = false},
};

std::vector<RunExport> run_exports(const OptionSet& options) {
  const std::vector<std::string> storages = split_words(options.find("storage")->spec.choices);
  std::vector<RunExport> exports;
  for (const std::string& given : options.list("export")) {
    const std::string text = given == "bnb" ? "hf:nf4" : given;  // as format=bnb
    const size_t colon = text.find(':');
    const std::string files = text.substr(0, colon);
    const std::string storage = colon == std::string::npos ? "keep" : text.substr(colon + 1);
    const bool known = std::ranges::find(storages, storage) != storages.end();
    if (!known || (files != "hf" && files != "gguf")) {
      throw Error(
          ErrorKind::usage,
          fmt::format("{}: export has \"{}\", expected hf or gguf and, behind a colon, what "
                      "storage is of the files; or bnb",
                      options.origin("export"), text),
          "gguf:q4_k_m, hf:bf16, or hf for weights as they are stored");
    }
    const RunExport wanted{text, files == "gguf", storage};
    const auto same = [&](const RunExport& other) {
      return other.gguf == wanted.gguf && other.storage == wanted.storage;
    };
    if (std::ranges::any_of(exports, same)) {
      throw Error(ErrorKind::usage,
                  fmt::format("{}: export has \"{}\" twice", options.origin("export"), text));
    }
    exports.push_back(wanted);
  }
  return exports;
}

}  // namespace

std::span<const OptionSpec> output_options() {
  return kOutputOptions;
}

std::span<const OptionSpec> evaluation_options() {
  return kEvaluationOptions;
}

void OutputSettings::read(const OptionSet& options) {
  output_dir = options.text("output_dir");
  logging_steps = options.integer("logging_steps");
  eval_steps = options.integer("eval_steps");
  save_steps = options.integer("save_steps");
  save_total_limit = options.integer("save_total_limit");
  resume = options.text("resume");
  exports = run_exports(options);
  report_samples = options.integer("report_samples");
  load_best_model_at_end = options.boolean("load_best_model_at_end");
  watch = {options.integer("early_stopping_patience"), options.number("loss_watchdog_threshold"),
           options.integer("loss_watchdog_patience")};
  stride = options.integer("stride");
}

}  // namespace jackscrew
