// Answers that a model gives before and after training, to records it was trained on or held out.
#pragma once

#include <string>
#include <vector>

#include "base/progress_callback.h"
#include "data/dataset.h"
#include "session/model_files.h"
#include "session/session.h"

namespace jackscrew {

// The longest answer: enough to see what it is like. Without a cache each token costs a forward
// pass over all before it.
inline constexpr int64_t kAnswerTokens = 32;

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

// The arithmetic of answering them all, of a model of so many parameters: about.
double answering_flops(const std::vector<Sample>& samples, int64_t parameters);

// The likeliest answer, computed without a cache; of a session with one row of logits. `progress`
// is given kAnswerTokens in all, those that a shorter answer lacks at its end.
std::string answer_sample(Session& session, const ModelFiles& files, const Tokenizer& tokenizer,
                          const Sample& sample, const ProgressCallback& progress);

}  // namespace jackscrew
