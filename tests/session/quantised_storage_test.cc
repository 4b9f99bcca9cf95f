// Training over weights that other programs have quantised, in every layout of their files.
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "quant/dynamic_map.h"
#include "quant/nf4.h"
#include "session/fingerprint.h"
#include "tests/cli/run_program.h"
#include "tests/session/lora_steps.h"

namespace jackscrew {
namespace {

using nlohmann::json;

constexpr int64_t kHidden = 256;
constexpr int64_t kIntermediate = 512;
constexpr int64_t kKeys = 128;
constexpr int64_t kVocabulary = 40;

// The tensors of a file that is being made.
class Tensors {
 public:
  explicit Tensors(uint32_t seed) : random_(seed) {}

  std::mt19937& random() { return random_; }

  template <class Element>
  void put(const std::string& name, const char* dtype, std::vector<int64_t> shape,
           const std::vector<Element>& values) {
    const auto* from = reinterpret_cast<const uint8_t*>(values.data());
    specs_.push_back({name, dtype, std::move(shape)});
    bytes_.emplace_back(from, from + values.size() * sizeof(Element));
  }
  // Arbitrary bits, of which `mask` takes some away.
  template <class Element>
  void put_random(const std::string& name, const char* dtype, const std::vector<int64_t>& shape,
                  Element mask = static_cast<Element>(~Element{0})) {
    std::vector<Element> values(count_of(shape));
    for (Element& value : values) value = static_cast<Element>(random_()) & mask;
    put(name, dtype, shape, values);
  }
  // Numbers about `size`, in the type.
  void put_scales(const std::string& name, const std::string& dtype,
                  const std::vector<int64_t>& shape, float size) {
    std::vector<float> values(count_of(shape));
    for (float& value : values) value = size * (0.75f + static_cast<float>(random_() % 64) / 128);
    std::vector<uint16_t> narrow;
    for (const float value : values) {
      narrow.push_back(dtype == "F16" ? to_f16(value).bits : to_bf16(value).bits);
    }
    if (dtype == "F32") {
      put(name, "F32", shape, values);
    } else {
      put(name, dtype.c_str(), shape, narrow);
    }
  }
  void put_text(const std::string& name, const std::string& text) {
    put(name, "U8", {static_cast<int64_t>(text.size())},
        std::vector<char>(text.begin(), text.end()));
  }

  void write(const fs::path& directory) const {
    SafetensorsWriter writer(directory / "model.safetensors", specs_);
    for (size_t i = 0; i < specs_.size(); ++i) writer.write(specs_[i].name, bytes_[i]);
    writer.close();
  }

 private:
  static size_t count_of(const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return static_cast<size_t>(count);
  }

  std::mt19937 random_;
  std::vector<SafetensorsSpec> specs_;
  std::vector<std::vector<uint8_t>> bytes_;
};

using AddLayer =
    std::function<void(Tensors&, const std::string& layer, int64_t rows, int64_t cols)>;

struct StoredLayout {
  const char* name;
  const char* format;  // what its weights are kept in
  json config;         // quantization_config
  AddLayer add;        // a weight of some hundredths
};

constexpr int64_t kGroup = 64;

void add_gptq(Tensors& out, const std::string& layer, int64_t rows, int64_t cols) {
  const int64_t groups = cols / kGroup;
  out.put_random<uint32_t>(layer + ".qweight", "I32", {cols / 8, rows});
  out.put_random<uint32_t>(layer + ".qzeros", "I32", {groups, rows / 8}, 0x77777777u);
  out.put_scales(layer + ".scales", "F16", {groups, rows}, 4e-3f);
  std::vector<int32_t> group_of;
  for (int64_t k = 0; k < cols; ++k) group_of.push_back(static_cast<int32_t>(k / kGroup));
  std::shuffle(group_of.begin(), group_of.end(), out.random());
  out.put(layer + ".g_idx", "I32", {cols}, group_of);
}

void add_awq(Tensors& out, const std::string& layer, int64_t rows, int64_t cols) {
  out.put_random<uint32_t>(layer + ".qweight", "I32", {cols, rows / 8});
  out.put_random<uint32_t>(layer + ".qzeros", "I32", {cols / kGroup, rows / 8}, 0x77777777u);
  out.put_scales(layer + ".scales", "F16", {cols / kGroup, rows}, 4e-3f);
}

// A group of 32 columns in 6 bits, and groups of 32 in 3.
void add_exl2(Tensors& out, const std::string& layer, int64_t rows, int64_t cols) {
  const int64_t groups = cols / 32;
  out.put_random<uint32_t>(layer + ".q_weight", "I32", {6 + 3 * (groups - 1), rows});
  std::vector<int16_t> table;
  std::vector<int32_t> places;
  for (int64_t g = 0; g < groups; ++g) {
    table.push_back(g == 0 ? 6 : 3);
    table.push_back(static_cast<int16_t>(g == 0 ? 0 : 3 + 3 * g));
  }
  for (int64_t k = 0; k < cols; ++k) places.push_back(static_cast<int32_t>(k));
  std::shuffle(places.begin(), places.end(), out.random());
  out.put(layer + ".q_groups", "I16", {2 * groups}, table);
  out.put(layer + ".q_invperm", "I32", {cols}, places);
  out.put_random<uint32_t>(layer + ".q_scale", "I32", {groups, rows / 8});
  out.put_scales(layer + ".q_scale_max", "F16", {groups}, 2e-2f);
}

void add_exl3(Tensors& out, const std::string& layer, int64_t rows, int64_t cols, bool marked) {
  out.put_random<uint16_t>(layer + ".trellis", "I16", {cols / 16, rows / 16, 16 * 3});
  out.put_scales(layer + ".suh", "F16", {cols}, 0.2f);
  out.put_scales(layer + ".svh", "F16", {rows}, -0.2f);
  if (marked) out.put(layer + ".mcg", "I32", {}, std::vector<uint32_t>{0xCBAC1FEDu});
}

void add_packed(Tensors& out, const std::string& layer, int64_t rows, int64_t cols) {
  out.put_random<uint32_t>(layer + ".weight_packed", "I32", {rows, cols / 8});
  out.put_scales(layer + ".weight_scale", "BF16", {rows, cols / kGroup}, 4e-3f);
  out.put(layer + ".weight_shape", "I64", {2}, std::vector<int64_t>{rows, cols});
}

void add_bytes(Tensors& out, const std::string& layer, int64_t rows, int64_t cols) {
  out.put_random<uint8_t>(layer + ".weight", "I8", {rows, cols});
  out.put_scales(layer + ".weight_scale", "BF16", {rows, 1}, 3e-4f);
}

AddLayer add_fp8(const char* scale, const char* dtype, int64_t height, int64_t width) {
  return [=](Tensors& out, const std::string& layer, int64_t rows, int64_t cols) {
    const int64_t columns = width > 0 ? (cols + width - 1) / width : 1;
    out.put_random<uint8_t>(layer + ".weight", "F8_E4M3", {rows, cols}, 0xBF);  // below 2
    out.put_scales(layer + scale, dtype, {(rows + height - 1) / height, columns}, 5e-2f);
  };
}

AddLayer add_four_bits(const char* type, bool is_double) {
  return [=](Tensors& out, const std::string& layer, int64_t rows, int64_t cols) {
    const std::string name = layer + ".weight";
    const int64_t blocks = rows * cols / kNf4Block;
    const auto book = type == std::string("nf4") ? nf4_values() : bnb_fp4_values();
    json state = {{"quant_type", type}, {"blocksize", 64}, {"shape", {rows, cols}}};
    out.put_random<uint8_t>(name, "U8", {rows * cols / 2, 1});
    out.put(name + ".quant_map", "F32", {16}, std::vector<float>(book.begin(), book.end()));
    if (is_double) {
      const auto& map = signed_dynamic_map().values;
      out.put_random<uint8_t>(name + ".absmax", "U8", {blocks});
      out.put_scales(name + ".nested_absmax", "F32", {blocks / 256 + (blocks % 256 != 0)}, 2e-2f);
      out.put(name + ".nested_quant_map", "F32", {256},
              std::vector<float>(std::begin(map), std::end(map)));
      state["nested_blocksize"] = 256;
      state["nested_dtype"] = "float32";
      state["nested_offset"] = 0.04;
    } else {
      out.put_scales(name + ".absmax", "F32", {blocks}, 4e-2f);
    }
    out.put_text(fmt::format("{}.quant_state.bitsandbytes__{}", name, type), state.dump());
  };
}

void add_llm_int8(Tensors& out, const std::string& layer, int64_t rows, int64_t cols) {
  out.put_random<uint8_t>(layer + ".weight", "I8", {rows, cols});
  out.put_scales(layer + ".SCB", "F32", {rows}, 4e-2f);
}

std::vector<StoredLayout> layouts() {
  const auto method = [](const char* name) { return json{{"quant_method", name}}; };
  json gptq = method("gptq");
  gptq.update({{"bits", 4}, {"group_size", kGroup}, {"desc_act", true}});
  json awq = method("awq");
  awq.update({{"bits", 4}, {"group_size", kGroup}, {"version", "gemm"}});
  json fp8 = method("fp8");
  fp8["weight_block_size"] = {128, 96};
  const json compressed = method("compressed-tensors");
  json four = method("bitsandbytes");
  four.update({{"load_in_4bit", true}, {"bnb_4bit_quant_type", "nf4"}});
  json eight = method("bitsandbytes");
  eight["load_in_8bit"] = true;
  return {{"gptq", "gptq_4bit", gptq, add_gptq},
          {"awq", "awq_4bit", awq, add_awq},
          {"exl2", "exl2", method("exl2"), add_exl2},
          {"exl3", "exl3_3bit", method("exl3"),
           [](auto&&... arguments) { add_exl3(arguments..., true); }},
          {"pack_quantized", "packed_4bit", compressed, add_packed},
          {"int_quantized", "int_8bit", compressed, add_bytes},
          {"float_quantized", "fp8", compressed, add_fp8(".weight_scale", "BF16", 1, 0)},
          {"fp8", "fp8", fp8, add_fp8(".weight_scale_inv", "F32", 128, 96)},
          {"nf4", "nf4", four, add_four_bits("nf4", false)},
          {"nf4_double", "nf4_double", four, add_four_bits("nf4", true)},
          {"fp4", "fp4", four, add_four_bits("fp4", false)},
          {"fp4_double", "fp4_double", four, add_four_bits("fp4", true)},
          {"llm_int8", "int8_absmax", eight, add_llm_int8}};
}

json config_json() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", kVocabulary},
          {"hidden_size", kHidden},
          {"intermediate_size", kIntermediate},
          {"num_hidden_layers", 1},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 64},
          {"tie_word_embeddings", true}};
}

void add_rest(Tensors& out) {
  out.put_scales("model.embed_tokens.weight", "F32", {kVocabulary, kHidden}, 1.0f);
  for (const char* norm : {"model.layers.0.input_layernorm.weight",
                           "model.layers.0.post_attention_layernorm.weight", "model.norm.weight"}) {
    out.put_scales(norm, "F32", {kHidden}, 1.0f);
  }
}

void write_model(const fs::path& directory, const StoredLayout& layout) {
  Tensors out(3);
  add_rest(out);
  const auto add = [&](const char* name, int64_t rows, int64_t cols) {
    layout.add(out, std::string("model.layers.0.") + name, rows, cols);
  };
  add("self_attn.q_proj", kHidden, kHidden);
  add("self_attn.k_proj", kKeys, kHidden);
  add("self_attn.v_proj", kKeys, kHidden);
  add("self_attn.o_proj", kHidden, kHidden);
  add("mlp.gate_proj", kIntermediate, kHidden);
  add("mlp.up_proj", kIntermediate, kHidden);
  add("mlp.down_proj", kHidden, kIntermediate);
  json config = config_json();
  config["quantization_config"] = layout.config;
  fs::create_directories(directory);
  write_text_atomic(directory / "config.json", config.dump());
  out.write(directory);
}

// A model of these values in F32.
void write_plain(const fs::path& directory, const LoraSteps& steps) {
  Tensors out(3);
  add_rest(out);
  for (const auto& [name, format] : steps.formats) {
    const std::vector<float>& values = steps.weights.at(name);
    const int64_t cols = name.find("down_proj") != std::string::npos ? kIntermediate : kHidden;
    out.put(name, "F32", {static_cast<int64_t>(values.size()) / cols, cols}, values);
  }
  fs::create_directories(directory);
  write_text_atomic(directory / "config.json", config_json().dump());
  out.write(directory);
}

// LoRA over weights that stay as another program left them is LoRA over a model of the numbers that
// they stand for: one panel holds each of these matrices, so that every sum is the same.
TEST(QuantisedStorage, LoraOverEveryLayoutIsThatOverItsValues) {
  const TemporaryDirectory directory("jackscrew_quantised_storage");
  for (const StoredLayout& layout : layouts()) {
    SCOPED_TRACE(layout.name);
    const fs::path quantised = directory.path() / layout.name;
    write_model(quantised, layout);
    const LoraSteps kept = lora_steps(open_model(quantised.string()), "keep", 5);
    EXPECT_EQ(kept.formats.size(), 7u);
    for (const auto& [name, format] : kept.formats) EXPECT_EQ(format, layout.format) << name;
    const fs::path plain = directory.path() / fmt::format("{}_plain", layout.name);
    write_plain(plain, kept);
    const LoraSteps decoded = lora_steps(open_model(plain.string()), "keep", 5);
    for (const auto& [name, format] : decoded.formats) EXPECT_EQ(format, "f32") << name;
    expect_same_steps(kept, decoded);
    EXPECT_LT(kept.losses[4], kept.losses[0]);
  }
}

// The same bytes may stand for other values: fingerprints are of what they mean, too.
TEST(QuantisedStorage, OtherSettingsHaveOtherFingerprints) {
  const TemporaryDirectory directory("jackscrew_quantised_fingerprints");
  const std::vector<StoredLayout> all = layouts();
  const auto changed = [&](const std::string& name, const json& settings = json::object()) {
    StoredLayout layout = *std::ranges::find(all, name, &StoredLayout::name);
    layout.config.update(settings);
    return layout;
  };
  const auto written = [&](const StoredLayout& layout, const char* place) {
    write_model(directory.path() / place, layout);
    return open_model((directory.path() / place).string());
  };
  StoredLayout unmarked = changed("exl3");
  unmarked.add = [](Tensors& out, const std::string& layer, int64_t rows, int64_t cols) {
    add_exl3(out, layer, rows, cols, false);
  };
  // 3 groups of 256 columns and 6 of 512 are of 96 or of 100 columns.
  const std::pair<StoredLayout, StoredLayout> pairs[] = {
      {changed("gptq"), changed("gptq", {{"checkpoint_format", "gptq_v2"}})},
      {changed("fp8"), changed("fp8", {{"weight_block_size", {128, 100}}})},
      {changed("exl3"), unmarked}};
  for (const auto& [one, other] : pairs) {
    SCOPED_TRACE(one.name);
    const ModelFiles before = written(one, "one"), after = written(other, "other");
    EXPECT_EQ(stored_bytes(before), stored_bytes(after));
    EXPECT_NE(model_fingerprint(before, {}), model_fingerprint(after, {}));
    EXPECT_NE(model_checksum(before), model_checksum(after));
  }
  // Those of most models are what they have been: their checkpoints still fit.
  for (const StoredLayout& layout : all) {
    const bool is_usual = layout.name != std::string("exl3") && layout.name != std::string("fp8");
    const ModelFiles files = written(layout, layout.name);
    EXPECT_EQ(files.source->find("model.layers.0.mlp.up_proj.weight")->settings.empty(), is_usual)
        << layout.name;
  }
}

// A weight that waits is what its master encodes to, in a run that never stopped as well: codes of
// scales that a file has are not those that an encoder finds for the same numbers.
TEST(QuantisedStorage, RotaryGoesOnWithTheSameBits) {
  const TemporaryDirectory directory("jackscrew_quantised_rotary");
  for (const StoredLayout& layout : layouts()) {
    if (layout.format != std::string("nf4") && layout.format != std::string("nf4_double")) continue;
    SCOPED_TRACE(layout.name);
    const fs::path quantised = directory.path() / layout.name;
    write_model(quantised, layout);
    const ModelFiles files = open_model(quantised.string());
    const StepBatch batch = step_of({random_micro_batch(kVocabulary, {9, 15}, 5)});
    const auto begin = [&] {
      return make_session(make_recipe({"method=rotary", "device=cpu", "rotation_groups=matrix",
                                       std::string("storage=") + layout.format, "active_params=25%",
                                       "steps_per_rotation=2"}),
                          files, training_use(batch.tokens));
    };
    const auto steps = [&](Session& session, int64_t first, int64_t last) {
      std::vector<double> losses;
      for (int64_t step = first; step < last; ++step) {
        session.accumulate(batch, 1e-3, step);
        losses.push_back(session.update({}).loss);
      }
      return losses;
    };
    const auto states = [](Session& session) -> StateSource {
      return [&session](const StateVisitor& visitor) { session.visit(visitor); };
    };
    const auto whole = begin();
    steps(*whole, 0, 3);  // two windows: most of the weights have not had their turn
    const fs::path checkpoint =
        write_checkpoint(quantised, {3, "", "", ""}, "", states(*whole), whole->ops());
    const auto resumed = begin();
    restore_checkpoint(
        checkpoint, states(*resumed), [&] { resumed->learner_restored(); }, resumed->ops());
    resumed->restored();
    EXPECT_EQ(steps(*resumed, 3, 8), steps(*whole, 3, 8));
  }
}

}  // namespace
}  // namespace jackscrew
