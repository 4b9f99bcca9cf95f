// A model rounded to few bits, block after block, as files of GPTQ or EXL2.
#pragma once

#include <string>
#include <vector>

#include "base/json_object.h"
#include "conversion/calibration.h"
#include "conversion/convert.h"
#include "conversion/model_output.h"
#include "conversion/quantise_checkpoint.h"
#include "conversion/rounder.h"
#include "report/progress.h"

namespace jackscrew {

// How much text is asked for.
struct CalibrationSize {
  int64_t sequences = 128, sequence_len = 512;
};
// That of a recipe, for a model of so many positions.
CalibrationSize calibration_size(const Recipe& recipe, const ModelConfig& config);

// What weights that are not rounded are kept in: "bf16" where those of `base`, the model without
// adapters, are, else "f16", or the recipe's storage. Throws Error(usage) for one that the files
// cannot have.
std::string rest_storage(const Recipe& recipe, const ModelFiles& base);

// What a matrix has become.
struct QuantisedMatrix {
  WeightSpec weight;
  double error = 0;  // squares of what its outputs are off by, as a share of theirs: 0 is exact
  double bits = 0;   // of an element, scales and all; NaN: not chosen yet
};

struct QuantisationReport {
  std::vector<QuantisedMatrix> matrices;  // in the model's order; without errors in a dry run
  double bits = 0;                        // of an element of those in blocks; at most, before
  int64_t calibration_tokens = 0;
  int64_t bytes = 0;               // of all files
  int64_t memory = 0;              // the most that was taken of the host's memory
  std::vector<std::string> notes;  // what is not as asked, a line each

  JsonObject to_json() const;
};

// How a model will be written: what the rounder rounds in codes (no format), the rest as
// rest_storage() says.
class QuantisationPlan {
 public:
  // Throws Error(model) for a matrix whose shape such files cannot have.
  QuantisationPlan(const Recipe& recipe, const ModelFiles& files, const std::string& rest,
                   const Rounder& rounder);

  const std::vector<ModelTensor>& tensors() const { return tensors_; }
  bool rounds_head() const { return rounds_head_; }
  // Tokens below which the widest layer's Hessian cannot be of full rank.
  int64_t least_tokens() const { return least_tokens_; }
  // Of every matrix its bits, where they are known, and no errors; of all the most that they take.
  QuantisationReport report() const { return report_; }

 private:
  std::vector<ModelTensor> tensors_;
  int64_t least_tokens_ = 0;
  bool rounds_head_ = false;
  QuantisationReport report_;
};

// All that decides what the matrices become.
QuantisationSettings quantisation_settings(const Recipe& recipe, const ConvertedModel& model,
                                           const Rounder& rounder, const CalibrationText& text);

// "after rounding 3 of 30 blocks".
std::string progress_text(const QuantisationProgress& progress, const ModelConfig& config);

// Rounds the model and writes it to output.path(); the caller commits, and removes the checkpoint.
// One block's weights are in memory at a time. What a block reads is what those before it, already
// rounded, make of the text. A rounder that measures does so before, on a part of the text and over
// the model as it is. The same bytes whatever the number of threads, and from whichever block the
// checkpoint, one of these settings, goes on.
QuantisationReport write_quantised(const Recipe& recipe, const ModelFiles& files, Rounder& rounder,
                                   const QuantisationPlan& plan, const CalibrationText& text,
                                   QuantisationCheckpoint& checkpoint, ModelOutput& output,
                                   const ProgressStyle& style);

}  // namespace jackscrew
