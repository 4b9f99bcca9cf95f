#include "text/tokenizer/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/checked.h"
#include "base/error.h"
#include "text/tokenizer/byte_map.h"
#include "text/tokenizer/sentencepiece.h"
#include "text/tokenizer/tokenizer_files.h"

namespace jackscrew {

namespace {

constexpr const char* kOtherFormat =
    "a Hugging Face directory can have it: output_dir=DIR storage=bf16 writes one, and in a run "
    "export=hf";

PieceType piece_type(const TokenizerData& data, size_t id) {
  const TokenKind kind = data.kinds.empty() ? TokenKind::normal : data.kinds[id];
  switch (kind) {
    case TokenKind::normal:
      return data.byte_fallback && byte_of_token(data.tokens[id]) ? PieceType::byte
                                                                  : PieceType::normal;
    case TokenKind::special:
      return std::cmp_equal(data.unk, id) && data.spelling == Spelling::text ? PieceType::unknown
                                                                             : PieceType::control;
    case TokenKind::added:
      return PieceType::user_defined;
    case TokenKind::unused:
      break;
  }
  return PieceType::unused;
}

// Each token's score: the negative rank of the first merge that makes it; tokens without a merge
// get a lower score than all others.
std::vector<double> merge_scores(const TokenizerData& data) {
  std::map<std::string, double> ranks;
  for (size_t i = 0; i < data.merges.size(); ++i) {
    ranks.emplace(data.merges[i].first + data.merges[i].second, -static_cast<double>(i));
  }
  const double least = -static_cast<double>(data.merges.size()) - 1.0;
  std::vector<double> scores;
  for (const std::string& token : data.tokens) {
    const auto found = ranks.find(token);
    scores.push_back(found == ranks.end() ? least : found->second);
  }
  return scores;
}

// Whether a space is put before a text, by whichever mechanism.
bool adds_space(const TokenizerData& data) {
  const auto prepends = [](const NormalizerStep& step) {
    return step.kind == NormalizerStep::Kind::prepend;
  };
  const auto prefixes = [](const PreTokenizerStep& step) {
    return step.prefix != PreTokenizerStep::Prefix::never;
  };
  return std::any_of(data.normalizer.begin(), data.normalizer.end(), prepends) ||
         std::any_of(data.pre_tokenizer.begin(), data.pre_tokenizer.end(), prefixes);
}

void write_byte_level(const TokenizerData& data, GgufTokenizerMetadata& out) {
  out.model = "gpt2";
  const bool nfc = data.normalizer == std::vector{NormalizerStep{}};
  out.pre = pre_tokenizer_name(data.pre_tokenizer, data.ignore_merges, nfc);
  if (out.pre.empty()) {
    throw Error(ErrorKind::model, "GGUF has no name for the pre-tokenizer of this tokenizer",
                kOtherFormat);
  }
  for (const auto& [left, right] : data.merges) out.merges.push_back(left + " " + right);
}

void write_sentencepiece(const TokenizerData& data, GgufTokenizerMetadata& out) {
  out.model = "llama";
  out.pre = "default";
  out.scores = merge_scores(data);
  out.add_space_prefix = adds_space(data);
}

// Texts on which tokenizers differ: spaces, digits, case, scripts, contractions, and letters whose
// marks are characters of their own.
constexpr std::array<const char*, 7> kProbes = {"Hello, world! It's 2026: 1234567 and 3.14159.",
                                                "  two spaces\tand\ttabs\n\n\nlines \r\n end  ",
                                                "def f(x):\n    return x**2  # WE'LL see\n",
                                                "na\xC3\xAFve caf\xC3\xA9 \xE2\x82\xAC"
                                                "5 \xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x99\x82",
                                                "<tag attr=\"a\">$%^&*()</tag>",
                                                "CamelCaseWords and snake_case_words",
                                                "cafe\xCC\x81"};

}  // namespace

GgufTokenizerMetadata to_gguf_tokenizer(const TokenizerData& data) {
  GgufTokenizerMetadata out;
  out.tokens = data.tokens;
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    out.token_types.push_back(static_cast<int64_t>(piece_type(data, id)));
  }
  data.spelling == Spelling::byte_map ? write_byte_level(data, out)
                                      : write_sentencepiece(data, out);
  out.bos_id = data.bos;
  out.eos_id = data.eos;
  out.unk_id = data.unk;
  out.pad_id = data.pad;
  out.add_bos = data.add_bos;
  out.add_eos = data.add_eos;
  out.chat_template = data.chat_template;
  out.tool_template = data.tool_template;
  return out;
}

std::string changed_in_gguf(const Tokenizer& before, const GgufTokenizerMetadata& written) {
  const TokenizerData& data = before.data();
  TokenizerData read = gguf_tokenizer_data(written, "what is written");
  // Names such as "qwen2" say here that letters and their marks are composed; llama.cpp does not.
  if (written.model == "gpt2") read.normalizer.clear();
  const Tokenizer after(std::move(read));
  std::vector<std::string> texts(kProbes.begin(), kProbes.end());
  const auto added = std::find(data.kinds.begin(), data.kinds.end(), TokenKind::added);
  if (added != data.kinds.end()) {
    const std::string& token = data.tokens[static_cast<size_t>(added - data.kinds.begin())];
    texts.push_back("before" + token + "behind");
  }
  for (const std::string& text : texts) {
    if (before.encode(text, true) != after.encode(text, true)) return text;
    if (before.encode(text, true, TextPlace::after_special) !=
        after.encode(text, true, TextPlace::after_special)) {
      return text;
    }
  }
  return {};
}

}  // namespace jackscrew
