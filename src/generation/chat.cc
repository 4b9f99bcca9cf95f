#include "generation/chat.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "data/encode_records.h"

namespace jackscrew {

namespace {

// Tokens of a prompt that are computed at once: products of this size are fast, and a long prompt
// needs no more scratch memory than a short one.
constexpr int64_t kPiece = 512;
// An answer gets at least 1 / kShareOfAnswer of the context, or max_new_tokens if that is less.
constexpr int64_t kShareOfAnswer = 4;

}  // namespace

SessionUse chat_use(int64_t context) {
  return {.training = false,
          .tokens = std::min(context, kPiece),
          .max_positions = context,
          // All: whatever a prompt ends with, what is cached of it stays right for the next.
          .later_positions = context,
          .kv_tokens = context,
          .logits_rows = 1,
          .remedy = "take a smaller context"};
}

Chat::Chat(Session& session, const Tokenizer& tokenizer, const ChatFormat& format,
           std::string system, GenerationOptions options, int64_t context)
    : session_(session),
      tokenizer_(tokenizer),
      format_(format),
      system_(std::move(system)),
      options_(std::move(options)),
      context_(context) {
  forget();
}

void Chat::forget() {
  messages_.clear();
  if (!system_.empty()) messages_.push_back({"system", system_});
}

// Says that the newest message alone takes `tokens`, which leaves no room for an answer of
// `wanted`.
void Chat::refuse(int64_t tokens, int64_t wanted) const {
  // With this context, kShareOfAnswer of it are left.
  const int64_t enough =
      tokens + std::min(options_.max_new_tokens, tokens / (kShareOfAnswer - 1) + 1);
  const int64_t most = session_.stage().config().longest_sequence() - session_.virtual_tokens();
  std::string hint = enough <= most
                         ? fmt::format("shorten it, or raise context to {}", enough)
                         : fmt::format("shorten it: the model has no more than {}", most);
  if (tokens < context_) hint += fmt::format("; or set max_new_tokens={}", context_ - tokens);
  throw Error(ErrorKind::usage,
              fmt::format("the message takes {}{}, an answer needs {} more, and context has {}",
                          counted(tokens, "token"),
                          system_.empty() ? "" : " with the system prompt", wanted, context_),
              hint);
}

// Encodes the conversation into prompt_, without as many of the oldest exchanges as it takes to
// fit; more of them where it is stopped, for then nobody answers it.
void Chat::make_room(Answer& answer) {
  const int64_t wanted = std::min(options_.max_new_tokens, context_ / kShareOfAnswer);
  const auto oldest = messages_.begin() + (system_.empty() ? 0 : 1);
  const auto encode_without = [&](std::ptrdiff_t exchanges) {
    size_t bytes = system_.size();
    for (auto message = oldest + 2 * exchanges; message != messages_.end(); ++message) {
      bytes += message->content.size();
    }
    require_memory_to_encode(bytes, TextForm::record, "a shorter message takes less");
    std::vector<Message> kept(messages_.begin(), oldest);
    kept.insert(kept.end(), oldest + 2 * exchanges, messages_.end());
    prompt_ = encode_conversation(tokenizer_, format_, kept);
  };
  const auto fits = [&] { return std::ssize(prompt_) + wanted <= context_; };
  encode_without(0);
  if (fits()) return;
  std::ptrdiff_t too_few = 0;
  std::ptrdiff_t enough = (messages_.end() - oldest) / 2;  // all but the newest message
  encode_without(enough);
  if (!fits()) refuse(std::ssize(prompt_), wanted);
  std::ptrdiff_t encoded = enough;
  while (enough - too_few > 1 && !is_stopped()) {
    encoded = std::midpoint(too_few, enough);
    encode_without(encoded);
    (fits() ? enough : too_few) = encoded;
  }
  if (encoded != enough) encode_without(enough);
  messages_.erase(oldest, oldest + 2 * enough);
  answer.forgotten = enough;
}

bool Chat::is_stopped() const {
  return options_.stop != nullptr && options_.stop->load();
}

Chat::Answer Chat::say(const std::string& message,
                       const std::function<void(const std::string&)>& use_text) {
  Answer answer;
  const std::vector<Message> before = messages_;
  messages_.push_back({"user", message});
  try {
    make_room(answer);
  } catch (const Error&) {
    messages_ = before;
    throw;
  }
  GenerationOptions options = options_;
  answer.prompt_tokens = static_cast<int64_t>(prompt_.size());
  options.max_new_tokens = std::min(options.max_new_tokens, context_ - answer.prompt_tokens);
  // The last token is always recomputed, since the answer begins with its logits.
  const auto common = std::ranges::mismatch(cached_, prompt_).in1 - cached_.begin();
  options.cached = std::min<int64_t>(common, answer.prompt_tokens - 1);
  answer.cached = options.cached;
  StreamDecoder decoder(tokenizer_, true);
  const auto show = [&](const std::string& piece) {
    answer.text += piece;
    use_text(piece);
  };
  answer.generation =
      generate(session_, prompt_, options, [&](int32_t id) { show(decoder.push(id)); });
  show(decoder.finish());
  answer.computed = std::min(session_.cached_tokens(), answer.prompt_tokens) - answer.cached;
  // Where it was stopped before an answer began, nothing was said, and nothing is forgotten.
  if (is_stopped() && answer.generation.ids.empty()) {
    messages_ = before;
    answer.forgotten = 0;
  } else {
    messages_.push_back({"assistant", answer.text});
  }
  cached_ = prompt_;
  cached_.insert(cached_.end(), answer.generation.ids.begin(), answer.generation.ids.end());
  cached_.resize(static_cast<size_t>(session_.cached_tokens()));
  return answer;
}

}  // namespace jackscrew
