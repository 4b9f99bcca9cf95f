#include "conversion/rate_fit.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/text.h"
#include "conversion/model_output.h"
#include "conversion/planned_source.h"
#include "model/weights.h"
#include "recipe/quantise_options.h"
#include "session/knobs.h"
#include "session/plan.h"

namespace jackscrew {

namespace {

// The model as it would be with every block matrix in the largest, or the smallest, format.
struct PlannedModel {
  ModelFiles files;
  int64_t memory_bytes = 0;  // of the blocks' matrices
};

template <class Better>
PlannedModel plan_model(const std::string& origin, const ModelConfig& config,
                        const HeldFormats& formats, const Better& better) {
  PlannedModel model;
  model.files.origin = origin;
  model.files.config = config;
  auto source = std::make_unique<PlannedSource>();
  for (const WeightSpec& weight : weights_of(config, StageSpec::whole(config))) {
    const auto bytes_of = [&](const FormatPointer& format) {
      return format->storage_bytes(weight.rows, weight.cols);
    };
    const std::vector<FormatPointer> ways = formats(weight);
    const FormatPointer& best = *std::ranges::max_element(
        ways, [&](const auto& a, const auto& b) { return better(bytes_of(b), bytes_of(a)); });
    if (weight.is_block_matrix()) {
      model.memory_bytes = checked_add(model.memory_bytes, bytes_of(best));
    }
    source->add_computed(weight, best);
  }
  model.files.source = std::move(source);
  return model;
}

SessionPlan rehearse_over(const Recipe& recipe, const ModelFiles& files) {
  return Session::rehearse(recipe, files, training_use(recipe));
}

}  // namespace

bool mixes_gguf_types(const OptionSet& options) {
  const std::string& output = options.text("output");
  const fs::path target = output.empty() ? options.text("output_dir") : output;
  // Storage may be a method's, such as qlora's.
  const bool has_storage = options.was_set("storage") && options.text("storage") != "keep";
  return is_gguf_output(options.text("format"), target) && !has_storage &&
         (asks_for(options, "bits") || !options.is_word("device_memory"));
}

bool rate_fits_a_run(const OptionSet& options) {
  return (options.text("format") == "exl2" || mixes_gguf_types(options)) &&
         !options.is_word("device_memory");
}

bool rate_fits_a_run(const Recipe& recipe) {
  if (!rate_fits_a_run(recipe.options)) return false;
  if (asks_for(recipe.options, "bits")) {
    throw Error(
        ErrorKind::usage, "both bits and device_memory are set",
        "keep one of them: device_memory asks for the highest rate with which the run fits");
  }
  return true;
}

int64_t bytes_that_fit(const Recipe& recipe, const std::string& origin, const ModelConfig& config,
                       const HeldFormats& formats) {
  const int64_t budget = recipe.device_memory.value();
  const PlannedModel largest = plan_model(origin, config, formats, std::greater<>());
  const PlannedModel least = plan_model(origin, config, formats, std::less<>());
  const SessionPlan most = rehearse_over(recipe, largest.files);
  if (most.ledger.peak <= budget) return largest.memory_bytes;
  const Recipe frugal =
      recipe.gradient_checkpointing ? recipe : with_settings(recipe, "gradient_checkpointing=true");
  const SessionPlan fewest = rehearse_over(frugal, least.files);
  if (fewest.weight_bytes == most.weight_bytes) {
    throw Error(
        ErrorKind::usage,
        fmt::format("learner={} does not hold the blocks' matrices frozen: no rate of theirs "
                    "makes it fit",
                    recipe.learner),
        "method=lora and method=prompt do");
  }
  if (fewest.ledger.peak > budget) {
    throw Error(
        ErrorKind::does_not_fit,
        fmt::format("in the fewest bits that there are, this run needs {} ({}), budget {} "
                    "(device_memory)",
                    human_bytes(fewest.ledger.peak), purposes_text(fewest.ledger),
                    human_bytes(budget)),
        "raise device_memory, or lower sequence_len, micro_batch_size or the adapter's rank");
  }
  return budget - (fewest.ledger.peak - least.memory_bytes);
}

void check_fits(const Recipe& recipe, const ModelFiles& written) {
  const SessionPlan plan = rehearse_over(recipe, written);
  const int64_t budget = recipe.device_memory.value();
  if (plan.ledger.peak <= budget) return;
  throw Error(
      ErrorKind::does_not_fit,
      fmt::format("with what was written this run needs {}, budget {} (device_memory)",
                  human_bytes(plan.ledger.peak, budget), human_bytes(budget, plan.ledger.peak)),
      "lower device_memory a little");
}

}  // namespace jackscrew
