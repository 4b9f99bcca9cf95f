#include "text/tokenizer/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "base/error.h"
#include "base/regular_expression.h"
#include "text/tokenizer/oniguruma.h"
#include "text/utf8.h"

namespace jackscrew {

namespace {

using Kind = PreTokenizerStep::Kind;

// Heap limit of one match, KiB; PCRE2's own is 20 GB. A run of spaces needs next to nothing.
constexpr uint32_t kMaxHeap = 1 << 19;

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr const char* kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr const char* kSeedCoderPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

const std::array<NamedPreTokenizer, 22>& named_pre_tokenizers() {
  static const std::array<NamedPreTokenizer, 22> kTable = [] {
    const std::vector<PreTokenizerStep> gpt2 = {{Kind::byte_level, {}}};
    const std::vector<PreTokenizerStep> smollm = {{Kind::digits, {}}, {Kind::byte_level, {}}};
    const std::vector<PreTokenizerStep> llama3 = {{Kind::regex, kLlama3Pattern}};
    const std::vector<PreTokenizerStep> qwen2 = {{Kind::regex, kQwen2Pattern}};
    const std::vector<PreTokenizerStep> tekken = {{Kind::regex, kTekkenPattern}};
    const std::vector<PreTokenizerStep> deepseek_coder = {
        {Kind::regex, "[\r\n]"},
        {Kind::regex, R"(\s?\p{L}+)"},
        {Kind::regex, R"(\s?\p{P}+)"},
        {Kind::regex, "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"},
        {Kind::digits, {}}};
    const std::vector<PreTokenizerStep> seed_coder = {{Kind::regex, kSeedCoderPattern}};
    const std::vector<PreTokenizerStep> fallback = {{Kind::regex, R"([\p{P}\$\+<=>\^~\|]+)"},
                                                    {Kind::byte_level, {}},
                                                    {Kind::digit_runs, {}},
                                                    {Kind::regex, "[0-9][0-9][0-9]"}};
    return std::array<NamedPreTokenizer, 22>{{{"gpt-2", gpt2},
                                              {"phi-2", gpt2},
                                              {"mpt", gpt2},
                                              {"olmo", gpt2},
                                              {"smollm", smollm},
                                              {"starcoder", smollm},
                                              {"refact", smollm},
                                              {"codeshell", smollm},
                                              {"llama-bpe", llama3, true},
                                              {"llama3", llama3, true},
                                              {"llama-v3", llama3, true},
                                              {"falcon3", llama3, true},
                                              {"pixtral", llama3, true},
                                              {"dbrx", llama3},
                                              {"smaug-bpe", llama3},
                                              {"qwen2", qwen2, false, true},
                                              {"stablelm2", qwen2},
                                              {"deepseek-r1-qwen", qwen2},
                                              {"tekken", tekken, true},
                                              {"deepseek-coder", deepseek_coder},
                                              {"seed-coder", seed_coder},
                                              {"default", fallback}}};
  }();
  return kTable;
}

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

}  // namespace

struct PreTokenizer::Pattern {
  std::unique_ptr<pcre2_code, FreeCode> code;
  std::unique_ptr<pcre2_match_context, FreeMatchContext> context;
  bool compiled_to_machine_code = false;
};

// The working state of one split(); match data cannot be shared between threads.
struct PreTokenizer::Scratch {
  std::vector<std::unique_ptr<pcre2_match_data, FreeMatchData>> match;
  const std::function<void(std::string_view)>* word = nullptr;
};

std::string step_pattern(const PreTokenizerStep& step) {
  switch (step.kind) {
    case Kind::digits:
      return R"(\p{N})";
    case Kind::digit_runs:
      return R"(\p{N}+)";
    case Kind::byte_level:
      return std::string(kGpt2Pattern);
    case Kind::metaspace:
      return fmt::format(R"(\x{{{0:x}}}[^\x{{{0:x}}}]*)", utf8_character(step.pattern, 0));
    case Kind::regex:
      break;
  }
  return step.pattern;
}

std::string pattern_unicode_version() {
  std::array<char, 32> text{};  // PCRE2 asks for 24
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, text.data());
  return text.data();
}

std::vector<NormalizerStep> text_changes(std::span<const PreTokenizerStep> steps) {
  using Prefix = PreTokenizerStep::Prefix;
  std::vector<NormalizerStep> changes;
  for (size_t i = 0; i < steps.size(); ++i) {
    const PreTokenizerStep& step = steps[i];
    const bool metaspace = step.kind == Kind::metaspace;
    if (!metaspace && step.prefix == Prefix::never) continue;
    if (i > 0) {
      fail(ErrorKind::model, "a pre-tokenizer that changes the pieces of another is not supported");
    }
    const std::string space = " ";
    if (metaspace) changes.push_back({NormalizerStep::Kind::replace, space, step.pattern});
    if (step.prefix != Prefix::never) {
      changes.push_back({NormalizerStep::Kind::prepend,
                         {},
                         metaspace ? step.pattern : space,
                         step.prefix == Prefix::at_begin,
                         true});
    }
  }
  return changes;
}

const NamedPreTokenizer& named_pre_tokenizer(std::string_view name) {
  for (const NamedPreTokenizer& entry : named_pre_tokenizers()) {
    if (entry.name == name) return entry;
  }
  fail(ErrorKind::model, "unknown pre-tokenizer \"{}\"", name);
}

std::string pre_tokenizer_name(std::span<const PreTokenizerStep> steps, bool ignore_merges,
                               bool nfc) {
  std::string name;
  for (const NamedPreTokenizer& entry : named_pre_tokenizers()) {
    const bool fits =
        entry.ignore_merges == ignore_merges &&
        std::equal(steps.begin(), steps.end(), entry.steps.begin(), entry.steps.end());
    if (fits && entry.nfc == nfc) return entry.name;
    if (fits && name.empty()) name = entry.name;
  }
  return name;
}

PreTokenizer::PreTokenizer(std::span<const PreTokenizerStep> steps) {
  for (const PreTokenizerStep& step : steps) {
    if (step.kind == Kind::metaspace && !step.split) continue;
    const std::string source = pcre2_pattern(step_pattern(step));
    int code = 0;
    PCRE2_SIZE offset = 0;
    auto pattern = std::make_shared<Pattern>();
    pattern->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code,
                                      &offset, nullptr));
    if (pattern->code == nullptr) {
      fail(ErrorKind::model, "the tokenizer's pattern \"{}\" does not compile: {}", step.pattern,
           pcre2_message(code));
    }
    pattern->compiled_to_machine_code =
        pcre2_jit_compile(pattern->code.get(), PCRE2_JIT_COMPLETE) == 0;
    pattern->context.reset(pcre2_match_context_create(nullptr));
    if (pattern->context == nullptr) throw std::bad_alloc();
    // A run of spaces is retried once per character: the limit allows about 100 MB of them, but not
    // a pattern made to take for ever.
    pcre2_set_match_limit(pattern->context.get(), 100'000'000);
    pcre2_set_heap_limit(pattern->context.get(), kMaxHeap);
    patterns_.push_back(std::move(pattern));
  }
}

void PreTokenizer::split(std::string_view text,
                         const std::function<void(std::string_view)>& word) const {
  Scratch scratch;
  for (const auto& pattern : patterns_) {
    scratch.match.emplace_back(pcre2_match_data_create_from_pattern(pattern->code.get(), nullptr));
    if (scratch.match.back() == nullptr) throw std::bad_alloc();
  }
  scratch.word = &word;
  if (!text.empty()) split_from(0, text, scratch);
}

void PreTokenizer::split_from(size_t step, std::string_view text, Scratch& scratch) const {
  if (step == patterns_.size()) {
    (*scratch.word)(text);
    return;
  }
  const Pattern& pattern = *patterns_[step];
  pcre2_match_data* match = scratch.match[step].get();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t done = 0;
  size_t from = 0;  // where the search begins
  while (from < text.size()) {
    int code = PCRE2_ERROR_JIT_STACKLIMIT;
    if (pattern.compiled_to_machine_code) {
      code = pcre2_jit_match(pattern.code.get(), subject, text.size(), from, 0, match,
                             pattern.context.get());
    }
    // The interpreter keeps its stack on the heap: slower, but it handles any piece.
    if (code == PCRE2_ERROR_JIT_STACKLIMIT) {
      code = pcre2_match(pattern.code.get(), subject, text.size(), from,
                         PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match, pattern.context.get());
    }
    if (code == PCRE2_ERROR_NOMATCH) break;
    if (code < 0) {
      fail(ErrorKind::data, "cannot cut a piece of {} bytes into words: {}", text.size(),
           pcre2_message(code));
    }
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match);
    const size_t begin = bounds[0];
    const size_t end = bounds[1];
    // As Hugging Face's tokenizers do: an empty match is a cut, but none where the last match
    // ended; from there the search skips a character, even if another match begins at it.
    if (begin == end && end == done) {
      from = done + utf8_length(text[done]);
      continue;
    }
    if (begin > done) split_from(step + 1, text.substr(done, begin - done), scratch);
    if (end > begin) split_from(step + 1, text.substr(begin, end - begin), scratch);
    done = from = end;
  }
  if (done < text.size()) split_from(step + 1, text.substr(done), scratch);
}

}  // namespace jackscrew
