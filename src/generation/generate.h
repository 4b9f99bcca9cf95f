// Generation: the prompt in the form that a model expects, then one token after another from its
// logits.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
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
  double min_p = 0;  // the least probability of a token, as a share of the likeliest's
  uint64_t seed = 0;
};

// Makes the tokens of a text less likely in the logits of the next one: positive ones are divided
// by `penalty`, the others multiplied by it. 1 changes nothing. (Keskar et al. 2019, section 4.1,
// as transformers does it.)
void penalise_repetition(std::span<float> logits, const std::set<int32_t>& tokens, double penalty);

// Draws tokens. A draw is a pure function of the logits, the options and the token's index. The
// temperature is applied first, then top_k, then top_p to what is left, then min_p, as transformers
// does it; the token that crosses top_p is kept. Of equal logits the lower id counts as likelier.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options) {}

  // The token at `index` of the text, prompt included, so that the turns of a chat draw different
  // numbers. Throws Error(non_finite) when the logits have no maximum.
  int32_t draw(std::span<const float> logits, int64_t index);

 private:
  struct Candidate {
    int32_t id;
    float weight;  // probability relative to the likeliest
  };
  void keep_top_k();
  void keep_top_p();

  SamplingOptions options_;
  std::vector<Candidate> candidates_;  // keeps its capacity between draws
};

// The ids of a conversation up to where the next answer begins: one text, as transformers encodes
// it, which is not cut where an earlier answer began. Throws Error(usage) if there are none.
std::vector<int32_t> encode_conversation(const Tokenizer& tokenizer, const ChatFormat& format,
                                         std::span<const Message> messages);

// Whether a prompt is a text to be continued: in the plain format, where no system message stands
// before it. Else it is a user's message to be answered.
bool continues_prompt(const ChatFormat& format, const std::string& system);

// The ids given to a model: the prompt as a user's message, after a system message unless that is
// empty, up to where the answer begins; or the text itself, where it is to be continued. Throws
// Error(usage) when that is empty, Error(does_not_fit) where a memory limit does not leave what
// encoding takes.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const ChatFormat& format,
                                   const std::string& system, const std::string& prompt);

// The tokens that end an answer: the tokenizer's EOS, those that the model's files name, and those
// that end a turn in common chat formats. If the tokenizer is not from those files, their ids may
// mean something else here: only special tokens among them count.
std::vector<int32_t> end_tokens(const Tokenizer& tokenizer, const ModelFiles& files);

// The ids below this have a token that may be drawn: where a model has more of them than its
// tokenizer, a file may fill the rest with tokens that are never used.
int64_t drawable_tokens(const Tokenizer& tokenizer);

// What a session must reserve for such a generation.
SessionUse generation_use(int64_t prompt_tokens, int64_t max_new_tokens);

struct GenerationOptions {
  SamplingOptions sampling;
  double repetition_penalty = 1;
  int64_t max_new_tokens = 0;
  std::vector<int32_t> end_tokens;
  int64_t vocab_size = 0;  // drawable_tokens(); the model may have more rows
  int64_t cached = 0;      // tokens at the beginning of the prompt that the cache already holds
  const std::atomic<bool>* stop = nullptr;  // set: ends with the present token or piece of prompt
};

struct Generation {
  std::vector<int32_t> ids;  // of the answer, without the token that ended it
  bool ended = false;        // by such a token; else by max_new_tokens or `stop`
  double prefill_seconds = 0;
  double decode_seconds = 0;
  int64_t decoded = 0;  // forward passes of one token in decode_seconds

  // Tokens per second; nullopt when nothing was decoded, for the first comes with the prompt.
  std::optional<double> decode_rate() const;
};

// Calls `use_token` with every id of the answer as it is drawn. A long prompt is computed in pieces
// of as many tokens as the session takes at once. Cache entries beyond options.cached are dropped
// first.
Generation generate(Session& session, std::span<const int32_t> prompt,
                    const GenerationOptions& options,
                    const std::function<void(int32_t)>& use_token);

}  // namespace jackscrew
