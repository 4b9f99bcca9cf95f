// The text that quantize calibrates on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/embedded_text.h"
#include "data/dataset.h"

namespace jackscrew {

// The amount of calibration text that is asked for.
struct CalibrationSize {
  int64_t sequences = 128, sequence_len = 512;
  bool has_own_length = true;  // false: the recipe's sequence_len is that of a run
};

struct CalibrationText {
  int64_t sequences = 0, sequence_len = 0;
  std::vector<int32_t> ids;  // [sequences, sequence_len]

  int64_t tokens() const { return sequences * sequence_len; }
  CalibrationSize size() const { return {sequences, sequence_len}; }
};

// The text that is a part of the program: its documentation and some of its sources, in English,
// C++ and Python. Special tokens spelled out in it are ordinary text.
std::vector<int32_t> calibration_tokens(const Tokenizer& tokenizer);

// Cuts the tokens into sequences of `sequence_len` and takes up to `sequences` of them: evenly
// spaced where there are more, all where there are fewer. Throws Error(data), naming the number of
// tokens, where the result has fewer than `least`.
CalibrationText calibration_text(std::span<const int32_t> tokens, const CalibrationSize& size,
                                 int64_t least);
// Takes them from the data's examples, laid end to end; what is not taken is not held in memory.
CalibrationText calibration_text(const Dataset& data, const CalibrationSize& size, int64_t least);

// Up to `sequences` of the text's sequences, evenly spaced.
CalibrationText part_of(const CalibrationText& text, int64_t sequences);

// The files that the build made a part of the program (cmake/EmbeddedTexts.cmake).
std::span<const EmbeddedText> embedded_calibration_texts();

}  // namespace jackscrew
