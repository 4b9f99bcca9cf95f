// EXL3 against a plain loop over its description (exl3.h), number by number.
#include "quant/exl3.h"

#include <cmath>
#include <random>

#include "tests/quant/decode.h"
#include "tests/support/errors.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

float f16_at(uint32_t bits) {
  return to_float(f16{static_cast<uint16_t>(bits)});
}

float number_of(Exl3Codebook codebook, uint32_t state) {
  if (codebook == Exl3Codebook::mul1) {
    const uint32_t x = state * 0x83DCD12Du;
    const uint32_t sum = (x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24);
    const double exact =
        (1024.0 + sum) * static_cast<double>(f16_at(0x1EEE)) + static_cast<double>(f16_at(0xC931));
    return to_float(to_f16(static_cast<float>(exact)));
  }
  uint32_t x = codebook == Exl3Codebook::mcg ? state * 0xCBAC1FEDu : state * 89226354u + 64248484u;
  x = (x & 0x8FFF8FFFu) ^ 0x3B603B60u;
  return to_float(to_f16(f16_at(x & 0xFFFF) + f16_at(x >> 16)));
}

// A matrix of arbitrary bits, and its values in double precision.
struct Trellis {
  Exl3Layout layout;
  std::vector<uint8_t> bytes;
  std::vector<double> values;  // [rows, cols]
  FormatPointer format;
};

void transform(double* values, size_t stride) {
  for (size_t step = 1; step < 128; step *= 2) {
    for (size_t i = 0; i < 128; ++i) {
      if ((i & step) != 0) continue;
      const double low = values[i * stride];
      const double high = values[(i + step) * stride];
      values[i * stride] = low + high;
      values[(i + step) * stride] = low - high;
    }
  }
}

Trellis random_trellis(const Exl3Layout& layout) {
  Trellis out{layout, {}, {}, make_exl3_format(layout)};
  std::mt19937 random(static_cast<uint32_t>(layout.bits));
  out.bytes.resize(static_cast<size_t>(out.format->storage_bytes(layout.rows, layout.cols)));
  for (uint8_t& byte : out.bytes) byte = static_cast<uint8_t>(random());
  const auto rows = static_cast<size_t>(layout.rows);
  const auto cols = static_cast<size_t>(layout.cols);
  const auto bits = static_cast<size_t>(layout.bits);
  const size_t input_at = rows * cols / 8 * bits;  // a multiple of 64
  const size_t output_at = (input_at + 2 * cols + 63) / 64 * 64;
  std::vector<float> input, output;
  const auto scale = [&](size_t at) {
    const f16 value = to_f16(std::ldexp(static_cast<float>(random() % 2048) - 1023.5f, -10));
    std::memcpy(out.bytes.data() + at, &value, sizeof value);
    return to_float(value);
  };
  for (size_t i = 0; i < cols; ++i) input.push_back(scale(input_at + 2 * i));
  for (size_t i = 0; i < rows; ++i) output.push_back(scale(output_at + 2 * i));
  out.values.resize(rows * cols);
  for (size_t tile = 0; tile < rows * cols / 256; ++tile) {
    const uint8_t* ring = out.bytes.data() + tile * 32 * bits;
    const auto bit = [&](size_t at) {
      uint32_t word;
      std::memcpy(&word, ring + at % (256 * bits) / 32 * 4, sizeof word);
      return word >> (31 - at % 32) & 1;
    };
    for (size_t thread = 0; thread < 32; ++thread) {
      for (size_t i = 0; i < 8; ++i) {
        uint32_t state = 0;
        for (size_t b = 0; b < 16; ++b) {
          state = state << 1 | bit((thread * 8 + i + 1) * bits + 256 * bits - 16 + b);
        }
        const size_t col = tile / (rows / 16) * 16 + thread % 4 * 2 + i % 2 + (i / 2 % 2) * 8;
        const size_t row = tile % (rows / 16) * 16 + thread / 4 + i / 4 * 8;
        out.values[row * cols + col] = static_cast<double>(number_of(layout.codebook, state));
      }
    }
  }
  for (size_t row = 0; row < rows; ++row) {
    for (size_t col = 0; col < cols; col += 128) transform(&out.values[row * cols + col], 1);
  }
  for (size_t col = 0; col < cols; ++col) {
    for (size_t row = 0; row < rows; row += 128) transform(&out.values[row * cols + col], cols);
  }
  for (size_t i = 0; i < rows * cols; ++i) {
    out.values[i] *=
        static_cast<double>(input[i % cols]) * static_cast<double>(output[i / cols]) / 128;
  }
  return out;
}

class Exl3 : public ::testing::TestWithParam<std::tuple<int, Exl3Codebook>> {
 protected:
  Trellis trellis_ = random_trellis({256, 384, std::get<0>(GetParam()), std::get<1>(GetParam())});
  std::unique_ptr<Ops> ops_ = make_test_ops();
  Storage storage() const { return storage_of(trellis_.bytes, 256, 384); }
};

TEST_P(Exl3, DecodesRangesListsAndBf16) {
  const auto all = decode(*ops_, *trellis_.format, storage(), 0, 256);
  double largest = 0.0;
  for (const double value : trellis_.values) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(all[i]), trellis_.values[i], 1e-6 * largest) << i;
  }
  const auto part = decode(*ops_, *trellis_.format, storage(), 53, 203);
  EXPECT_TRUE(same_bits(part, {all.begin() + 53 * 384, all.begin() + 203 * 384}));
  const auto narrow = decode<bf16>(*ops_, *trellis_.format, storage(), 125, 131);
  for (size_t i = 0; i < narrow.size(); ++i) {
    ASSERT_EQ(narrow[i].bits, to_bf16(all[125 * 384 + i]).bits) << i;
  }
  std::vector<int32_t> rows = {200, 7, 200, 255};
  std::vector<float> picked(4 * 400);
  trellis_.format->gather(*ops_, storage(), Tensor(rows.data(), DType::i32, {4}),
                          Tensor(picked.data(), DType::f32, {4, 400}).columns(8, 392));
  for (size_t i = 0; i < 4; ++i) {
    const auto from = all.begin() + rows[i] * 384;
    EXPECT_TRUE(std::equal(from, from + 384, picked.begin() + static_cast<ptrdiff_t>(i * 400 + 8)));
  }
}

TEST_P(Exl3, MultipliesOneToken) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(384);
  for (float& value : x) value = normal(random);
  std::vector<float> y(250, 2.0f);  // of a model whose last rows are padding
  Memory memory("host", make_host_backing(), 0);
  Arena scratch(memory, Purpose::workspace, int64_t{1} << 20);
  const Storage part = storage_of(trellis_.bytes, 250, 384);
  for (const Accumulate accumulate : {Accumulate::yes, Accumulate::no}) {
    trellis_.format->multiply(*ops_, part, Tensor(x.data(), DType::f32, {1, 384}),
                              Tensor(y.data(), DType::f32, {1, 250}), accumulate, scratch);
    for (size_t row = 0; row < y.size(); ++row) {
      double sum = accumulate == Accumulate::yes ? 2.0 : 0.0;
      double size = 2.0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double product = static_cast<double>(x[i]) * trellis_.values[row * 384 + i];
        sum += product;
        size += std::abs(product);
      }
      ASSERT_NEAR(static_cast<double>(y[row]), sum, 1e-6 * size) << row;
    }
  }
}

std::string exl3_name(const ::testing::TestParamInfo<std::tuple<int, Exl3Codebook>>& test) {
  constexpr const char* kNames[] = {"plain", "mcg", "mul1"};
  return fmt::format("{}_{}", std::get<0>(test.param),
                     kNames[static_cast<size_t>(std::get<1>(test.param))]);
}
INSTANTIATE_TEST_SUITE_P(Layouts, Exl3,
                         ::testing::Combine(::testing::Range(1, 9),
                                            ::testing::Values(Exl3Codebook::plain,
                                                              Exl3Codebook::mcg,
                                                              Exl3Codebook::mul1)),
                         exl3_name);

// Numbers of states, as published for the format.
TEST(Exl3Numbers, AreThoseOfTheReference) {
  const uint32_t states[] = {0, 1, 2, 0x1234, 0xFFFF};
  const float expected[][3] = {{0.76806640625f, 1.84375f, -3.453125f},
                               {-0.91943359375f, 0.134521484375f, 0.64111328125f},
                               {0.931640625f, -0.75927734375f, -0.448486328125f},
                               {-2.19921875f, 1.5146484375f, -0.5771484375f},
                               {-0.158203125f, 0.85009765625f, -0.6513671875f}};
  for (size_t i = 0; i < 5; ++i) {
    for (const auto codebook : {Exl3Codebook::plain, Exl3Codebook::mcg, Exl3Codebook::mul1}) {
      EXPECT_EQ(number_of(codebook, states[i]), expected[i][static_cast<size_t>(codebook)]);
    }
  }
}

TEST(Exl3Numbers, NeedWholeBlocks) {
  const auto refused = [](const Exl3Layout& layout) {
    return error_of(ErrorKind::model, [&] { make_exl3_format(layout); });
  };
  EXPECT_NE(refused({128, 192, 4}).find("none of EXL3"), std::string::npos);
  EXPECT_NE(refused({0, 128, 4}).find("none of EXL3"), std::string::npos);
  EXPECT_NE(refused({128, 128, 9}).find("in 9 bits"), std::string::npos);
  const FormatPointer format = make_exl3_format({256, 128, 4});
  EXPECT_EQ(format->storage_bytes(129, 128), 256 * 128 / 2 + 256 + 512);
  EXPECT_THROW(format->storage_bytes(128, 128), Error);
  EXPECT_THROW(format->storage_bytes(257, 128), Error);
  EXPECT_THROW(format->storage_bytes(256, 256), Error);
}

}  // namespace
}  // namespace jackscrew
