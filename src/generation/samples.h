// A model's answers before and after training, to records that it was trained on or that were held
// out.
#pragma once

#include <string>
#include <vector>

#include "base/progress_callback.h"
#include "data/dataset.h"
#include "session/model_files.h"
#include "session/session.h"

namespace jackscrew {

// Length of the longest answer: enough to judge it.
inline constexpr int64_t kAnswerTokens = 32;

struct Sample {
  std::vector<int32_t> prompt_ids;
  std::string prompt;    // as text
  std::string expected;  // the record's own continuation
};

// Up to `count` records, evenly spaced over the data set. The prompt is the tokens before the first
// target or, if a text is trained throughout, its beginning. In place of a record whose prompt
// leaves no room for an answer in `longest` tokens, one of those behind it is taken, or none.
std::vector<Sample> choose_samples(const Dataset& data, const Tokenizer& tokenizer, int64_t count,
                                   int64_t longest);

// The likeliest answer; the session needs one row of logits and a cache. `progress` gets
// kAnswerTokens in total; a shorter answer reports the rest at its end.
std::string answer_sample(Session& session, const ModelFiles& files, const Tokenizer& tokenizer,
                          const Sample& sample, const ProgressCallback& progress);

}  // namespace jackscrew
