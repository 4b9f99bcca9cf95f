#include "formats/bitsandbytes.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "quant/dynamic_map.h"
#include "quant/nf4.h"
#include "quant/weight.h"
#include "tests/formats/support.h"
#include "tests/quant/decode.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

using nlohmann::json;

constexpr int64_t kRows = 37;
constexpr int64_t kCols = 501;  // an odd number of elements in 290 blocks

class Bitsandbytes : public FormatsTest {
 protected:
  std::vector<uint8_t> storage(const Format& format) {
    std::mt19937 random(4);
    std::normal_distribution<float> normal;
    std::vector<float> values(kRows * kCols);
    for (float& value : values) value = normal(random);
    return encode(*ops_, format, values, kRows);
  }

  std::vector<TensorBytes> tensors(const Format& format, const std::string& name = "a.weight") {
    const auto bytes = storage(format);
    return nf4_tensors(name, format, storage_of(bytes, kRows, kCols), "bfloat16");
  }

  // A model directory of one file.
  void write(const std::vector<TensorBytes>& tensors, const std::string& file = "model") {
    std::vector<SafetensorsSpec> specs;
    for (const TensorBytes& tensor : tensors) specs.push_back(tensor.spec);
    SafetensorsWriter writer(directory_ / (file + ".safetensors"), specs);
    for (const TensorBytes& tensor : tensors) writer.write(tensor.spec.name, tensor.bytes);
    writer.close();
  }

  std::vector<float> values_of(const StoredTensor& tensor) {
    Memory memory("host", make_host_backing(), 0);
    Arena staging(memory, Purpose::staging, 1 << 20);
    Weight weight(memory, {"w", kRows, kCols}, f32_);
    weight.load(*ops_, tensor, staging);
    std::vector<float> out(kRows * kCols);
    weight.decode(*ops_, 0, kRows, Tensor(out.data(), DType::f32, {kRows, kCols}));
    return out;
  }

  // Why a model of these tensors cannot give its weight.
  std::string refused(const std::vector<TensorBytes>& bad) {
    write(bad);
    const SafetensorsSource source(directory_);
    return model_error([&] { source.find("a.weight"); });
  }

  std::unique_ptr<Ops> ops_ = make_test_ops();
  const Format& f32_ = find_format("f32");
};

TensorBytes& part(std::vector<TensorBytes>& tensors, const std::string& suffix) {
  for (TensorBytes& tensor : tensors) {
    if (tensor.spec.name == "a.weight" + suffix) return tensor;
  }
  ADD_FAILURE() << suffix;
  return tensors[0];
}

void change_state(std::vector<TensorBytes>& tensors, const char* key, const json& value) {
  TensorBytes& state = part(tensors, ".quant_state.bitsandbytes__nf4");
  json root = json::parse(state.bytes);
  root[key] = value;
  const std::string text = root.dump();
  state.bytes.assign(text.begin(), text.end());
  state.spec.shape = {static_cast<int64_t>(text.size())};
}

TEST_F(Bitsandbytes, RoundTrips) {
  for (const Format* format : {&nf4_format(), &nf4_double_format()}) {
    auto all = tensors(*format);
    all.push_back({{"b.weight", "F32", {1}}, {0, 0, 128, 63}});
    write(all);
    const SafetensorsSource source(directory_);
    EXPECT_EQ(source.names(), (std::vector<std::string>{"a.weight", "b.weight"}));
    const StoredTensor* tensor = source.find("a.weight");
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->format.get(), format);
    EXPECT_EQ(tensor->shape, (std::vector<int64_t>{kRows, kCols}));
    EXPECT_EQ(tensor->size_bytes(), 9269 + (format == &nf4_format() ? 290 * 4 : 290 + 2 * 4 + 4));
    const auto bytes = storage(*format);
    EXPECT_EQ(values_of(*tensor),
              decode(*ops_, *format, storage_of(bytes, kRows, kCols), 0, kRows));
    source.release(*tensor);
    EXPECT_STREQ(source.find("b.weight")->format->name(), "f32");
  }
}

TEST_F(Bitsandbytes, HasTheLayoutOfItsFiles) {
  auto all = tensors(nf4_double_format());
  EXPECT_EQ(all[0].spec.name, "a.weight");
  EXPECT_EQ(all[0].spec.shape, (std::vector<int64_t>{9269, 1}));
  EXPECT_EQ(part(all, ".absmax").spec.dtype, "U8");
  EXPECT_EQ(part(all, ".absmax").spec.shape, std::vector<int64_t>{290});
  EXPECT_EQ(part(all, ".quant_map").bytes.size(), 64u);
  EXPECT_EQ(part(all, ".nested_absmax").spec.shape, std::vector<int64_t>{2});
  EXPECT_EQ(part(all, ".nested_quant_map").bytes.size(), 1024u);
  const json state = json::parse(part(all, ".quant_state.bitsandbytes__nf4").bytes);
  EXPECT_EQ(state["quant_type"], "nf4");
  EXPECT_EQ(state["blocksize"], 64);
  EXPECT_EQ(state["dtype"], "bfloat16");
  EXPECT_EQ(state["shape"], json({kRows, kCols}));
  EXPECT_EQ(state["nested_blocksize"], 256);
  EXPECT_EQ(state["nested_dtype"], "float32");
  EXPECT_NEAR(state["nested_offset"].get<double>(), 2.4, 0.2);  // of 64 normal numbers
  auto single = tensors(nf4_format());
  EXPECT_EQ(single.size(), 4u);
  EXPECT_EQ(part(single, ".absmax").spec.dtype, "F32");
  EXPECT_EQ(json::parse(part(single, ".quant_state.bitsandbytes__nf4").bytes).size(), 4u);
}

// The tensors of a weight may lie in different shards.
TEST_F(Bitsandbytes, ReadsShards) {
  const auto all = tensors(nf4_double_format());
  write({all.begin(), all.begin() + 2}, "one");
  write({all.begin() + 2, all.end()}, "two");
  json index;
  for (size_t i = 0; i < all.size(); ++i) {
    index["weight_map"][all[i].spec.name] = i < 2 ? "one.safetensors" : "two.safetensors";
  }
  put("model.safetensors.index.json", index.dump());
  const SafetensorsSource source(directory_);
  const StoredTensor* tensor = source.find("a.weight");
  const auto bytes = storage(nf4_double_format());
  EXPECT_EQ(values_of(*tensor),
            decode(*ops_, nf4_double_format(), storage_of(bytes, kRows, kCols), 0, kRows));
  source.release(*tensor);
}

TEST_F(Bitsandbytes, NamesWhatItCannotRead) {
  const auto with_state = [&](const char* key, const json& value) {
    auto bad = tensors(nf4_double_format());
    change_state(bad, key, value);
    return refused(bad);
  };
  EXPECT_TRUE(mentions(with_state("blocksize", 128), "blocksize is 128, only 64 is supported"));
  EXPECT_TRUE(mentions(with_state("quant_type", "fp4"), "quant_type is fp4, only nf4"));
  EXPECT_TRUE(mentions(with_state("nested_blocksize", 512), "nested_blocksize is 512, only 256"));
  EXPECT_TRUE(mentions(with_state("nested_dtype", "float16"), "nested_dtype is float16"));
  EXPECT_TRUE(mentions(with_state("nested_offset", nullptr), "\"nested_offset\" is missing"));
  EXPECT_TRUE(mentions(with_state("shape", {18537}), "shape [18537] is not that of a matrix"));
  EXPECT_TRUE(mentions(with_state("shape", {kCols, kRows + 2}), "a.weight has 9269 bytes"));
  EXPECT_TRUE(mentions(with_state("shape", {int64_t{1} << 40, int64_t{1} << 40}), "shape"));
  const auto with_part = [&](const char* suffix, auto&& change) {
    auto bad = tensors(nf4_double_format());
    change(part(bad, suffix));
    return refused(bad);
  };
  EXPECT_TRUE(mentions(with_state("nested_offset", 1e39), "nested_offset is 1e+39 beside scales"));
  auto large = tensors(nf4_double_format());
  change_state(large, "nested_offset", -2e38);
  constexpr float kLargeScale = 2e38f;
  std::memcpy(part(large, ".nested_absmax").bytes.data(), &kLargeScale, sizeof kLargeScale);
  EXPECT_TRUE(mentions(refused(large), "nested_offset is -2e+38 beside scales of up to 2e+38"));
  const auto nudge = [](TensorBytes& tensor) { tensor.bytes[2] ^= 1; };
  EXPECT_TRUE(mentions(with_part(".quant_map", nudge), ".quant_map has "));
  EXPECT_TRUE(mentions(with_part(".nested_quant_map", nudge), ".nested_quant_map has "));
  // Last bits of that map differ between the machines on which files were made.
  const auto last_bit = [](TensorBytes& tensor) { tensor.bytes[4 * 9] ^= 1; };
  auto near = tensors(nf4_double_format());
  last_bit(part(near, ".nested_quant_map"));
  write(near);
  EXPECT_NE(SafetensorsSource(directory_).find("a.weight"), nullptr);
  EXPECT_TRUE(mentions(with_part(".quant_map", last_bit), ".quant_map has "));
  const auto shorter = [](TensorBytes& tensor) {
    tensor.bytes.pop_back();
    --tensor.spec.shape[0];
  };
  EXPECT_TRUE(mentions(with_part(".absmax", shorter), "absmax is U8 [289] where U8 [290]"));
  EXPECT_TRUE(mentions(with_part("", shorter), "a.weight has 9268 bytes"));
  for (const char* suffix : {".absmax", ".quant_map", ".nested_quant_map"}) {
    const std::string text =
        with_part(suffix, [](TensorBytes& tensor) { tensor.spec.name += "x"; });
    EXPECT_TRUE(mentions(text, std::string("a.weight") + suffix + " is missing"));
  }
  auto fp4 = tensors(nf4_format());
  part(fp4, ".quant_state.bitsandbytes__nf4").spec.name = "a.weight.quant_state.bitsandbytes__fp4";
  EXPECT_TRUE(mentions(refused(fp4), "quant_type is nf4, only fp4 is supported"));
  auto odd = tensors(nf4_format());
  part(odd, ".quant_state.bitsandbytes__nf4").spec.name = "a.weight.quant_state.bitsandbytes__nf5";
  EXPECT_TRUE(mentions(refused(odd), "a.weight is of dtype U8"));
}

TEST_F(Bitsandbytes, DamagedFilesAreErrors) {
  write(tensors(nf4_double_format()));
  const std::string good = slurp(directory_ / "model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, good.data(), sizeof header);
  damage(directory_ / "model.safetensors", good, 8 + header, [&](const fs::path&) {
    const SafetensorsSource source(directory_);
    const StoredTensor* tensor = source.find("a.weight");
    if (tensor != nullptr) values_of(*tensor);
  });
  // The text of the state, at the end of the file.
  const size_t at = good.rfind("{\"blocksize\"");
  ASSERT_NE(at, std::string::npos);
  std::mt19937 random(8);
  for (int i = 0; i < 500; ++i) {
    std::string bad = good;
    bad[at + random() % (good.size() - at)] = static_cast<char>(random());
    put("model.safetensors", bad);
    try {
      const SafetensorsSource source(directory_);
      values_of(*source.find("a.weight"));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::model) << error.what();
    }
  }
}

}  // namespace
}  // namespace jackscrew
