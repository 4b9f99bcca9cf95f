// The losses on eval_data of a model that merge, export or quantize has written, measured before it
// gets its final name, and what their reports have in common.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json_object.h"
#include "conversion/compare.h"
#include "conversion/convert.h"
#include "conversion/model_output.h"
#include "data/dataset.h"
#include "recipe/recipe.h"

namespace jackscrew {

// The model that will be written.
struct PlannedWriting {
  ModelFormat files;
  const std::vector<ModelTensor>& tensors;
  int64_t coded_bytes = 0;  // of those without a format, which readers bring into memory

  // Whether there are any of those.
  bool has_coded() const;
};

// Reads eval_data as `reading` says, and looks whether all that measure_written() opens has room,
// before there is work to lose; coded tensors can be told before they exist only where weights stay
// in the map of their file. Both recipes have their lengths settled. `scoring` is that
// of the sessions: with storage=keep and, where the reference is an adapter beside its model as in
// training, with that adapter; else the reference is the sum of the model and its adapters in f32.
Dataset read_eval_data(const Recipe& reading, const Recipe& scoring, const ConvertedModel& model,
                       const PlannedWriting& planned, const ProgressStyle& style);

struct WrittenLoss {
  std::optional<double> base;  // without the adapters, if there are any
  Comparison written;          // compared with the model and its adapters

  JsonObject to_json() const;
};

// Measures the model that was written to `output`; `scoring` and `planned` as above. There is room,
// but for coded tensors, as read_eval_data() has found. Throws what
// ModelOutput::require_in_place(), require_room_for_both(), open_scored(), compare_sessions() and
// require_finite_loss() throw.
WrittenLoss measure_written(const Recipe& scoring, const ConvertedModel& model,
                            const PlannedWriting& planned, const Dataset& eval_data,
                            const ModelOutput& output, const ProgressStyle& style);

// Throws Error(generic) where the written model loses more than max_merge_loss.
void refuse_loss(const Recipe& recipe, const WrittenLoss& loss);

void print_loss(const ConvertedModel& model, const WrittenLoss& loss);

// Prints the report of what was written, or would be.
void print_output_json(const ModelOutput& output, const JsonObject& report,
                       const std::optional<WrittenLoss>& loss);

// Prints notes, each on a line, under the one that says what was written.
void print_notes(const std::vector<std::string>& notes);

// Throws Error(usage) where max_merge_loss is set and eval_data is not.
void check_loss_options(const Recipe& recipe);

}  // namespace jackscrew
