// The data of a training run: training and evaluation texts, and the samples of its report.
#pragma once

#include <string>
#include <vector>

#include "data/batch.h"
#include "generation/samples.h"
#include "session/loading.h"
#include "train/output_dir.h"

namespace jackscrew {

// Fingerprints of all that a run reads: they tell it from another run of the same recipe.
struct RunInputs {
  std::string data;           // Dataset::fingerprint() of the training data
  std::string model;          // inputs_fingerprint() and start_fingerprint()
  std::string held_out = {};  // of the evaluation's data; empty: none
};

struct RunData {
  Dataset train;
  Dataset evaluation;  // empty: no evaluation
  std::vector<Sample> samples;
  int64_t sample_tokens = 0;  // the most of a prompt and its answer
  RunInputs inputs;
  std::vector<std::string> token_files = {};  // names in tokens_directory(), of large data
};

// Reads the data as the recipe says and warns of surprises in them. Tokens of large data are kept
// in `output_dir`, wherever that is moved. Throws as Dataset::read() does.
RunData read_run_data(const Recipe& recipe, const ModelFiles& files, const Tokenizer& tokenizer,
                      const ProgressStyle& style, OutputClaim& output_dir);

// How a run makes batches of its data.
BatchOptions run_batches(const Recipe& recipe);

// Host memory that the data take from here on, in bytes.
struct DataMemory {
  int64_t planning = 0;  // where an epoch begins; of the rank that deals the data
  int64_t step = 0;      // of the largest step, or of what is evaluated at once: of every rank
};
DataMemory data_memory(const Recipe& recipe, const RunData& data, const BatchSampler& sampler,
                       int64_t total_steps);

// Drops the samples if nobody asks for them and their answers would take so long that they delay
// the run, and returns a line for the user; else an empty one. `peak_flops` is the machine's, 0:
// unknown; `weight_bytes` are read for every token of an answer.
std::string leave_out_slow_samples(RunData& data, const OptionSet& options, double peak_flops,
                                   int64_t weight_bytes, const ModelConfig& config);

}  // namespace jackscrew
