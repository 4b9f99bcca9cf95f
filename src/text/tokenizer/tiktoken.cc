#include "text/tokenizer/tiktoken.h"

#include <array>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "text/tokenizer/byte_map.h"
#include "text/tokenizer/ranked_merges.h"

namespace jackscrew {

namespace {

// The special tokens of Llama 3.1 and later (llama-models, models/llama3/tokenizer.py); reserved
// ones follow.
constexpr std::array<const char*, 12> kSpecial = {"<|begin_of_text|>",
                                                  "<|end_of_text|>",
                                                  "<|reserved_special_token_0|>",
                                                  "<|reserved_special_token_1|>",
                                                  "<|finetune_right_pad_id|>",
                                                  "<|step_id|>",
                                                  "<|start_header_id|>",
                                                  "<|end_header_id|>",
                                                  "<|eom_id|>",
                                                  "<|eot_id|>",
                                                  "<|python_tag|>",
                                                  "<|image|>"};
constexpr size_t kSpecialCount = 256;

int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

// Empty if `text` is not base64.
std::string from_base64(std::string_view text) {
  std::string bytes;
  if (text.size() % 4 != 0) return bytes;
  for (int i = 0; i < 2 && text.ends_with('='); ++i) text.remove_suffix(1);
  uint32_t bits = 0;
  int held = 0;  // number of valid bits
  for (const char c : text) {
    const int digit = base64_digit(c);
    if (digit < 0) return {};
    bits = bits << 6 | static_cast<uint32_t>(digit);
    held += 6;
    if (held < 8) continue;
    held -= 8;
    bytes += static_cast<char>(bits >> held & 0xFF);
  }
  return bytes;
}

struct Line {
  std::string bytes;  // empty: not a valid line
  int64_t rank = -1;
};

Line parse_line(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return {};
  const auto rank = parse_int(line.substr(space + 1));
  return {from_base64(line.substr(0, space)), rank.value_or(-1)};
}

void add_special_tokens(TokenizerData& data) {
  const auto first = narrow<int32_t>(data.tokens.size());
  for (size_t i = 0; i < kSpecialCount; ++i) {
    data.tokens.push_back(i < kSpecial.size() ? kSpecial[i]
                                              : fmt::format("<|reserved_special_token_{}|>",
                                                            i - kSpecial.size() + 2));
  }
  data.kinds.assign(data.tokens.size(), TokenKind::normal);
  std::fill(data.kinds.begin() + first, data.kinds.end(), TokenKind::special);
  data.bos = first;
  data.eos = first + 1;
  data.pad = first + 4;
  data.add_bos = true;
}

}  // namespace

bool is_tiktoken(std::string_view bytes) {
  const Line line = parse_line(bytes.substr(0, bytes.find('\n')));
  return !line.bytes.empty() && line.rank == 0;
}

TokenizerData parse_tiktoken(std::string_view text, const std::string& file_name) {
  TokenizerData data;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const Line line = parse_line(text.substr(0, end));
    const auto expected = static_cast<int64_t>(data.tokens.size());
    if (line.bytes.empty() || line.rank != expected) {
      throw Error(ErrorKind::model,
                  fmt::format("{}: line {} is not a token in base64 and its rank {}", file_name,
                              expected + 1, expected),
                  "tiktoken's files are read where ranks have no gaps");
    }
    data.tokens.push_back(map_bytes(line.bytes));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  const std::vector<std::string_view> ranked(data.tokens.begin(), data.tokens.end());
  data.merges = ranked_merges(ranked);
  data.set_pre_tokenizer("llama-bpe");
  add_special_tokens(data);
  return data;
}

}  // namespace jackscrew
