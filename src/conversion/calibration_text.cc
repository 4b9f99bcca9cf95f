#include "conversion/calibration_text.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"

namespace jackscrew {

namespace {

// The longest sequences, of `most` tokens at the utmost, of which a text of so many tokens gives
// `least` in at most `sequences`; 0 where none do.
int64_t longest_enough(int64_t tokens, int64_t sequences, int64_t most, int64_t least) {
  int64_t length = std::min(most, tokens);
  while (length > 0 && std::min(sequences, tokens / length) * length < least) --length;
  return length;
}

std::string what_is_needed(int64_t tokens, const CalibrationSize& size, int64_t least) {
  if (tokens / size.sequence_len * size.sequence_len >= least) {
    return fmt::format("set calibration_sequences to {} or more",
                       ceil_div(least, size.sequence_len));
  }
  const int64_t length =
      size.has_own_length ? longest_enough(tokens, size.sequences, size.sequence_len, least) : 0;
  if (length > 0) return fmt::format("shorter sequences give enough: sequence_len={}", length);
  return fmt::format("at least {} are needed; 128 sequences of 512 are usual",
                     size.has_own_length ? least : round_up(least, size.sequence_len));
}

// calibration_text() of so many tokens. copy(from, to, ids) appends those in [from, to) to `ids`;
// it is called for one piece after another, in their order in the text.
template <class Copy>
CalibrationText spread_over(int64_t tokens, const CalibrationSize& size, int64_t least,
                            const Copy& copy) {
  const int64_t windows = tokens / size.sequence_len;
  CalibrationText text{std::min(size.sequences, windows), size.sequence_len, {}};
  if (text.tokens() < least) {
    throw Error(
        ErrorKind::data,
        fmt::format("the calibration text has {}, {} of {} each; {} of them are {}: too few{}",
                    counted(tokens, "token"), counted(windows, "whole sequence"), size.sequence_len,
                    text.sequences, counted(text.tokens(), "token"),
                    least > 1 ? fmt::format(" for layers of {} inputs", least) : ""),
        what_is_needed(tokens, size, least));
  }
  for (int64_t i = 0; i < text.sequences; ++i) {
    const int64_t from = i * windows / text.sequences * size.sequence_len;
    copy(from, from + size.sequence_len, text.ids);
  }
  return text;
}

}  // namespace

std::vector<int32_t> calibration_tokens(const Tokenizer& tokenizer) {
  std::vector<int32_t> tokens;
  for (const EmbeddedText& file : embedded_calibration_texts()) {
    if (tokenizer.add_bos()) tokens.push_back(tokenizer.bos());
    const std::vector<int32_t> ids = tokenizer.encode(file.text, false);
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }
  return tokens;
}

CalibrationText calibration_text(std::span<const int32_t> tokens, const CalibrationSize& size,
                                 int64_t least) {
  return spread_over(std::ssize(tokens), size, least,
                     [&](int64_t from, int64_t to, std::vector<int32_t>& ids) {
                       ids.insert(ids.end(), tokens.begin() + from, tokens.begin() + to);
                     });
}

CalibrationText calibration_text(const Dataset& data, const CalibrationSize& size, int64_t least) {
  int64_t tokens = 0;
  for (int64_t i = 0; i < data.size(); ++i) tokens = checked_add(tokens, data.length(i));
  int64_t example = 0;  // the one that holds the next piece's first token, or one before it
  int64_t begin = 0;    // its first token
  return spread_over(tokens, size, least, [&](int64_t from, int64_t to, std::vector<int32_t>& ids) {
    while (from < to) {
      const int64_t end = begin + data.length(example);
      if (from < end) {
        const std::vector<int32_t> all = data.example(example).ids;
        const int64_t last = std::min(to, end);
        ids.insert(ids.end(), all.begin() + (from - begin), all.begin() + (last - begin));
        from = last;
      }
      if (from < end) break;
      begin = end;
      ++example;
    }
  });
}

CalibrationText part_of(const CalibrationText& text, int64_t sequences) {
  CalibrationText part{std::min(sequences, text.sequences), text.sequence_len, {}};
  for (int64_t i = 0; i < part.sequences; ++i) {
    const auto from = text.ids.begin() + i * text.sequences / part.sequences * text.sequence_len;
    part.ids.insert(part.ids.end(), from, from + text.sequence_len);
  }
  return part;
}

}  // namespace jackscrew
