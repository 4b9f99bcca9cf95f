#include "quant/packed.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "quant/packed_source.h"
#include "quant/weight.h"
#include "tests/quant/decode.h"
#include "tests/support/errors.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

constexpr int64_t kPackedRows = 5;

// A matrix as somebody has quantised it, and what its values are.
struct Quantised {
  std::vector<std::pair<int64_t, int64_t>> groups;  // columns, bits
  PackedScale scale = PackedScale::f16;
  PackedZero zero = PackedZero::middle;
  std::vector<int32_t> columns = {};             // [cols]; empty: in order
  std::vector<std::vector<uint8_t>> codes = {};  // [rows][stored column]
  std::vector<std::vector<float>> scales = {};   // [rows][group], or the codes of squared ones
  std::vector<std::vector<uint8_t>> zeros = {};  // [rows][group]
  std::vector<uint16_t> scale_max = {};          // [group]
  std::vector<float> values = {};                // [rows, cols]
};

int64_t cols_of(const Quantised& matrix) {
  int64_t cols = 0;
  for (const auto& group : matrix.groups) cols += group.first;
  return cols;
}

float in_f16(double value) {
  return to_float(to_f16(static_cast<float>(value)));
}
float rounded(PackedScale type, double value) {
  if (type == PackedScale::f32) return static_cast<float>(value);
  return type == PackedScale::bf16 ? to_float(to_bf16(static_cast<float>(value))) : in_f16(value);
}

double scale_of(const Quantised& matrix, size_t row, size_t g) {
  const double stored = matrix.scales[row][g];
  if (matrix.scale != PackedScale::squared) return stored;
  return in_f16((stored + 1) * (stored + 1) * to_float(f16{matrix.scale_max[g]}));
}

Quantised random_matrix(const std::vector<std::pair<int64_t, int64_t>>& groups, PackedScale scale,
                        PackedZero zero, bool permuted) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  Quantised out{.groups = groups, .scale = scale, .zero = zero};
  const int64_t cols = cols_of(out);
  if (permuted) {
    for (int64_t k = 0; k < cols; ++k) out.columns.push_back(static_cast<int32_t>(k));
    std::shuffle(out.columns.begin(), out.columns.end(), random);
  }
  out.values.assign(static_cast<size_t>(kPackedRows * cols), 0.0f);
  // Scales of very different size: products reach into f16's subnormal numbers.
  for (size_t g = 0; g < groups.size(); ++g) {
    out.scale_max.push_back(to_f16(std::exp2f(static_cast<float>(random() % 12) - 20.0f)).bits);
  }
  for (size_t row = 0; row < kPackedRows; ++row) {
    out.codes.emplace_back();
    out.scales.emplace_back();
    out.zeros.emplace_back();
    size_t column = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      const auto [count, bits] = groups[g];
      const double drawn = normal(random) * std::exp2(-static_cast<double>(random() % 20));
      out.scales[row].push_back(scale == PackedScale::squared ? static_cast<float>(random() % 16)
                                                              : rounded(scale, drawn));
      const uint32_t most = zero == PackedZero::four_bits ? 15u : (1u << bits) - 1u;
      out.zeros[row].push_back(static_cast<uint8_t>(
          zero == PackedZero::middle ? 1u << (bits - 1) : random() % (most + 1)));
      for (int64_t i = 0; i < count; ++i, ++column) {
        const auto code = static_cast<uint8_t>(random() % (1u << bits));
        out.codes[row].push_back(code);
        const size_t at = out.columns.empty() ? column : static_cast<size_t>(out.columns[column]);
        out.values[row * static_cast<size_t>(cols) + at] =
            rounded(scale, scale_of(out, row, g) * (code - out.zeros[row][g]));
      }
    }
  }
  return out;
}

StoredTensor stored(const Quantised& matrix) {
  PackedSource source{
      .name = "w",
      .format = "of_the_test",
      .rows = kPackedRows,
      .layout = packed_layout(matrix.groups, matrix.scale, matrix.zero, !matrix.columns.empty()),
      .columns = matrix.columns,
      .scale_max =
          matrix.scale == PackedScale::squared ? matrix.scale_max : std::vector<uint16_t>{}};
  source.codes = [matrix](int64_t begin, int64_t end, int64_t first, int64_t count, uint8_t* to) {
    for (int64_t row = begin; row < end; ++row) {
      std::copy_n(matrix.codes[static_cast<size_t>(row)].begin() + first, count,
                  to + (row - begin) * 32);
    }
  };
  source.scales = [matrix](int64_t row, uint8_t* to) {
    for (const float scale : matrix.scales[static_cast<size_t>(row)]) {
      const auto put = [&](auto value) {
        std::memcpy(to, &value, sizeof value);
        to += sizeof value;
      };
      if (matrix.scale == PackedScale::squared) put(static_cast<uint8_t>(scale));
      if (matrix.scale == PackedScale::f16) put(to_f16(scale));
      if (matrix.scale == PackedScale::bf16) put(to_bf16(scale));
      if (matrix.scale == PackedScale::f32) put(scale);
    }
  };
  source.zeros = [matrix](int64_t row, uint8_t* to) {
    std::copy(matrix.zeros[static_cast<size_t>(row)].begin(),
              matrix.zeros[static_cast<size_t>(row)].end(), to);
  };
  return packed_tensor(std::move(source));
}

class Packed : public ::testing::Test {
 protected:
  std::unique_ptr<Weight> load(const StoredTensor& tensor, int64_t rows = kPackedRows) {
    auto weight =
        std::make_unique<Weight>(memory_, WeightSpec{"w", rows, tensor.shape[1]}, tensor.format);
    weight->load(*ops_, tensor, staging_);
    return weight;
  }
  std::vector<float> values_of(const Weight& weight) {
    std::vector<float> out(static_cast<size_t>(weight.size()));
    weight.decode(*ops_, 0, weight.rows(),
                  Tensor(out.data(), DType::f32, {weight.rows(), weight.cols()}));
    return out;
  }

  std::unique_ptr<Ops> ops_ = make_test_ops();
  Memory memory_{"host", make_host_backing(), 0};
  Arena staging_{memory_, Purpose::staging, int64_t{1} << 20};
};

// Every width beside every other, groups that end within 32 elements and beyond.
const std::vector<std::pair<int64_t, int64_t>> kMix = {{32, 8}, {64, 6}, {7, 5},  {33, 4},
                                                       {64, 4}, {96, 3}, {31, 2}, {1, 2}};
const std::vector<std::pair<int64_t, int64_t>> kEven = {{64, 4}, {64, 4}, {64, 4}};

TEST_F(Packed, DecodesEveryKindBitForBit) {
  for (const PackedScale scale :
       {PackedScale::f16, PackedScale::bf16, PackedScale::f32, PackedScale::squared}) {
    for (const PackedZero zero :
         {PackedZero::middle, PackedZero::four_bits, PackedZero::eight_bits}) {
      for (const bool permuted : {false, true}) {
        for (const auto& groups : {kMix, kEven}) {
          const Quantised matrix = random_matrix(groups, scale, zero, permuted);
          const auto weight = load(stored(matrix));
          EXPECT_TRUE(same_bits(values_of(*weight), matrix.values))
              << static_cast<int>(scale) << static_cast<int>(zero) << permuted;
        }
      }
    }
  }
}

TEST_F(Packed, GathersRowsAndRoundsToBf16) {
  const Quantised matrix = random_matrix(kMix, PackedScale::f16, PackedZero::four_bits, true);
  const auto weight = load(stored(matrix));
  const auto cols = static_cast<size_t>(weight->cols());
  std::vector<int32_t> indices = {4, 0, 4};
  std::vector<float> picked(3 * cols);
  weight->gather(*ops_, Tensor(indices.data(), DType::i32, {3}),
                 Tensor(picked.data(), DType::f32, {3, weight->cols()}));
  for (size_t i = 0; i < picked.size(); ++i) {
    ASSERT_EQ(picked[i], matrix.values[static_cast<size_t>(indices[i / cols]) * cols + i % cols]);
  }
  std::vector<bf16> narrow(static_cast<size_t>(weight->size()));
  weight->decode(*ops_, 0, kPackedRows,
                 Tensor(narrow.data(), DType::bf16, {kPackedRows, weight->cols()}));
  for (size_t i = 0; i < narrow.size(); ++i) {
    ASSERT_EQ(narrow[i].bits, to_bf16(matrix.values[i]).bits) << i;
  }
}

TEST_F(Packed, MultipliesASingleToken) {
  for (const bool permuted : {false, true}) {
    const Quantised matrix = random_matrix(kMix, PackedScale::bf16, PackedZero::middle, permuted);
    const auto weight = load(stored(matrix));
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(weight->cols()));
    for (float& value : x) value = normal(random);
    std::vector<float> y(kPackedRows, 1.0f);
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      weight->multiply(*ops_, Tensor(x.data(), DType::f32, {1, weight->cols()}),
                       Tensor(y.data(), DType::f32, {1, kPackedRows}), accumulate, staging_);
      const double times = accumulate == Accumulate::yes ? 2.0 : 1.0;
      for (size_t row = 0; row < kPackedRows; ++row) {
        double sum = 0, size = 0;
        for (size_t k = 0; k < x.size(); ++k) {
          const double product = static_cast<double>(x[k]) * matrix.values[row * x.size() + k];
          sum += product;
          size += std::abs(product);
        }
        EXPECT_NEAR(y[row], times * sum, 1e-6 * size);
      }
    }
  }
}

// Where groups are multiples of 32 columns, x is rounded, and numbers are not rounded to f16.
TEST_F(Packed, MultipliesASingleTokenByCodes) {
  const std::vector<std::pair<int64_t, int64_t>> groups = {
      {32, 8}, {8192 - 64, 4}, {64, 3}, {96, 5}, {128, 6}, {32, 2}, {64, 4}};
  for (const PackedScale scale : {PackedScale::f16, PackedScale::f32, PackedScale::squared}) {
    for (const PackedZero zero :
         {PackedZero::middle, PackedZero::four_bits, PackedZero::eight_bits}) {
      const Quantised matrix = random_matrix(groups, scale, zero, false);
      const auto weight = load(stored(matrix));
      const auto cols = static_cast<size_t>(weight->cols());
      std::mt19937 random(3);
      std::normal_distribution<float> normal;
      std::vector<float> x(cols);
      for (float& value : x) value = normal(random);
      x = rounded_token(x, TokenRounding{32767});
      std::vector<float> y(kPackedRows);
      weight->multiply(*ops_, Tensor(x.data(), DType::f32, {1, weight->cols()}),
                       Tensor(y.data(), DType::f32, {1, kPackedRows}), Accumulate::no, staging_);
      for (size_t row = 0; row < kPackedRows; ++row) {
        double sum = 0, size = 0;
        size_t column = 0;
        for (size_t g = 0; g < groups.size(); ++g) {
          for (int64_t i = 0; i < groups[g].first; ++i, ++column) {
            const double product = x[column] * scale_of(matrix, row, g) *
                                   (matrix.codes[row][column] - matrix.zeros[row][g]);
            sum += product;
            size += std::abs(product);
          }
        }
        EXPECT_NEAR(y[row], sum, 1e-6 * size) << row;
      }
    }
  }
}

// Of a file that pads rows the model has fewer; values are those of the first.
TEST_F(Packed, LeavesPaddingRowsOut) {
  const Quantised matrix = random_matrix(kMix, PackedScale::squared, PackedZero::middle, true);
  StoredTensor tensor = stored(matrix);
  expect_message(ErrorKind::model, "has shape [5, 328]", [&] { load(tensor, 3); });
  tensor.padding_rows = 31;
  std::vector<float> expected = matrix.values;
  expected.resize(3 * 328);
  EXPECT_TRUE(same_bits(values_of(*load(tensor, 3)), expected));
  expect_message(ErrorKind::model, "has shape [5, 328]", [&] { load(tensor, 6); });
}

// Into another format, as `storage=` has it.
TEST_F(Packed, Converts) {
  const Quantised matrix = random_matrix(kMix, PackedScale::f16, PackedZero::eight_bits, true);
  const StoredTensor tensor = stored(matrix);
  Weight weight(memory_, {"w", kPackedRows, tensor.shape[1]}, find_format("f32"));
  weight.load(*ops_, tensor, staging_);
  EXPECT_TRUE(same_bits(values_of(weight), matrix.values));
}

TEST_F(Packed, TakesNoMoreThanItsCodesScalesAndZeros) {
  const std::vector<int64_t> sizes(32, 128);
  const PackedLayout layout =
      packed_layout(sizes, 4, PackedScale::f16, PackedZero::four_bits, false);
  const int64_t file = 4096 * 4096 / 2 + 4096 * 32 * 2 + 4096 * 32 / 2;
  const int64_t stored_bytes = packed_parts(layout, nullptr, 4096).bytes;
  EXPECT_GE(stored_bytes, file);
  EXPECT_LT(stored_bytes, file + file / 1000);
}

TEST_F(Packed, RefusesScalesThatAreNotFinite) {
  const auto refused = [&](PackedScale type, float scale) {
    Quantised matrix = random_matrix(kEven, type, PackedZero::middle, false);
    matrix.scales[2][1] = scale;
    const StoredTensor tensor = stored(matrix);
    expect_message(ErrorKind::model, "w: a scale of row 2 is", [&] { load(tensor); });
  };
  refused(PackedScale::f16, INFINITY);
  refused(PackedScale::f16, NAN);
  refused(PackedScale::f16, 8190.0f);  // eight of them, the middle, round to an infinite f16
  refused(PackedScale::bf16, NAN);
  refused(PackedScale::bf16, 0x1p109f);
  refused(PackedScale::f32, -INFINITY);
  Quantised matrix = random_matrix(kEven, PackedScale::squared, PackedZero::middle, false);
  matrix.scale_max[1] = to_f16(INFINITY).bits;
  expect_message(ErrorKind::model, "w: a scale of row 0 is", [&] { load(stored(matrix)); });
}

// A scale reaches as far as the codes on either side of the row's own zero.
TEST_F(Packed, ReadsScalesUpToTheirReach) {
  const auto matrix_with = [](int64_t bits, int zero, float scale) {
    const PackedZero kind = bits == 8 ? PackedZero::eight_bits : PackedZero::four_bits;
    Quantised matrix = random_matrix({{64, bits}}, PackedScale::f16, kind, false);
    matrix.zeros[2][0] = static_cast<uint8_t>(zero);
    matrix.scales[2][0] = scale;
    for (uint8_t& code : matrix.codes[2]) code = 0;
    matrix.codes[2][1] = static_cast<uint8_t>((1 << bits) - 1);
    return matrix;
  };
  const struct {
    int64_t bits;
    int zero, reach;
  } kCases[] = {{2, 1, 2},   {2, 2, 2},   {2, 3, 3},   {3, 1, 6},     {3, 4, 4},
                {3, 7, 7},   {3, 8, 8},   {4, 1, 14},  {4, 0, 15},    {4, 8, 8},
                {4, 15, 15}, {8, 1, 254}, {8, 0, 255}, {8, 128, 128}, {8, 255, 255}};
  for (const auto& [bits, zero, reach] : kCases) {
    SCOPED_TRACE(fmt::format("{} bits, zero {}", bits, zero));
    const auto limit = to_f16(kLargestF16 / static_cast<float>(reach));
    // Numbers of f16 on either side of the limit, by a part in 500.
    const float below = in_f16(to_float(limit) * 0.998f), above = in_f16(to_float(limit) * 1.002f);
    const auto weight = load(stored(matrix_with(bits, zero, below)));
    const std::vector<float> values = values_of(*weight);
    EXPECT_EQ(values[128], in_f16(below * static_cast<float>(-zero)));
    EXPECT_EQ(values[129], in_f16(below * static_cast<float>((1 << bits) - 1 - zero)));
    const StoredTensor beyond = stored(matrix_with(bits, zero, above));
    expect_message(ErrorKind::model, "w: a scale of row 2 is", [&] { load(beyond); });
  }
  // Without a stored zero it is the middle.
  Quantised middle = random_matrix(kEven, PackedScale::f16, PackedZero::middle, false);
  middle.scales[2][1] = 8184.0f;
  EXPECT_EQ(values_of(*load(stored(middle))).size(), middle.values.size());
}

TEST_F(Packed, RefusesLayoutsThatCannotBe) {
  const auto refused = [&](int64_t size, int64_t bits, const char* part) {
    expect_message(ErrorKind::model, part, [&] {
      packed_layout({size}, bits, PackedScale::f16, PackedZero::middle, false);
    });
  };
  refused(32, 7, "codes of 7 bits");
  refused(32, 1, "codes of 1 bits");
  refused(0, 4, "a group of 0 columns");
  refused(int64_t{1} << 33, 4, "a group of");
  const Quantised matrix = random_matrix(kEven, PackedScale::f16, PackedZero::middle, false);
  const StoredTensor tensor = stored(matrix);
  expect_message(ErrorKind::model, "in a layout for rows of 192", [&] {
    Weight(memory_, {"w", kPackedRows, 191}, tensor.format);
  });
}

TEST(GroupOrder, KeepsColumnsOfAGroupTogether) {
  const GroupOrder order = order_by_group({1, 0, 1, 2, 0, 2}, 3, "w");
  EXPECT_EQ(order.columns, (std::vector<int32_t>{1, 4, 0, 2, 3, 5}));
  EXPECT_EQ(order.sizes, (std::vector<int64_t>{2, 2, 2}));
  EXPECT_TRUE(order_by_group({0, 0, 1}, 2, "w").columns.empty());
  for (const std::vector<int32_t>& bad : {std::vector<int32_t>{0, 3}, {0, -1}, {0, 0}}) {
    expect_message(ErrorKind::model, "w: group", [&] { order_by_group(bad, 2, "w"); });
  }
}

TEST(BitsAt, CrossWords) {
  // 3 bits each: number 10 lies in bits 30 to 32.
  const uint32_t words[] = {0xC0000000u, 0, 0x00000001u, 0};
  const auto* bytes = reinterpret_cast<const uint8_t*>(words);
  EXPECT_EQ(bits_at(bytes, 2, 10, 3), 7u);
  EXPECT_EQ(bits_at(bytes, 2, 9, 3), 0u);
  EXPECT_EQ(bits_at(bytes, 2, 11, 3), 0u);
}

}  // namespace
}  // namespace jackscrew
