// Every block format against what the gguf package decodes (tools/golden_quant.py), to the bit.
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "kernels/plan/plan_ops.h"
#include "quant/weight.h"
#include "tests/quant/decode.h"
#include "tests/support/errors.h"
#include "tests/support/guarded_bytes.h"
#include "tests/support/paths.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

class BlockFormatTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string path = std::string(kTestData) + "/quant/data/" + GetParam() + ".bin";
    const MappedFile file{path};
    const uint8_t* from = file.bytes().data();
    int32_t shape[2];
    ASSERT_GT(file.bytes().size(), sizeof shape);
    std::memcpy(shape, from, sizeof shape);
    rows_ = shape[0];
    cols_ = shape[1];
    storage_.resize(static_cast<size_t>(rows_ * format_.row_bytes(cols_)));
    values_.resize(static_cast<size_t>(rows_ * cols_));
    const size_t value_bytes = values_.size() * sizeof(float);
    ASSERT_EQ(file.bytes().size(), sizeof shape + storage_.size() + value_bytes);
    std::memcpy(storage_.data(), from + sizeof shape, storage_.size());
    std::memcpy(values_.data(), from + sizeof shape + storage_.size(), value_bytes);
  }

  Storage storage() const { return storage_of(storage_, rows_, cols_); }
  int64_t block() const { return block_elements(format_); }
  TokenRounding token_rounding() const {
    const std::set<std::string> in_integers = {"q8_0",   "q4_0",   "q4_1", "q5_0", "q5_1",
                                               "q2_k",   "q3_k",   "q4_k", "q5_k", "q6_k",
                                               "iq4_nl", "iq4_xs", "mxfp4"};
    return {in_integers.contains(GetParam()) ? 32767 : 0};
  }
  float value(int64_t row, int64_t col) const {
    return values_[static_cast<size_t>(row * cols_ + col)];
  }

  const Format& format_ = find_format(GetParam());
  std::unique_ptr<Ops> ops_ = make_test_ops();
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  std::vector<uint8_t> storage_;
  std::vector<float> values_;
};

TEST_P(BlockFormatTest, DecodesToTheGoldenBits) {
  EXPECT_EQ(bits_of(decode(*ops_, format_, storage(), 0, rows_)), bits_of(values_));
}

// Half a million elements: every index of a grid is among them, many times.
TEST_P(BlockFormatTest, ManyBlocksHaveTheGoldenSum) {
  // tools/golden_quant.py describes both the file and the blocks.
  std::istringstream lines(read_text(std::string(kTestData) + "/quant/data/sums.txt"));
  std::string line;
  while (std::getline(lines, line) && !line.starts_with(std::string(GetParam()) + " ")) {
  }
  std::istringstream words(line);
  std::string name;
  uint64_t golden = 0;
  ASSERT_TRUE(words >> name >> golden);
  constexpr int64_t kRows = 16;
  const int64_t cols = 128 * block();
  const int64_t block_bytes = format_.row_bytes(block());
  std::vector<uint8_t> bytes(static_cast<size_t>(kRows * 128 * block_bytes));
  for (size_t i = 0; i < bytes.size(); ++i) {
    const uint32_t counter = static_cast<uint32_t>(i) * 0x9E3779B1u;
    bytes[i] = static_cast<uint8_t>((counter ^ counter >> 15) * 0x85EBCA77u >> 24);
  }
  for (int64_t cleared = 0; words >> cleared;) {
    for (auto at = static_cast<size_t>(cleared); at < bytes.size();
         at += static_cast<size_t>(block_bytes)) {
      bytes[at] &= 0xBF;
    }
  }
  const auto bits = bits_of(decode(*ops_, format_, storage_of(bytes, kRows, cols), 0, kRows));
  uint64_t sum = 0;
  for (size_t i = 0; i < bits.size(); ++i) sum += bits[i] * (2 * uint64_t{i} + 1);
  EXPECT_EQ(sum, golden);
}

TEST_P(BlockFormatTest, LevelsAndThreadsAgree) {
  for (const IsaLevel level : {IsaLevel::v3, IsaLevel::v4}) {
    if (level > test_isa()) continue;
    for (const int threads : {1, 3}) {
      const auto ops = make_cpu_ops(threads, level);
      EXPECT_EQ(bits_of(decode(*ops, format_, storage(), 0, rows_)), bits_of(values_))
          << isa_name(level) << ", threads " << threads;
      const auto as_bf16 = decode<bf16>(*ops, format_, storage(), 0, rows_);
      EXPECT_EQ(bits_of(as_bf16), bits_of(decode<bf16>(*ops_, format_, storage(), 0, rows_)));
    }
  }
}

TEST_P(BlockFormatTest, RowsAreCutOutOfTheWhole) {
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{1, rows_}, {0, 1}, {1, 2}}) {
    // Into the middle of a wider matrix, whose other elements stay as they are.
    constexpr float kUntouched = -12345.0f;
    const int64_t rows = end - begin;
    const int64_t stride = cols_ + 7;
    std::vector<float> wide(static_cast<size_t>(rows * stride), kUntouched);
    const Tensor out = Tensor(wide.data(), DType::f32, {rows, stride}).columns(3, 3 + cols_);
    format_.decode(*ops_, storage(), begin, end, out);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < stride; ++c) {
        const bool inside = c >= 3 && c < 3 + cols_;
        const float expected = inside ? value(begin + r, c - 3) : kUntouched;
        ASSERT_EQ(wide[static_cast<size_t>(r * stride + c)], expected) << r << ", " << c;
      }
    }
  }
}

TEST_P(BlockFormatTest, RowListsPickRows) {
  std::vector<int32_t> indices = {static_cast<int32_t>(rows_ - 1), 0, 2, 2};
  std::vector<float> picked(indices.size() * static_cast<size_t>(cols_));
  format_.gather(*ops_, storage(), Tensor(indices.data(), DType::i32, {4}),
                 Tensor(picked.data(), DType::f32, {4, cols_}));
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t c = 0; c < cols_; ++c) {
      ASSERT_EQ(picked[static_cast<size_t>(i * cols_ + c)],
                value(indices[static_cast<size_t>(i)], c));
    }
  }
}

TEST_P(BlockFormatTest, Bf16IsTheRoundedF32) {
  const auto as_bf16 = decode<bf16>(*ops_, format_, storage(), 0, rows_);
  for (size_t i = 0; i < values_.size(); ++i) {
    ASSERT_EQ(as_bf16[i].bits, to_bf16(values_[i]).bits) << i;
  }
}

// Rows of a few blocks and of very many, in bytes of any alignment behind which is nothing: as a
// tensor may lie in the map of its file.
TEST_P(BlockFormatTest, MultipliesASingleToken) {
  constexpr int64_t kRows = 3;
  for (const int64_t blocks : {1, 2, 5, 8, 9216 / 32 + 3}) {
    const int64_t cols = blocks * block();
    std::vector<uint8_t> bytes(static_cast<size_t>(kRows * format_.row_bytes(cols)));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = storage_[i % storage_.size()];
    const GuardedBytes guarded(bytes);
    const Storage storage{Tensor(guarded.data(), DType::u8, {static_cast<int64_t>(bytes.size())}),
                          kRows, cols};
    const auto matrix = decode(*ops_, format_, storage, 0, kRows);
    std::vector<float> x(static_cast<size_t>(cols));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7 % 19) / 8.0f - 1.0f;
    expect_product_of_a_token(*ops_, format_, storage, matrix, x, token_rounding(),
                              fmt::format("{} blocks", blocks));
  }
}

TEST_P(BlockFormatTest, APlaceThatIsNotFiniteIsNotLost) {
  if (token_rounding().largest_x == 0) GTEST_SKIP() << GetParam() << " multiplies in f32";
  expect_product_keeps_what_is_not_finite(*ops_, format_, storage());
}

TEST_P(BlockFormatTest, RefusesRaggedRows) {
  Memory memory("host", make_host_backing(), 0);
  const int64_t block = this->block();
  for (const int64_t cols : {block + 1, block / 2, int64_t{0}}) {
    expect_message(ErrorKind::model, GetParam(), [&] {
      const Weight weight(memory, {"w", 1, cols}, format_);
    });
  }
}

TEST_P(BlockFormatTest, RefusesOtherOutputsAndWriting) {
  EXPECT_THROW(decode<f16>(*ops_, format_, storage(), 0, rows_), Error);
  EXPECT_FALSE(format_.can_encode());
  error_of(ErrorKind::usage, [&] { encode(*ops_, format_, values_, rows_); });
}

TEST_P(BlockFormatTest, PlansWithoutBytes) {
  const auto plan = make_plan_ops(2, test_isa());
  const Tensor nothing(nullptr, DType::u8, {format_.storage_bytes(rows_, cols_)});
  format_.decode(*plan, {nothing, rows_, cols_}, 0, rows_,
                 Tensor(nullptr, DType::f32, {rows_, cols_}));
}

INSTANTIATE_TEST_SUITE_P(Formats, BlockFormatTest,
                         ::testing::Values("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k",
                                           "q4_k", "q5_k", "q6_k", "iq1_s", "iq1_m", "iq2_xxs",
                                           "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl",
                                           "iq4_xs", "tq1_0", "tq2_0", "mxfp4", "nvfp4"),
                         [](const auto& param_info) { return std::string(param_info.param); });

TEST(Formats, AreFoundByName) {
  for (const Format* format : all_formats()) EXPECT_EQ(&find_format(format->name()), format);
  const std::string refusal = error_of(ErrorKind::model, [] { find_format("q9_9"); });
  EXPECT_NE(hint_of(refusal).find("q4_k"), std::string::npos) << refusal;
}

}  // namespace
}  // namespace jackscrew
