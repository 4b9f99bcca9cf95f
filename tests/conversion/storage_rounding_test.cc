// Storage formats rounded column by column, against the plain algorithm in double.
#include "conversion/storage_rounding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "quant/row_encoders.h"
#include "tests/conversion/layer.h"
#include "tests/quant/decode.h"
#include "tests/support/errors.h"

namespace jackscrew {
namespace {

const char* const kRounded[] = {"q8_0", "q4_0", "q4_1", "q5_0",   "q5_1",   "q2_k", "q3_k",
                                "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "nf4"};

// A layer that is rounded to a storage format.
struct StoredLayer : Layer {
  using Layer::Layer;

  InverseFactor factor() { return inverse_factor(*ops, memory, hessian.matrix(), {}, 0.01); }
  // Its storage; w becomes what the codes stand for.
  std::vector<uint8_t> round(const char* format, bool compensates = true) {
    const InverseFactor inverse = compensates ? factor() : InverseFactor();
    return round_storage(*ops, memory, spec, w.view(), inverse.u.view(), find_format(format)).bytes;
  }
};

// Elements that share a scale.
int64_t group_of(const std::string& format) {
  if (format == "nf4") return 64;
  return format == "q2_k" || format == "q3_k" || format == "q6_k" ? 16 : 32;
}

// Column by column, every later one moved at once. What a group has taken are some of its numbers:
// none of them may be nearer to what was due than the one that was taken.
TEST(StorageRounding, FollowsThePlainAlgorithm) {
  constexpr int64_t kCols = 768;
  for (const std::string name : kRounded) {
    SCOPED_TRACE(name);
    StoredLayer layer(3, kCols);
    const std::vector<float> before = layer.values();
    const InverseFactor factor = layer.factor();
    const float* u = factor.u.view().data<float>();
    layer.round(name.c_str());
    const std::vector<float> after = layer.values();
    const int64_t group = group_of(name);
    for (int64_t row = 0; row < 3; ++row) {
      std::vector<double> w(before.begin() + row * kCols, before.begin() + (row + 1) * kCols);
      const auto taken = [&](int64_t i) {
        return static_cast<double>(after[static_cast<size_t>(row * kCols + i)]);
      };
      for (int64_t i = 0; i < kCols; ++i) {
        const double due = w[static_cast<size_t>(i)];
        const double off = std::abs(taken(i) - due);
        for (int64_t other = i / group * group; other < (i / group + 1) * group; ++other) {
          ASSERT_LE(off, std::abs(taken(other) - due) + 2e-5) << "column " << i << ", " << other;
        }
        const double error = (taken(i) - due) / static_cast<double>(u[i * (kCols + 1)]);
        for (int64_t j = i + 1; j < kCols; ++j) {
          w[static_cast<size_t>(j)] += error * static_cast<double>(u[i * kCols + j]);
        }
      }
    }
  }
}

TEST(StorageRounding, LosesLessThanTheNearest) {
  for (const char* format : kRounded) {
    StoredLayer rounded(16, 512), nearest(16, 512);
    const std::vector<float> before = rounded.values();
    rounded.round(format);
    nearest.round(format, false);
    EXPECT_LT(rounded.error(before), 0.6 * nearest.error(before)) << format;
  }
}

// Values are those that readers decode, with any number of threads.
TEST(StorageRounding, GivesTheStorageOfItsValues) {
  for (const char* name : kRounded) {
    StoredLayer one(40, 512, 1), three(40, 512, 3);
    std::vector<uint8_t> bytes = one.round(name);
    EXPECT_EQ(bytes, three.round(name)) << name;
    EXPECT_EQ(one.values(), three.values()) << name;
    EXPECT_EQ(decode(*one.ops, find_format(name), storage_of(bytes, 40, 512), 0, 40), one.values())
        << name;
  }
}

// Without a Hessian the bytes are those of export.
TEST(StorageRounding, IsTheEncoderWhereNothingCompensates) {
  StoredLayer layer(4, 512);
  const std::vector<float> before = layer.values();
  const std::vector<uint8_t> bytes = layer.round("q4_k", false);
  const Format& format = find_format("q4_k");
  std::vector<uint8_t> rows(bytes.size());
  for (int64_t row = 0; row < 4; ++row) {
    find_row_encoder(format)->encode(before.data() + row * 512, 512,
                                     rows.data() + row * format.row_bytes(512));
  }
  EXPECT_EQ(bytes, rows);
}

TEST(StorageRounding, ZerosStayZeros) {
  for (const char* format : kRounded) {
    StoredLayer layer(2, 256);
    std::ranges::fill(std::span(layer.w.view().data<float>(), 512), 0.0f);
    layer.round(format);
    EXPECT_EQ(layer.values(), std::vector<float>(512, 0.0f)) << format;
  }
}

TEST(StorageRounding, RefusesWhatFormatsCannotHold) {
  StoredLayer huge(8, 256);
  for (float& x : std::span(huge.w.view().data<float>(), 8 * 256)) x *= 1e8f;
  expect_message(ErrorKind::model, "beyond those of f16, which q4_0 decodes to",
                 [&] { huge.round("q4_0"); });
  StoredLayer damaged(8, 256);
  damaged.w.view().data<float>()[70] = std::numeric_limits<float>::quiet_NaN();
  expect_message(ErrorKind::non_finite, "up_proj.weight has values that are not finite",
                 [&] { damaged.round("q4_k"); });
}

}  // namespace
}  // namespace jackscrew
