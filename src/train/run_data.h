// What a training run reads: its texts, those that it is evaluated on, and the samples of its
// report.
#pragma once

#include <vector>

#include "generation/samples.h"
#include "session/loading.h"

namespace jackscrew {

struct RunData {
  Dataset train;
  Dataset evaluation;  // empty where there is nothing to evaluate on
  std::vector<Sample> samples;
};

// Reads it as the recipe says and warns of what will surprise. Tokens of large data are kept in
// `output_dir`. Throws as Dataset::read() does.
RunData read_run_data(const Recipe& recipe, const Tokenizer& tokenizer, const ProgressStyle& style,
                      const fs::path& output_dir);

}  // namespace jackscrew
