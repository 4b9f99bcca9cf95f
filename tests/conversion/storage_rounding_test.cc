// Storage formats rounded column by column, against the plain algorithm in double.
#include "conversion/storage_rounding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "conversion/column_order.h"
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

  std::vector<int32_t> order() const { return hessian.order(ColumnOrder::blocks_by_activation); }
  InverseFactor factor(const std::vector<int32_t>& of) {
    return inverse_factor(*ops, memory, hessian.matrix(), of, 0.01);
  }
  // Its storage; w becomes what the codes stand for.
  std::vector<uint8_t> round(const char* format) { return round(format, factor(order()), order()); }
  std::vector<uint8_t> round_to_nearest(const char* format) { return round(format, {}, {}); }
  std::vector<uint8_t> round(const char* format, const InverseFactor& inverse,
                             const std::vector<int32_t>& of) {
    reorder_columns(*ops, w.view(), of, Reorder::forth);
    std::vector<uint8_t> bytes =
        round_storage(*ops, memory, spec, w.view(), inverse.u.view(), of, find_format(format))
            .bytes;
    reorder_columns(*ops, w.view(), of, Reorder::back);
    return bytes;
  }
};

// Elements that share a scale.
int64_t group_of(const std::string& format) {
  if (format == "nf4") return 64;
  return format == "q2_k" || format == "q3_k" || format == "q6_k" ? 16 : 32;
}

// Column by column, every later one moved at once. What a group has taken are some of its numbers:
// none of them may be nearer to what was due than the one that was taken.
void expect_the_plain_algorithm(const std::string& format, bool by_activation) {
  constexpr int64_t kCols = 768;
  StoredLayer layer(3, kCols);
  const std::vector<float> before = layer.values();
  const std::vector<int32_t> order = by_activation ? layer.order() : std::vector<int32_t>();
  const InverseFactor factor = layer.factor(order);
  const float* u = factor.u.view().data<float>();
  layer.round(format.c_str(), factor, order);
  const std::vector<float> after = layer.values();
  const int64_t group = group_of(format);
  for (int64_t row = 0; row < 3; ++row) {
    const auto place = [&](int64_t i) {  // of the column that is rounded i-th
      return static_cast<size_t>(row * kCols + (order.empty() ? i : order[static_cast<size_t>(i)]));
    };
    std::vector<double> w;
    for (int64_t i = 0; i < kCols; ++i) w.push_back(static_cast<double>(before[place(i)]));
    const auto taken = [&](int64_t i) { return static_cast<double>(after[place(i)]); };
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

TEST(StorageRounding, FollowsThePlainAlgorithm) {
  for (const char* format : kRounded) {
    for (const bool by_activation : {false, true}) {
      SCOPED_TRACE(format);
      expect_the_plain_algorithm(format, by_activation);
    }
  }
}

// The most active first, in whole groups of all sizes.
TEST(StorageRounding, GroupsStayTogether) {
  for (const int64_t cols : {768, 192, 96}) {
    StoredLayer layer(1, cols);
    const std::vector<int32_t> order = layer.order();
    std::vector<int32_t> sorted = order;
    std::ranges::sort(sorted);
    for (int32_t i = 0; i < cols; ++i) ASSERT_EQ(sorted[static_cast<size_t>(i)], i);
    const float* h = layer.hessian.matrix().data<float>();
    for (const int64_t size : {16, 32, 64, 256}) {
      if (cols % size != 0) break;
      double last = std::numeric_limits<double>::infinity();
      for (int64_t begin = 0; begin < cols; begin += size) {
        double sum = 0.0;
        for (int64_t i = begin; i < begin + size; ++i) {
          const int64_t column = order[static_cast<size_t>(i)];
          EXPECT_EQ(column / size, order[static_cast<size_t>(begin)] / size) << i;
          sum += static_cast<double>(h[column * (cols + 1)]);
        }
        // Within the next larger group.
        const int64_t larger = size < 64 ? 2 * size : 256;
        if (size < 256 && begin % larger != 0) {
          EXPECT_LE(sum, last * (1 + 1e-6)) << begin;
        }
        last = sum;
      }
    }
  }
}

TEST(StorageRounding, LosesLessThanTheNearest) {
  for (const char* format : kRounded) {
    StoredLayer rounded(16, 512), nearest(16, 512);
    const std::vector<float> before = rounded.values();
    rounded.round(format);
    nearest.round_to_nearest(format);
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
  const std::vector<uint8_t> bytes = layer.round_to_nearest("q4_k");
  const Format& format = find_format("q4_k");
  std::vector<uint8_t> rows(bytes.size());
  for (int64_t row = 0; row < 4; ++row) {
    find_row_encoder(format)->encode(before.data() + row * 512, 512,
                                     rows.data() + row * format.row_bytes(512));
  }
  EXPECT_EQ(bytes, rows);
}

// Those of columns (order, place, cost, weight) and rows (error), beside blocks as many as
// returned.
TEST(StorageRounding, BooksAllItsVectors) {
  for (const char* format : kRounded) {
    StoredLayer layer(16, 512);
    EXPECT_GE(storage_held_bytes(layer.spec, find_format(format)),
              std::ssize(layer.round(format)) + 512 * (4 + 4 + 4 + 8) + 16 * 8)
        << format;
  }
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
