// Blocks of NF4 as quantize rounds them: their absmax is the one with the least error.
#include <cmath>
#include <limits>

#include "quant/block_encoder.h"
#include "quant/nf4.h"

namespace jackscrew {

namespace {

// Tried shares of the largest magnitude, in equal steps. A grid of sixteen numbers gains little by
// clipping more.
constexpr int kShares = 16;
constexpr double kLeastShare = 0.7;

size_t nearest_number(double x) {
  const std::span<const float> numbers = nf4_values();
  size_t code = 0;
  while (code + 1 < numbers.size() &&
         x > 0.5 * (static_cast<double>(numbers[code]) + static_cast<double>(numbers[code + 1]))) {
    ++code;
  }
  return code;
}

struct Nf4Encoder {
  static constexpr size_t kColumns = kNf4Block, kGroup = kNf4Block;
  static constexpr size_t kBytes = kColumns / 2 + sizeof(float);  // codes, absmax

  float absmax = 0.0f;

  void fit(size_t, const float* x, const double* weights) {
    float largest = 0.0f;
    for (size_t i = 0; i < kColumns; ++i) largest = std::max(largest, std::abs(x[i]));
    absmax = largest;
    double least = std::numeric_limits<double>::infinity();
    for (int step = 0; step < kShares && largest > 0.0f; ++step) {
      const double share = 1.0 - (1.0 - kLeastShare) * step / (kShares - 1);
      const double tried = share * static_cast<double>(largest);
      double error = 0.0;
      for (size_t i = 0; i < kColumns; ++i) {
        const auto value = static_cast<double>(x[i]);
        const double off =
            tried * static_cast<double>(nf4_values()[nearest_number(value / tried)]) - value;
        error += weights[i] * off * off;
      }
      if (error < least) {
        least = error;
        absmax = static_cast<float>(tried);
      }
    }
  }
  void set_scales() {}
  void settle(size_t, const float*, const double*) {}
  uint32_t code(size_t, double x) const {
    const double number = absmax > 0.0f ? x / static_cast<double>(absmax) : 0.0;
    return static_cast<uint32_t>(nearest_number(number));
  }
  double value(size_t, uint32_t code) const {
    return static_cast<double>(absmax) * static_cast<double>(nf4_values()[code]);
  }
  // The even element in the high nibble.
  void write(const std::array<uint32_t, kColumns>& codes, uint8_t* out) const {
    for (size_t i = 0; i < kColumns; i += 2) {
      out[i / 2] = static_cast<uint8_t>(codes[i] << 4 | codes[i + 1]);
    }
    std::memcpy(out + kColumns / 2, &absmax, sizeof absmax);
  }
};

void place_nf4(std::span<const uint8_t> blocks, const Storage& storage) {
  constexpr size_t kCodes = Nf4Encoder::kColumns / 2;
  const Nf4Parts parts =
      nf4_parts(false, storage.bytes.data<uint8_t>(), storage.rows, storage.cols);
  auto* codes = parts.codes.data<uint8_t>();
  auto* absmax = parts.absmax.data<float>();
  for (; !blocks.empty(); blocks = blocks.subspan(Nf4Encoder::kBytes)) {
    std::memcpy(codes, blocks.data(), kCodes);
    std::memcpy(absmax, blocks.data() + kCodes, sizeof *absmax);
    codes += kCodes;
    ++absmax;
  }
}

}  // namespace

BlockRounding nf4_rounding() {
  return rounding_of<Nf4Encoder>(place_nf4);
}

}  // namespace jackscrew
