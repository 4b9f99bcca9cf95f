#include "generation/generate.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/clock.h"
#include "base/error.h"
#include "base/philox.h"
#include "data/encode_records.h"

namespace jackscrew {

namespace {

// Tokens that end a turn in common chat formats, beside the eos token that the files name.
constexpr const char* kEndTexts[] = {"<|im_end|>",    "<|eot_id|>", "<|end_of_text|>",
                                     "<|endoftext|>", "<|end|>",    kEndOfMessage};

// The index of the first largest logit. Comparisons with NaN are false, so NaN must be checked for.
size_t likeliest(std::span<const float> logits) {
  size_t best = 0;
  bool has_nan = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    has_nan |= std::isnan(logits[i]);
    if (logits[i] > logits[best]) best = i;
  }
  if (has_nan || !std::isfinite(logits[best])) {
    throw Error(ErrorKind::non_finite, "the model's logits are not finite",
                "the weights may be damaged, or training may have diverged");
  }
  return best;
}

constexpr auto kLikelier = [](const auto& a, const auto& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
};

}  // namespace

void penalise_repetition(std::span<float> logits, const std::set<int32_t>& tokens, double penalty) {
  if (penalty == 1.0) return;
  const auto factor = static_cast<float>(penalty);
  for (const int32_t token : tokens) {
    const auto at = static_cast<size_t>(token);
    if (at >= logits.size()) continue;
    logits[at] = logits[at] > 0 ? logits[at] / factor : logits[at] * factor;
  }
}

int32_t Sampler::draw(std::span<const float> logits, int64_t index) {
  const size_t best = likeliest(logits);
  if (options_.temperature <= 0.0) return static_cast<int32_t>(best);
  const float highest = logits[best];
  const auto scale = static_cast<float>(1.0 / options_.temperature);
  candidates_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    // The likeliest has weight 1 even if a tiny temperature made the scale infinite.
    const float below = logits[i] - highest;
    candidates_[i] = {static_cast<int32_t>(i), below == 0.0f ? 1.0f : std::exp(below * scale)};
  }
  keep_top_k();
  keep_top_p();
  if (options_.min_p > 0) {
    std::erase_if(candidates_, [&](const Candidate& candidate) {
      return static_cast<double>(candidate.weight) < options_.min_p;
    });
  }
  double total = 0.0;
  for (const Candidate& candidate : candidates_) total += static_cast<double>(candidate.weight);
  const RandomStream random =
      RandomStream::make(options_.seed, RandomPurpose::sampling, 0, name_hash("answer"));
  const double wanted = static_cast<double>(random.uniform(static_cast<uint64_t>(index))) * total;
  double reached = 0.0;
  for (const Candidate& candidate : candidates_) {
    reached += static_cast<double>(candidate.weight);
    if (wanted < reached) return candidate.id;
  }
  return static_cast<int32_t>(best);  // reached only by rounding
}

void Sampler::keep_top_k() {
  const auto wanted = static_cast<size_t>(options_.top_k);
  if (wanted == 0 || wanted >= candidates_.size()) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<ptrdiff_t>(wanted),
                   candidates_.end(), kLikelier);
  candidates_.resize(wanted);
  // nth_element leaves the order unspecified, and the draw depends on it.
  std::sort(candidates_.begin(), candidates_.end(), kLikelier);
}

void Sampler::keep_top_p() {
  if (options_.top_p >= 1.0) return;
  double total = 0.0;
  for (const Candidate& candidate : candidates_) total += static_cast<double>(candidate.weight);
  // All candidates below this share together have less than 1 - top_p, so none of them can be kept:
  // few of a large vocabulary are left to sort.
  const double floor = (1.0 - options_.top_p) * total / static_cast<double>(candidates_.size());
  std::erase_if(candidates_, [&](const Candidate& candidate) {
    return static_cast<double>(candidate.weight) < floor;
  });
  std::sort(candidates_.begin(), candidates_.end(), kLikelier);
  double reached = 0.0;
  size_t kept = 0;
  while (kept < candidates_.size() && (kept == 0 || reached < options_.top_p * total)) {
    reached += static_cast<double>(candidates_[kept++].weight);
  }
  candidates_.resize(kept);
}

namespace {

std::vector<int32_t> not_empty(std::vector<int32_t> ids) {
  if (!ids.empty()) return ids;
  throw Error(ErrorKind::usage, "there is no prompt to continue",
              "neither the text nor its chat template gives a token to begin with");
}

}  // namespace

std::vector<int32_t> encode_conversation(const Tokenizer& tokenizer, const ChatFormat& format,
                                         std::span<const Message> messages) {
  return not_empty(encode_segments(tokenizer, render_chat(format, messages, true).segments).ids);
}

bool continues_prompt(const ChatFormat& format, const std::string& system) {
  return format.is_plain() && system.empty();
}

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const ChatFormat& format,
                                   const std::string& system, const std::string& prompt) {
  const bool continues = continues_prompt(format, system);
  require_memory_to_encode(system.size() + prompt.size(),
                           continues ? TextForm::document : TextForm::record,
                           "a shorter prompt takes less");
  if (continues) {
    // Special tokens spelled out in the prompt count as special, as in a text record.
    std::vector<int32_t> ids = tokenizer.encode(prompt, true);
    const bool has_bos = !ids.empty() && ids.front() == tokenizer.bos();
    if (tokenizer.add_bos() && !has_bos) ids.insert(ids.begin(), tokenizer.bos());
    return not_empty(std::move(ids));
  }
  std::vector<Message> messages;
  if (!system.empty()) messages.push_back({"system", system});
  messages.push_back({"user", prompt});
  return encode_conversation(tokenizer, format, messages);
}

std::vector<int32_t> end_tokens(const Tokenizer& tokenizer, const ModelFiles& files) {
  const bool own = files.has_own_tokens(tokenizer);
  std::vector<int32_t> ids;
  const auto add = [&](int64_t id) {
    if (id < 0 || id >= tokenizer.vocab_size()) return;
    const auto token = static_cast<int32_t>(id);
    if (own || tokenizer.kind(token) == TokenKind::special) ids.push_back(token);
  };
  if (tokenizer.eos() >= 0) ids.push_back(tokenizer.eos());
  for (const auto* named : {&files.config.eos_token_ids, &files.end_tokens}) {
    for (const int64_t id : *named) add(id);
  }
  for (const char* text : kEndTexts) add(tokenizer.find_special(text).value_or(-1));
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

int64_t drawable_tokens(const Tokenizer& tokenizer) {
  int64_t count = tokenizer.vocab_size();
  while (count > 1 && tokenizer.kind(static_cast<int32_t>(count - 1)) == TokenKind::unused) --count;
  return count;
}

SessionUse generation_use(int64_t prompt_tokens, int64_t max_new_tokens) {
  const int64_t positions = checked_add(prompt_tokens, max_new_tokens);
  return {.training = false,
          .tokens = prompt_tokens,
          .max_positions = positions,
          .later_positions = max_new_tokens,
          .kv_tokens = positions,
          .logits_rows = 1,
          .remedy = "take a smaller max_new_tokens or a shorter prompt"};
}

std::optional<double> Generation::decode_rate() const {
  if (decoded == 0 || decode_seconds <= 0.0) return std::nullopt;
  return static_cast<double>(decoded) / decode_seconds;
}

Generation generate(Session& session, std::span<const int32_t> prompt,
                    const GenerationOptions& options,
                    const std::function<void(int32_t)>& use_token) {
  Generation out;
  Sampler sampler(options.sampling);
  session.keep_cached(options.cached);
  std::vector<float> row(static_cast<size_t>(options.vocab_size));  // on the host
  const Stopwatch prefill;
  auto rest = prompt.subspan(static_cast<size_t>(options.cached));
  const auto piece = static_cast<size_t>(session.tokens_at_once());
  const auto stopped = [&] { return options.stop != nullptr && options.stop->load(); };
  for (; rest.size() > piece && !stopped(); rest = rest.subspan(piece)) {
    session.logits(rest.first(piece), 1, true);
  }
  if (stopped()) {
    out.prefill_seconds = prefill.seconds();
    return out;
  }
  Tensor logits = session.logits(rest, 1, true);
  const auto ends = [&](int32_t id) {
    const auto& all = options.end_tokens;
    return std::find(all.begin(), all.end(), id) != all.end();
  };
  // Without the tokens that ended earlier answers: this one has to end, too.
  std::set<int32_t> penalised;
  std::remove_copy_if(prompt.begin(), prompt.end(), std::inserter(penalised, penalised.end()),
                      ends);
  out.prefill_seconds = prefill.seconds();
  const Stopwatch decode;
  for (int64_t index = 0; index < options.max_new_tokens; ++index) {
    const int64_t width = std::min(logits.cols(), options.vocab_size);
    session.ops().copy(Tensor(row.data(), DType::f32, {1, width}), logits.columns(0, width));
    const std::span<float> drawn_from = std::span(row).first(static_cast<size_t>(width));
    penalise_repetition(drawn_from, penalised, options.repetition_penalty);
    const int32_t id = sampler.draw(drawn_from, std::ssize(prompt) + index);
    out.ended = ends(id);
    if (out.ended) break;
    out.ids.push_back(id);
    use_token(id);
    // After the last token no logits are needed.
    if (stopped() || index + 1 == options.max_new_tokens) break;
    penalised.insert(id);
    logits = session.logits({&id, 1}, 1, true);
    ++out.decoded;
  }
  out.decode_seconds = decode.seconds();
  return out;
}

}  // namespace jackscrew
