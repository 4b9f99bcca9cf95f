#include "formats/quantised_layout.h"

#include <cstring>

#include "quant/weight.h"
#include "tests/formats/support.h"
#include "tests/quant/decode.h"
#include "tests/support/paths.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

constexpr int64_t kGoldenRows = 32;
constexpr int64_t kGoldenCols = 96;

std::vector<float> values_of(const StoredTensor& tensor, Ops& ops) {
  Memory memory("host", make_host_backing(), 0);
  Arena staging(memory, Purpose::staging, 1 << 20);
  Weight weight(memory, {"a.weight", kGoldenRows, kGoldenCols}, tensor.format);
  weight.load(ops, tensor, staging);
  std::vector<float> out(kGoldenRows * kGoldenCols);
  weight.decode(ops, 0, kGoldenRows, Tensor(out.data(), DType::f32, {kGoldenRows, kGoldenCols}));
  return out;
}

// Files of tools/golden_quantised.py: one layer in each layout, and what it stands for.
class QuantisedLayoutGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(QuantisedLayoutGolden, DecodesToTheBitsOfItsProgram) {
  const fs::path directory = fs::path(kTestData) / "golden/quantised" / GetParam();
  const SafetensorsSource source(directory);
  EXPECT_EQ(source.names(), std::vector<std::string>{"a.weight"});
  const StoredTensor* tensor = source.find("a.weight");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->shape, (std::vector<int64_t>{kGoldenRows, kGoldenCols}));
  const SafetensorsFile golden(directory / "golden.safetensors");
  const auto bytes = golden.find("values")->bytes;
  std::vector<float> expected(kGoldenRows * kGoldenCols);
  ASSERT_EQ(bytes.size(), expected.size() * sizeof(float));
  std::memcpy(expected.data(), bytes.data(), bytes.size());
  EXPECT_TRUE(same_bits(values_of(*tensor, *make_test_ops()), expected));
  source.release(*tensor);
}

INSTANTIATE_TEST_SUITE_P(Layouts, QuantisedLayoutGolden,
                         ::testing::Values("gptq_4", "gptq_4_order", "gptq_3", "gptq_2_v2",
                                           "gptq_8", "awq", "exl2", "exl2_low", "packed_4",
                                           "packed_4_order", "packed_8", "int", "int_shared"),
                         [](const auto& param_info) { return std::string(param_info.param); });

}  // namespace
}  // namespace jackscrew
