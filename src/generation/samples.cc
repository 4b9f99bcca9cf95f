#include "generation/samples.h"

#include <algorithm>

#include "generation/generate.h"

namespace jackscrew {

namespace {

// Length of the prompt for a text without prompt and answer, tokens.
constexpr int64_t kBeginning = 16;
// Records tried for a sample. Where so many in a row have long prompts, all may.
constexpr int64_t kMostTries = 100;

Sample make_sample(const Example& example, const Tokenizer& tokenizer) {
  const auto count = static_cast<int64_t>(example.ids.size());
  const auto target = std::find(example.train.begin() + 1, example.train.end(), uint8_t{1});
  int64_t begin = target - example.train.begin();
  if (begin <= 1) begin = std::min(kBeginning, count / 2);
  int64_t end = begin;
  while (end < count && end < begin + kAnswerTokens && example.train[static_cast<size_t>(end)] != 0)
    ++end;
  const auto ids = [&](int64_t from, int64_t to) {
    return std::vector<int32_t>(example.ids.begin() + from, example.ids.begin() + to);
  };
  return {ids(0, begin), tokenizer.decode(ids(0, begin), true),
          tokenizer.decode(ids(begin, end), true)};
}

}  // namespace

std::vector<Sample> choose_samples(const Dataset& data, const Tokenizer& tokenizer, int64_t count,
                                   int64_t longest) {
  std::vector<Sample> samples;
  const int64_t records = data.size();
  const int64_t wanted = std::min(count, records);
  for (int64_t i = 0; i < wanted; ++i) {
    const int64_t begin = i * records / wanted;
    const int64_t end = std::min((i + 1) * records / wanted, begin + kMostTries);
    for (int64_t record = begin; record < end; ++record) {
      Sample sample = make_sample(data.example(record), tokenizer);
      const auto length = static_cast<int64_t>(sample.prompt_ids.size());
      if (length == 0 || length + kAnswerTokens > longest) continue;
      samples.push_back(std::move(sample));
      break;
    }
  }
  return samples;
}

std::string answer_sample(Session& session, const ModelFiles& files, const Tokenizer& tokenizer,
                          const Sample& sample, const ProgressCallback& progress) {
  GenerationOptions options;
  options.max_new_tokens = kAnswerTokens;
  options.end_tokens = end_tokens(tokenizer, files);
  options.vocab_size = drawable_tokens(tokenizer);
  int64_t left = kAnswerTokens;
  const Generation answer = generate(session, sample.prompt_ids, options, [&](int32_t) {
    --left;
    progress(1);
  });
  progress(left);
  return tokenizer.decode(answer.ids, true);
}

}  // namespace jackscrew
