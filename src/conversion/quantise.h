// Quantises a model to few bits, block by block, calibrated on text.
#pragma once

#include <string>
#include <vector>

#include "base/json_object.h"
#include "conversion/calibration.h"
#include "conversion/convert.h"
#include "conversion/model_output.h"
#include "conversion/quantise_checkpoint.h"
#include "conversion/quantised_files.h"
#include "conversion/rounder.h"
#include "report/progress.h"

namespace jackscrew {

// The recipe's, with defaults that suit the model's longest sequence.
CalibrationSize calibration_size(const Recipe& recipe, const ModelConfig& config);

// The storage of weights that are not quantised: the recipe's or, with storage=keep, "bf16" where
// the embedding of `base` (the model without adapters) is, else "f16". Throws Error(usage) for a
// storage that the files cannot have.
std::string rest_storage(const Recipe& recipe, const ModelFiles& base);

// The outcome for one matrix.
struct QuantisedMatrix {
  WeightSpec weight;
  // Squared error of its outputs, relative to their squares: 0 is exact; NaN: not measured.
  double error = 0;
  double bits = 0;  // per element, scales included; NaN: not chosen yet
};

struct QuantisationReport {
  std::vector<QuantisedMatrix> matrices;  // in the model's order; without errors in a dry run
  // The blocks' matrices that cannot be rounded, since their rows fill no blocks of a format.
  int64_t plain_bytes = 0, plain_elements = 0;
  double bits = 0;  // per element, of all matrices in blocks
  int64_t calibration_tokens = 0;
  int64_t bytes = 0;               // of all files
  bool is_bound = false;           // bits and bytes are upper bounds: the widths are not chosen yet
  int64_t memory = 0;              // peak while blocks are rounded, bytes of the host: of the text,
                                   // a block and its rounding, and what adapters need at most
  std::vector<std::string> notes;  // deviations from the request, a line each

  JsonObject to_json() const;
};

// Which matrices of a model are rounded, and what comes of it.
class QuantisationPlan {
 public:
  // The bits of every matrix, where they are known, and no errors nor tokens. The bytes are exact,
  // or a bound.
  QuantisationPlan(const ModelConfig& config, const Rounder& rounder, const QuantisedFiles& files);

  bool rounds_head() const { return rounds_head_; }
  // The number of tokens below which the widest layer's Hessian cannot have full rank; 1 where none
  // is factored.
  int64_t least_tokens() const { return least_tokens_; }
  const QuantisationReport& report() const { return report_; }
  // The bytes of the result's largest file or, where report().is_bound, the most that it may have.
  int64_t largest_file() const { return largest_file_; }

 private:
  int64_t least_tokens_ = 1;
  bool rounds_head_ = false;
  QuantisationReport report_;
  int64_t largest_file_ = 0;
};

// The recipe of calibration itself. With a run that is to fit, product, product_exclude and
// attention are the run's, and calibration has f32.
Recipe calibrating(const Recipe& recipe);

// All settings and inputs that determine the result. The model is read once, under a progress bar.
QuantisationSettings quantisation_settings(const Recipe& recipe, const ConvertedModel& model,
                                           const Rounder& rounder, const CalibrationText& text,
                                           const ProgressStyle& style);

// "after rounding 3 of 30 blocks".
std::string progress_text(const QuantisationProgress& progress, const ModelConfig& config);

// What is to be quantised, and how.
struct QuantiseJob {
  const Recipe& recipe;
  const ConvertedModel& model;
  Rounder& rounder;
  const QuantisedFiles& written;
  const QuantisationPlan& plan;
  const ProgressStyle& style;
};

// QuantisationReport::memory of a run that begins with the first block: exact, or an upper bound
// where the rounder measures.
int64_t quantising_memory(const QuantiseJob& job, const CalibrationSize& text);

// Quantises the model and writes it to output.path(); the caller commits, and removes the
// checkpoint. One block's weights are in memory at a time. A layer reads the calibration text as
// the quantised layers before it transform it. A rounder that measures does so first, on a part of
// the text and over the unquantised model. The result does not depend on the number of threads, nor
// on the block from which the checkpoint (of the same settings) continues. Where the model is
// refused, with Error(model) or Error(non_finite), the checkpoint is removed.
QuantisationReport write_quantised(const QuantiseJob& job, const CalibrationText& text,
                                   QuantisationCheckpoint& checkpoint, ModelOutput& output);

}  // namespace jackscrew
