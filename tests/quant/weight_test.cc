#include "quant/weight.h"

#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "tests/quant/decode.h"
#include "tests/support/errors.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

// Bytes so small that no f16 among them is infinite or NaN.
std::vector<uint8_t> some_bytes(int64_t count) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 % 61);
  return bytes;
}

WeightSpec spec_of(int64_t rows, int64_t cols, bool is_vector) {
  return {"the.name", rows, cols, is_vector ? WeightKind::norm : WeightKind::linear};
}

class WeightTest : public ::testing::Test {
 protected:
  StoredTensor stored(const char* format, std::vector<int64_t> shape,
                      const std::vector<uint8_t>& bytes) const {
    return {"stored", unowned(find_format(format)), std::move(shape), bytes, 0};
  }

  // Loads into a fresh weight [rows, cols] of format `to` and gives its values.
  std::vector<float> loaded(const StoredTensor& tensor, int64_t rows, int64_t cols,
                            const char* to) {
    Weight weight(memory_, spec_of(rows, cols, tensor.shape.size() == 1), find_format(to));
    weight.load(*ops_, tensor, staging_);
    EXPECT_EQ(staging_.used(), 0);
    std::vector<float> values(static_cast<size_t>(rows * cols));
    weight.decode(*ops_, 0, rows, Tensor(values.data(), DType::f32, {rows, cols}));
    return values;
  }

  void expect_refused(const StoredTensor& tensor, bool is_vector, const std::string& part) {
    const int64_t rows = is_vector ? 1 : 4;
    Weight weight(memory_, spec_of(rows, 64, is_vector), find_format("f32"));
    expect_message(ErrorKind::model, part, [&] { weight.load(*ops_, tensor, staging_); });
  }

  std::unique_ptr<Ops> ops_ = make_test_ops();
  Memory memory_{"host", make_host_backing(), 0};
  Arena staging_{memory_, Purpose::staging, int64_t{32} << 20};
};

TEST_F(WeightTest, KeepsTheBytesOfItsOwnFormat) {
  for (const Format* format : all_formats()) {
    const std::vector<uint8_t> bytes = some_bytes(format->storage_bytes(3, 512));
    Weight weight(memory_, {"w", 3, 512}, *format);
    weight.load(*ops_, stored(format->name(), {3, 512}, bytes), staging_);
    EXPECT_EQ(std::memcmp(weight.storage().bytes.raw(), bytes.data(), bytes.size()), 0)
        << format->name();
  }
}

TEST_F(WeightTest, ConvertsOnLoad) {
  for (const char* name : {"q8_0", "q4_1", "q4_k", "q6_k", "iq2_s", "nvfp4", "bf16", "f16"}) {
    const Format& format = find_format(name);
    const std::vector<uint8_t> bytes = some_bytes(4 * format.row_bytes(512));
    const auto expected = decode(*ops_, format, storage_of(bytes, 4, 512), 0, 4);
    EXPECT_EQ(loaded(stored(name, {4, 512}, bytes), 4, 512, "f32"), expected) << name;
    std::vector<float> rounded = expected;
    for (float& value : rounded) value = to_float(to_bf16(value));
    EXPECT_EQ(loaded(stored(name, {4, 512}, bytes), 4, 512, "bf16"), rounded) << name;
  }
}

// From any format to any that can be written, as if the numbers had been encoded at once.
TEST_F(WeightTest, ConvertsBetweenFormats) {
  const int64_t cols = 4096;
  const int64_t rows = encode_panel_rows(cols) + 7;
  const std::vector<uint8_t> bytes = some_bytes(rows * cols * 2);
  const auto values = decode(*ops_, find_format("f16"), storage_of(bytes, rows, cols), 0, rows);
  for (const Format* from : all_formats()) {
    if (!from->can_encode() && from != &find_format("q4_k")) continue;
    std::vector<uint8_t> in_file;
    if (from->can_encode()) {
      in_file = encode(*ops_, *from, values, rows);
    } else {
      in_file = some_bytes(from->storage_bytes(rows, cols));
    }
    const auto decoded = decode(*ops_, *from, storage_of(in_file, rows, cols), 0, rows);
    for (const char* to : {"f32", "int8", "nf4_double"}) {
      Weight weight(memory_, {"w", rows, cols}, find_format(to));
      weight.load(*ops_, stored(from->name(), {rows, cols}, in_file), staging_);
      const auto expected = encode(*ops_, weight.format(), decoded, rows);
      EXPECT_EQ(std::memcmp(weight.storage().bytes.raw(), expected.data(), expected.size()), 0)
          << from->name() << " to " << to;
    }
    EXPECT_EQ(staging_.used(), 0);
  }
}

// A format whose parts are tensors of their own in a file.
TEST_F(WeightTest, JoinsPartsAsTheyLie) {
  const Format& format = find_format("nf4_double");
  std::vector<float> values(40 * 70);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 37 % 61) - 30.0f;
  const auto bytes = encode(*ops_, format, values, 40);
  // 1400 bytes of codes, 44 of absmax codes, 1 nested absmax, 1 offset.
  const std::span<const uint8_t> all(bytes);
  StoredTensor tensor{"stored", unowned(find_format("nf4_double")), {40, 70}, all.first(1400)};
  tensor.extra_parts = {all.subspan(1408, 44), all.subspan(1472, 4), all.subspan(1536, 4)};
  ASSERT_EQ(bytes.size(), 1540u);
  const auto expected = decode(*ops_, format, storage_of(bytes, 40, 70), 0, 40);
  EXPECT_EQ(loaded(tensor, 40, 70, "nf4_double"), expected);
  EXPECT_EQ(loaded(tensor, 40, 70, "f32"), expected);
  std::vector<float> original(40 * 70);
  Weight weight(memory_, {"w", 40, 70}, find_format("int8"));
  weight.read_original(*ops_, tensor, Tensor(original.data(), DType::f32, {40, 70}), staging_);
  EXPECT_EQ(original, expected);
  tensor.extra_parts.pop_back();
  EXPECT_THROW(weight.load(*ops_, tensor, staging_), Error);
}

TEST_F(WeightTest, ConvertsInPanels) {
  const int64_t cols = 32768;
  const int64_t rows = 2 * encode_panel_rows(cols) + 3;
  const std::vector<uint8_t> bytes = some_bytes(rows * cols * 2);
  const auto expected = decode(*ops_, find_format("f16"), storage_of(bytes, rows, cols), 0, rows);
  EXPECT_EQ(loaded(stored("f16", {rows, cols}, bytes), rows, cols, "f32"), expected);
}

// A master begins with the file's numbers, not with what the weight's storage left of them.
TEST_F(WeightTest, ReadsTheOriginal) {
  const std::vector<uint8_t> bytes = some_bytes(4 * find_format("q8_0").row_bytes(512));
  const StoredTensor tensor = stored("q8_0", {4, 512}, bytes);
  Weight weight(memory_, {"w", 4, 512}, find_format("bf16"));
  weight.load(*ops_, tensor, staging_);
  std::vector<float> original(4 * 512);
  weight.read_original(*ops_, tensor, Tensor(original.data(), DType::f32, {4, 512}), staging_);
  EXPECT_EQ(original, decode(*ops_, find_format("q8_0"), storage_of(bytes, 4, 512), 0, 4));
  EXPECT_NE(original, loaded(tensor, 4, 512, "bf16"));
  EXPECT_EQ(staging_.used(), 0);
}

TEST_F(WeightTest, LoadsVectorsAsOneRow) {
  const std::vector<uint8_t> bytes = some_bytes(64 * 4);
  const auto values = loaded(stored("f32", {64}, bytes), 1, 64, "f32");
  EXPECT_EQ(std::memcmp(values.data(), bytes.data(), bytes.size()), 0);
}

// GGUF keeps the first and the second half of a head's rows alternating:
// row 2 j + s of a head in the file is row s * head_dim / 2 + j of the model.
TEST_F(WeightTest, PutsInterleavedRowsInOrder) {
  constexpr int64_t kHeads = 3;
  constexpr int64_t kHeadDim = 8;
  constexpr int64_t kRows = kHeads * kHeadDim;
  const Format& format = find_format("q8_0");
  const int64_t row_bytes = format.row_bytes(32);
  std::vector<uint8_t> in_order = some_bytes(kRows * row_bytes);
  std::vector<uint8_t> in_file(in_order.size());
  StoredTensor tensor = stored("q8_0", {kRows, 32}, in_file);
  tensor.interleaved_heads = kHeads;
  for (int64_t head = 0; head < kHeads; ++head) {
    for (int64_t s = 0; s < 2; ++s) {
      for (int64_t j = 0; j < kHeadDim / 2; ++j) {
        const int64_t model_row = head * kHeadDim + s * kHeadDim / 2 + j;
        const int64_t file_row = head * kHeadDim + 2 * j + s;
        EXPECT_EQ(tensor.interleaved_row(model_row), file_row);
        EXPECT_EQ(logical_row(file_row, kHeads, kRows), model_row);
        std::memcpy(in_file.data() + file_row * row_bytes, in_order.data() + model_row * row_bytes,
                    static_cast<size_t>(row_bytes));
      }
    }
  }
  Weight weight(memory_, {"w", kRows, 32}, format);
  weight.load(*ops_, tensor, staging_);
  EXPECT_EQ(std::memcmp(weight.storage().bytes.raw(), in_order.data(), in_order.size()), 0);
  EXPECT_EQ(loaded(tensor, kRows, 32, "f32"),
            decode(*ops_, format, storage_of(in_order, kRows, 32), 0, kRows));
}

TEST_F(WeightTest, RefusesWhatDoesNotFit) {
  const std::vector<uint8_t> bytes = some_bytes(4 * 64 * 4);
  expect_refused(stored("f32", {64, 4}, bytes), false, "the.name");
  expect_refused(stored("f32", {256}, bytes), false, "the.name");
  expect_refused(stored("f32", {4, 64, 1}, bytes), false, "the.name");
  expect_refused(stored("f32", {1, 64}, bytes), true, "the.name");
  expect_refused(stored("f32", {4, 64}, some_bytes(4 * 64 * 4 - 1)), false, "1023 bytes");
  expect_refused(stored("q8_0", {4, 64}, bytes), false, "the.name");
  expect_refused(stored("q4_k", {4, 64}, bytes), false, "64");  // blocks of 256
}

TEST_F(WeightTest, NamesWhatItsFormatCannotHold) {
  for (const auto& [format, cols] : {std::pair{"int4_hadamard", 33}, {"q4_k", 96}}) {
    expect_message(ErrorKind::model, "the.name: ", [&, name = format, width = cols] {
      Weight(memory_, spec_of(2, width, false), find_format(name));
    });
  }
}

TEST_F(WeightTest, RefusesToConvertToBlocks) {
  const std::vector<uint8_t> bytes = some_bytes(4 * 64 * 4);
  Weight weight(memory_, {"w", 4, 64}, find_format("q8_0"));
  EXPECT_THROW(weight.load(*ops_, stored("f32", {4, 64}, bytes), staging_), Error);
}

TEST_F(WeightTest, PublishesAndGathers) {
  std::vector<float> master = {1.0f, 2.0f, 3.0f, -4.0f, 5.5f, 1.00390625f};
  for (const char* name : {"f32", "bf16"}) {
    Weight weight(memory_, {"w", 3, 2}, find_format(name));
    weight.publish(*ops_, Tensor(master.data(), DType::f32, {3, 2}), {}, staging_);
    std::vector<int32_t> indices = {2, 0};
    std::vector<float> rows(4);
    weight.gather(*ops_, Tensor(indices.data(), DType::i32, {2}),
                  Tensor(rows.data(), DType::f32, {2, 2}));
    const bool exact = weight.format().row_bytes(1) == 4;
    EXPECT_EQ(rows, (std::vector<float>{5.5f, exact ? 1.00390625f : 1.0f, 1.0f, 2.0f}));
    EXPECT_EQ(weight.as_f32().empty(), !exact);
  }
}

TEST(PanelRows, OfEncodingEndWithGroups) {
  for (int64_t cols = 1; cols < int64_t{1} << 16; cols = cols * 2 + 1 + cols % 3) {
    const int64_t rows = encode_panel_rows(cols);
    EXPECT_EQ(rows * cols % 256, 0) << cols;
    EXPECT_TRUE(rows <= 256 || rows * cols * 4 <= int64_t{4} << 20) << cols;
  }
  EXPECT_EQ(encode_panel_rows(2048), 512);
  EXPECT_EQ(encode_panel_rows(1024), 1024);
  EXPECT_EQ(encode_panel_rows(28672), 36);
}

TEST(PanelRows, AreBoundedWhateverTheWidth) {
  for (int64_t cols = 1; cols < int64_t{1} << 22; cols = cols * 3 + 1) {
    for (const int64_t element : {2, 4}) {
      const int64_t rows = panel_rows(cols, element);
      EXPECT_EQ(rows % 32, 0);
      EXPECT_GE(rows, 32);
      EXPECT_TRUE(rows == 32 || rows * cols * element <= int64_t{4} << 20) << cols;
    }
  }
  EXPECT_EQ(panel_rows(2048, 4), 512);
  EXPECT_EQ(panel_rows(2048, 2), 1024);
}

}  // namespace
}  // namespace jackscrew
