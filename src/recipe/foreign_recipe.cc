#include "recipe/foreign_recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace jackscrew {

namespace {

// Keys that identify a program's recipes. Those of transformers' own scripts, such as
// model_name_or_path and do_train, identify none.
struct Program {
  const char* name;
  const char* keys;
};
constexpr Program kPrograms[] = {
    {"axolotl",
     "datasets base_model sample_packing val_set_size dataset_prepared_path lora_target_linear "
     "load_in_4bit load_in_8bit flash_attention special_tokens wandb_project pad_to_sequence_len "
     "evals_per_epoch saves_per_epoch test_datasets model_type tokenizer_type"},
    {"LLaMA-Factory",
     "stage finetuning_type cutoff_len dataset template dataset_dir plot_loss lora_target "
     "quantization_bit"},
};

// For a key that means something else in other programs, if the value shows that: what to write
// instead. Otherwise empty.
std::string other_meaning(const Assignment& assignment) {
  const bool is_method = assignment.text == "lora" || assignment.text == "qlora";
  if (assignment.name != "adapter" || !is_method) return {};
  return fmt::format("method: {}; adapter names the directory of one", assignment.text);
}

// What to write in place of a nested value.
std::string flat(const Assignment& assignment) {
  if (assignment.name == "datasets") {
    return "data: [FILE, FILE]; field_messages, field_instruction and their like name other keys";
  }
  return "expected a value or a flat list of values";
}

std::string program_of(std::span<const RecipeEntry> entries) {
  std::string best;
  int64_t most = 2;  // fewer may be in any recipe
  for (const Program& program : kPrograms) {
    const auto keys = split_words(program.keys);
    const int64_t count = std::count_if(entries.begin(), entries.end(), [&](const auto& entry) {
      return std::find(keys.begin(), keys.end(), entry.assignment.name) != keys.end();
    });
    if (count > most) {
      most = count;
      best = program.name;
    }
  }
  return best;
}

// Removes the place from "a.yaml:3: text".
std::string without_place(const std::string& message, const std::string& origin) {
  const std::string place = origin + ": ";
  return message.starts_with(place) ? message.substr(place.size()) : message;
}

}  // namespace

std::string RecipeReport::summary(const std::string& file) const {
  std::vector<std::string> names, read;
  for (const Unknown& key : unknown) names.push_back(key.key);
  for (const Known& key : known) read.push_back(key.key);
  return fmt::format("{}: not understood: {}; understood: {}", file, fmt::join(names, ", "),
                     read.empty() ? "nothing" : fmt::format("{}", fmt::join(read, ", ")));
}

std::string RecipeReport::program_hint() const {
  return program.empty() ? "" : fmt::format("it looks like a recipe of {}", program);
}

RecipeReport report_recipe(std::span<const RecipeEntry> entries, const OptionSet& options) {
  RecipeReport report;
  OptionSet tried = options;
  for (const RecipeEntry& entry : entries) {
    const Assignment& assignment = entry.assignment;
    const OptionValue* option = options.find(assignment.name);
    std::string hint = other_meaning(assignment);
    bool understood = false;
    if (!hint.empty()) {
      report.is_foreign = true;
    } else if (option == nullptr) {
      const char* explanation = options.explanation(assignment.name, assignment.text);
      hint = explanation != nullptr ? explanation : options.near_name_hint(assignment.name);
    } else if (entry.error) {
      // Axolotl's data sets are maps; ours are files.
      report.is_foreign = report.is_foreign || assignment.name == "datasets";
      hint = flat(assignment);
    } else {
      try {
        tried.set(assignment);
        understood = true;
      } catch (const Error& error) {
        hint = without_place(error.what(), assignment.origin);
        if (!error.hint().empty()) hint += "; " + error.hint();
      }
    }
    if (understood) {
      report.known.push_back({assignment.name, option->spec.name});
    } else {
      report.unknown.push_back({assignment.name, assignment.origin, hint});
    }
  }
  report.is_foreign = report.is_foreign || report.unknown.size() > 1;
  if (report.is_foreign) report.program = program_of(entries);
  return report;
}

}  // namespace jackscrew
