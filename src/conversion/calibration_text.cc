#include "conversion/calibration_text.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace jackscrew {

std::vector<int32_t> calibration_tokens(const Dataset& data) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < data.size(); ++i) {
    const Example example = data.example(i);
    tokens.insert(tokens.end(), example.ids.begin(), example.ids.end());
  }
  return tokens;
}

std::vector<int32_t> calibration_tokens(const Tokenizer& tokenizer) {
  std::vector<int32_t> tokens;
  for (const EmbeddedText& file : embedded_calibration_texts()) {
    if (tokenizer.add_bos()) tokens.push_back(tokenizer.bos());
    const std::vector<int32_t> ids = tokenizer.encode(file.text, false);
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }
  return tokens;
}

CalibrationText calibration_text(std::span<const int32_t> tokens, int64_t sequences,
                                 int64_t sequence_len, int64_t least) {
  const int64_t windows = std::ssize(tokens) / sequence_len;
  CalibrationText text{std::min(sequences, windows), sequence_len, {}};
  if (text.tokens() < least) {
    const bool has_enough = windows * sequence_len >= least;
    throw Error(
        ErrorKind::data,
        fmt::format("the calibration text has {}, {} of {} each; {} of them are {}: too few "
                    "for layers of {} inputs",
                    counted(std::ssize(tokens), "token"), counted(windows, "whole sequence"),
                    sequence_len, text.sequences, counted(text.tokens(), "token"), least),
        has_enough
            ? fmt::format("set calibration_sequences to {} or more", ceil_div(least, sequence_len))
            : fmt::format("at least {} are needed; 128 sequences of 512 are usual", least));
  }
  for (int64_t i = 0; i < text.sequences; ++i) {
    const auto from = tokens.begin() + i * windows / text.sequences * sequence_len;
    text.ids.insert(text.ids.end(), from, from + sequence_len);
  }
  return text;
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
