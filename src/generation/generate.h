// Generation: a prompt as a model expects it, one token after another from its logits.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "session/model_files.h"
#include "session/session.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace jackscrew {

struct SamplingOptions {
  double temperature = 0;  // 0: always the likeliest token
  int64_t top_k = 0;       // 0: all
  double top_p = 1;
  uint64_t seed = 0;
};

// Draws tokens. A draw is a pure function of the logits, the options and the token's index. The
// temperature comes first, then top_k, then top_p of what is left; the token that crosses top_p is
// kept. Of equal logits the lower id counts as the likelier.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options) {}

  // The token at `index` of the answer. Throws Error(non_finite) when the logits have no maximum.
  int32_t draw(std::span<const float> logits, int64_t index);

 private:
  struct Candidate {
    int32_t id;
    float weight;  // probability over that of the likeliest
  };
  void keep_top_k();
  void keep_top_p();

  SamplingOptions options_;
  std::vector<Candidate> candidates_;  // keeps its memory from draw to draw
};

// The ids that a model is given: the prompt as a user's message, after a system message unless that
// is empty, up to where the answer begins or, in the plain format, the text itself, to be gone on
// with. Throws Error(usage) when nothing is left.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const ChatFormat& format,
                                   const std::string& system, const std::string& prompt);

// The tokens that end an answer: the tokenizer's EOS, those that the model's files name and
// whatever ends a turn in the usual chat formats. Where the tokenizer is not from those files, ids
// there mean something else here: of them only special tokens count.
std::vector<int32_t> end_tokens(const Tokenizer& tokenizer, const ModelFiles& files);

// What a session must hold for such a generation.
SessionUse generation_use(int64_t prompt_tokens, int64_t max_new_tokens);

struct GenerationOptions {
  SamplingOptions sampling;
  int64_t max_new_tokens = 0;
  std::vector<int32_t> end_tokens;
  int64_t vocab_size = 0;  // of the tokenizer: the model's may have rows that no token stands for
  bool use_cache = true;   // false: every token is computed from the whole text again
  int64_t cached = 0;      // tokens with which the prompt begins that the cache holds already
  const std::atomic<bool>* stop = nullptr;  // set: the answer ends with the token under way
};

struct Generation {
  std::vector<int32_t> ids;  // of the answer, less the token that ended it
  bool ended = false;        // by such a token; else by max_new_tokens, or it was stopped
  double prefill_seconds = 0;
  double decode_seconds = 0;
  int64_t decoded = 0;  // forward passes of one token in decode_seconds

  double decode_rate() const;  // tokens per second; 0 when nothing was decoded
};

// Calls `use_token` with every id of the answer as it comes. A long prompt is computed in pieces of
// as many tokens as the session takes at once. What the cache holds beyond options.cached is
// dropped first.
Generation generate(Session& session, std::span<const int32_t> prompt,
                    const GenerationOptions& options,
                    const std::function<void(int32_t)>& use_token);

}  // namespace jackscrew
