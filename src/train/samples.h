// Answers that a model gives before and after training, to records it was trained on or held out.
#pragma once

#include <string>
#include <vector>

#include "text/dataset.h"
#include "train/model_files.h"
#include "train/session.h"

namespace jackscrew {

struct Sample {
  std::vector<int32_t> prompt_ids;
  std::string prompt;    // as text
  std::string expected;  // what the record goes on with
};

// As many records as that, spread over the data set: the tokens before its first target, or of a
// text that is a target throughout its beginning. Left out are records whose prompt leaves no room
// for an answer in `sequence_len`.
std::vector<Sample> choose_samples(const Dataset& data, const Tokenizer& tokenizer, int64_t count,
                                   int64_t sequence_len);

// The likeliest answer, computed without a cache; of a session with one row of logits.
std::string answer_sample(Session& session, const ModelFiles& files, const Tokenizer& tokenizer,
                          const Sample& sample);

}  // namespace jackscrew
