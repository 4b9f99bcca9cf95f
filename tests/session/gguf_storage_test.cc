// Training over the storage formats of GGUF files, which stay as they lie there.
#include <functional>
#include <random>

#include "tests/cli/run_program.h"
#include "tests/formats/gguf_builder.h"
#include "tests/session/lora_steps.h"
#include "tests/support/errors.h"

namespace jackscrew {
namespace {

// A type of GGUF for which any bytes will do that `set_scale` then makes numbers of a model of:
// some hundredths.
struct GgufStorage {
  uint32_t type;
  const char* format;
  size_t elements;
  size_t bytes;  // of a block
  std::function<void(uint8_t* block)> set_scale;
};

std::function<void(uint8_t*)> f16_at(std::vector<size_t> places, float value) {
  return [places, value](uint8_t* block) {
    const f16 half = to_f16(value);
    for (const size_t place : places) std::memcpy(block + place, &half, sizeof half);
  };
}

const std::vector<GgufStorage>& gguf_storages() {
  static const std::vector<GgufStorage> kStorages = {
      {3, "q4_1", 32, 20, f16_at({0, 2}, 5e-3f)},
      {10, "q2_k", 256, 84, f16_at({80, 82}, 5e-3f)},
      {11, "q3_k", 256, 110, f16_at({108}, 2e-3f)},
      {12, "q4_k", 256, 144, f16_at({0, 2}, 2e-4f)},
      {13, "q5_k", 256, 176, f16_at({0, 2}, 1e-4f)},
      {14, "q6_k", 256, 210, f16_at({208}, 4e-5f)},
      {16, "iq2_xxs", 256, 66, f16_at({0}, 1e-3f)},
      {17, "iq2_xs", 256, 74, f16_at({0}, 1e-3f)},
      {18, "iq3_xxs", 256, 98, f16_at({0}, 5e-4f)},
      {19, "iq1_s", 256, 50, f16_at({0}, 1e-2f)},
      {20, "iq4_nl", 32, 18, f16_at({0}, 1e-3f)},
      {21, "iq3_s", 256, 110, f16_at({0}, 5e-4f)},
      {22, "iq2_s", 256, 82, f16_at({0}, 1e-3f)},
      {23, "iq4_xs", 256, 136, f16_at({0}, 6e-5f)},
      {29, "iq1_m", 256, 56,
       [](uint8_t* block) {  // 2^-7, a nibble in each of four words
         for (const int place : {49, 51, 53, 55}) block[place] &= 15;
         block[55] |= 0x20;
       }},
      {34, "tq1_0", 256, 54, f16_at({52}, 5e-2f)},
      {35, "tq2_0", 256, 66, f16_at({64}, 5e-2f)},
      {39, "mxfp4", 32, 17, [](uint8_t* block) { block[0] = 122; }},                // 2^-6
      {40, "nvfp4", 64, 36, [](uint8_t* block) { std::memset(block, 0x10, 4); }}};  // 2^-6
  return kStorages;
}

// One layer of 256 and heads of 64, whose linears are of that type.
std::string tiny_gguf(const GgufStorage& storage) {
  GgufBuilder out = gguf_llama_shape(256, 512, 4);
  out.u32("llama.attention.head_count_kv", 2);
  std::mt19937 random(3);
  const auto floats = [&](const std::string& name, uint64_t cols, uint64_t rows) {
    std::string bytes;
    for (uint64_t i = 0; i < rows * cols; ++i) {
      bytes += GgufBuilder::raw(static_cast<float>(random() % 1001) / 1000.0f - 0.5f);
    }
    out.tensor(name, 0, {cols, rows}, bytes);
  };
  const auto norm = [&](const std::string& name) {
    std::string bytes;
    for (int i = 0; i < 256; ++i) bytes += GgufBuilder::raw(1.0f);
    out.tensor(name, 0, {256}, bytes);
  };
  const auto linear = [&](const std::string& name, uint64_t cols, uint64_t rows) {
    std::vector<uint8_t> bytes(rows * cols / storage.elements * storage.bytes);
    for (uint8_t& byte : bytes) byte = random() & 0xFF;
    for (size_t at = 0; at < bytes.size(); at += storage.bytes) storage.set_scale(&bytes[at]);
    out.tensor("blk.0." + name, storage.type, {cols, rows}, {bytes.begin(), bytes.end()});
  };
  floats("token_embd.weight", 256, 40);
  norm("blk.0.attn_norm.weight");
  linear("attn_q.weight", 256, 256);
  linear("attn_k.weight", 256, 128);
  linear("attn_v.weight", 256, 128);
  linear("attn_output.weight", 256, 256);
  norm("blk.0.ffn_norm.weight");
  linear("ffn_gate.weight", 256, 512);
  linear("ffn_up.weight", 256, 512);
  linear("ffn_down.weight", 512, 256);
  norm("output_norm.weight");
  return out.build();
}

// LoRA over weights that stay in the file's format is LoRA over what they decode to: one panel
// holds each of these matrices, so that every sum is the same.
TEST(GgufStorage, LoraOverEveryTypeIsThatOverItsValues) {
  const TemporaryDirectory directory("jackscrew_gguf_storage");
  for (const GgufStorage& storage : gguf_storages()) {
    SCOPED_TRACE(storage.format);
    const ModelFiles files = open_model(directory.file("tiny.gguf", tiny_gguf(storage)));
    const LoraSteps kept = lora_steps(files, "keep", 2);
    const LoraSteps plain = lora_steps(files, "f32", 2);
    EXPECT_EQ(kept.formats.size(), 7u);
    for (const auto& [name, format] : kept.formats) EXPECT_EQ(format, storage.format) << name;
    for (const auto& [name, format] : plain.formats) EXPECT_EQ(format, "f32") << name;
    expect_same_steps(kept, plain);
    EXPECT_LT(kept.losses[1], kept.losses[0]);
  }
}

// The same is said of a type and of a mixture of types.
TEST(GgufStorage, InMemoryNothingIsConvertedToIt) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  for (const std::string storage : {"storage=q4_k", "storage=q4_k_m"}) {
    expect_message(ErrorKind::usage, storage + " is of GGUF files", [&] {
      Session::rehearse(make_recipe({"method=lora", storage}), files, training_use(8));
    });
  }
}

}  // namespace
}  // namespace jackscrew
