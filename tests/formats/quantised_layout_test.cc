#include "formats/quantised_layout.h"

#include <cmath>
#include <cstring>
#include <random>

#include "quant/weight.h"
#include "tests/formats/support.h"
#include "tests/quant/decode.h"
#include "tests/support/paths.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

std::vector<float> values_of(const StoredTensor& tensor, Ops& ops) {
  const int64_t rows = tensor.shape[0];
  const int64_t cols = tensor.shape[1];
  Memory memory("host", make_host_backing(), 0);
  Arena staging(memory, Purpose::staging, 1 << 20);
  Weight weight(memory, {"a.weight", rows, cols}, tensor.format);
  weight.load(ops, tensor, staging);
  std::vector<float> out(static_cast<size_t>(rows * cols));
  weight.decode(ops, 0, rows, Tensor(out.data(), DType::f32, {rows, cols}));
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
  const SafetensorsFile golden(directory / "golden.safetensors");
  EXPECT_EQ(tensor->shape, golden.find("values")->shape);
  const auto expected = elements_of<float>(*golden.find("values"));
  EXPECT_TRUE(same_bits(values_of(*tensor, *make_test_ops()), expected));
  source.release(*tensor);
}

INSTANTIATE_TEST_SUITE_P(Layouts, QuantisedLayoutGolden,
                         ::testing::Values("gptq_4", "gptq_4_order", "gptq_3", "gptq_2_v2",
                                           "gptq_8", "awq", "exl2", "exl2_low", "packed_4",
                                           "packed_4_order", "packed_8", "int", "int_shared",
                                           "fp8_rows", "fp8_groups", "fp8_blocks", "fp8_shared",
                                           "fp8_inverse", "fp4", "llm_int8", "exl3_3_signs",
                                           "exl3_4_mcg", "exl3_7_mul1"),
                         [](const auto& param_info) { return std::string(param_info.param); });

// Copies of those files with something wrong in them.
class QuantisedLayout : public FormatsTest {
 protected:
  struct Entry {
    SafetensorsSpec spec;
    std::vector<uint8_t> bytes;
  };

  static fs::path golden(const std::string& name) {
    return fs::path(kTestData) / "golden/quantised" / name;
  }

  static std::vector<Entry> entries(const std::string& name) {
    const SafetensorsFile file(golden(name) / "model.safetensors");
    std::vector<Entry> out;
    for (const SafetensorsEntry& entry : file.entries()) {
      out.push_back(
          {{entry.name, entry.dtype, entry.shape}, {entry.bytes.begin(), entry.bytes.end()}});
    }
    return out;
  }

  static Entry& part(std::vector<Entry>& all, const std::string& suffix) {
    for (Entry& entry : all) {
      if (entry.spec.name == "a." + suffix) return entry;
    }
    ADD_FAILURE() << suffix;
    return all[0];
  }

  template <class Element>
  static void set(Entry& entry, size_t index, Element value) {
    std::memcpy(entry.bytes.data() + index * sizeof value, &value, sizeof value);
  }

  void write(const std::vector<Entry>& all) const {
    std::vector<SafetensorsSpec> specs;
    for (const Entry& entry : all) specs.push_back(entry.spec);
    SafetensorsWriter writer(directory_ / "model.safetensors", specs);
    for (const Entry& entry : all) writer.write(entry.spec.name, entry.bytes);
    writer.close();
  }

  // Why the weight of a changed file cannot be had.
  template <class Change>
  std::string refused(const std::string& name, const Change& change) const {
    std::vector<Entry> all = entries(name);
    change(all);
    write(all);
    put("config.json", slurp(golden(name) / "config.json"));
    return load_error();
  }

  // Why the weight cannot be had with a changed quantization_config.
  std::string refused_config(const std::string& name, const std::string& from,
                             const std::string& to) const {
    change_config(name, from, to);
    return load_error();
  }
  void change_config(const std::string& name, const std::string& from,
                     const std::string& to) const {
    write(entries(name));
    std::string text = slurp(golden(name) / "config.json");
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    put("config.json", text.replace(at, from.size(), to));
  }
  std::vector<float> loaded() const {
    const SafetensorsSource source(directory_);
    return values_of(*source.find("a.weight"), *make_test_ops());
  }

  std::string load_error() const {
    return model_error([&] {
      const SafetensorsSource source(directory_);
      values_of(*source.find("a.weight"), *make_test_ops());
    });
  }
};

TEST_F(QuantisedLayout, RefusesOrdersThatAreNone) {
  EXPECT_TRUE(mentions(refused("exl2",
                               [](auto& all) {
                                 Entry& order = part(all, "q_invperm");
                                 int32_t first = 0;
                                 std::memcpy(&first, order.bytes.data(), sizeof first);
                                 set(order, 1, first);
                               }),
                       "q_invperm is no order of 96 columns"));
  EXPECT_TRUE(
      mentions(refused("exl2", [](auto& all) { set<int32_t>(part(all, "q_invperm"), 0, 96); }),
               "q_invperm is no order of 96 columns: 96"));
  for (const int32_t group : {3, -1}) {
    EXPECT_TRUE(
        mentions(refused("gptq_4_order", [&](auto& all) { set(part(all, "g_idx"), 5, group); }),
                 "g_idx: group"));
  }
  EXPECT_TRUE(mentions(
      refused("packed_4_order", [](auto& all) { set<int32_t>(part(all, "weight_g_idx"), 5, 4); }),
      "weight_g_idx: group 4"));
}

TEST_F(QuantisedLayout, RefusesGroupsThatDoNotFit) {
  const auto with_group = [&](size_t index, int16_t value) {
    return refused("exl2", [&](auto& all) { set(part(all, "q_groups"), index, value); });
  };
  EXPECT_TRUE(mentions(with_group(0, 7), "a.q_groups: group 0"));
  EXPECT_TRUE(mentions(with_group(1, 1), "a.q_groups: group 0"));
  EXPECT_TRUE(mentions(with_group(2, 0), "a.q_groups: group 1 of 0 bits"));
  EXPECT_TRUE(mentions(with_group(3, 1), "a.q_groups: group"));
  EXPECT_TRUE(mentions(with_group(3, -1), "a.q_groups: group"));
  EXPECT_TRUE(mentions(with_group(5, 100), "a.q_groups: group"));
}

TEST_F(QuantisedLayout, RefusesPartsOfOtherShapes) {
  const auto shorter = [](Entry& entry) {
    entry.bytes.resize(entry.bytes.size() / static_cast<size_t>(entry.spec.shape[0]) *
                       static_cast<size_t>(entry.spec.shape[0] - 1));
    --entry.spec.shape[0];
  };
  const struct {
    const char *golden, *part, *message;
  } kCases[] = {
      {"gptq_4", "scales", "a.scales is F16 [2, 32] where F16 [3, 32]"},
      {"gptq_4", "qzeros", "a.qzeros is I32 [2, 4] where I32 [3, 4]"},
      {"gptq_4", "g_idx", "a.g_idx is I32 [95] where I32 [96]"},
      {"gptq_3", "qweight", "a.qweight has 8 lines of words"},
      {"awq", "scales", "a.scales is F16 [2, 32]"},
      {"awq", "qzeros", "a.qzeros is I32 [2, 4]"},
      {"exl2", "q_scale", "a.q_scale is I32 [2, 4]"},
      {"exl2", "q_scale_max", "a.q_scale_max is F16 [2]"},
      {"exl2", "q_groups", "is not a matrix of EXL2"},
      {"packed_4", "weight_scale", "does not have groups of the 32 rows"},
      {"packed_4_order", "weight_zero_point", "a.weight_zero_point is I32 [3, 4]"},
      {"packed_4", "weight_packed", "does not hold codes of a matrix [32, 96]"},
      {"int", "weight_scale", "does not have groups of the 32 rows"},
      {"fp8_rows", "weight_scale",
       "[31, 1] does not fit a weight [32, 96] in blocks of unknown size"},
      {"fp8_blocks", "weight_scale", "[1, 3] does not fit a weight [32, 96] in blocks of [24, 40]"},
      {"fp8_inverse", "weight_scale_inv", "in blocks of [16, 64]"},
      {"fp4", "weight.absmax", "a.weight.absmax is F32 [47] where F32 [48]"},
      {"llm_int8", "SCB", "a.SCB is F32 [31] where F32 [32]"}};
  for (const auto& expected : kCases) {
    EXPECT_TRUE(
        mentions(refused(expected.golden, [&](auto& all) { shorter(part(all, expected.part)); }),
                 expected.message))
        << expected.golden;
  }
  for (const char* name : {"gptq_4", "gptq_4_order", "awq", "exl2", "packed_4", "int", "fp8_rows",
                           "fp8_inverse", "fp4", "llm_int8", "exl3_7_mul1"}) {
    const size_t parts = entries(name).size();
    for (size_t i = 0; i < parts; ++i) {
      std::vector<Entry> all = entries(name);
      const std::string removed = all[i].spec.name;
      // Without its marker a layer is none, and what is left of it is no weight.
      all.erase(all.begin() + static_cast<ptrdiff_t>(i));
      write(all);
      put("config.json", slurp(golden(name) / "config.json"));
      const SafetensorsSource source(directory_);
      try {
        const StoredTensor* found = source.find("a.weight");
        const bool ordered = name == std::string("gptq_4_order");
        EXPECT_TRUE(found == nullptr || (removed == "a.g_idx" && !ordered) ||
                    removed == "a.weight_format" || removed == "a.mul1")
            << name << ": " << removed;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::model);
      }
    }
  }
}

TEST_F(QuantisedLayout, RefusesSettingsItDoesNotRead) {
  EXPECT_TRUE(mentions(refused_config("gptq_4", "\"bits\": 4", "\"bits\": 5"), "GPTQ in 5 bits"));
  EXPECT_TRUE(
      mentions(refused_config("gptq_4", "\"gptq\"\n", "\"marlin\"\n"), "checkpoint_format marlin"));
  EXPECT_TRUE(
      mentions(refused_config("gptq_4", "\"bits\": 4", "\"dynamic\": {\"a\": {}}, \"bits\": 4"),
               "settings of single layers"));
  EXPECT_TRUE(mentions(refused_config("gptq_4", "\"group_size\": 32", "\"group_size\": 0"),
                       "group_size is 0"));
  EXPECT_TRUE(mentions(refused_config("gptq_4", "\"bits\": 4", "\"bits\": 8"), "scales is F16"));
  EXPECT_TRUE(mentions(refused_config("awq", "gemm", "gemv"), "version gemv"));
  EXPECT_TRUE(mentions(refused_config("awq", "\"bits\": 4", "\"bits\": 3"), "AWQ in 3 bits"));
}

// transformers 5 has `format` for GPTQ's checkpoint_format and for AWQ's version.
TEST_F(QuantisedLayout, ReadsTheFormatByEitherName) {
  const SafetensorsSource source(golden("gptq_2_v2"));
  const std::vector<float> expected = values_of(*source.find("a.weight"), *make_test_ops());
  for (const char* setting : {"\"format\": \"gptq_v2\"", "\"format\": \"GPTQ_V2\"",
                              "\"checkpoint_format\": \"gptq_v2\", \"format\": \"gptq\""}) {
    change_config("gptq_2_v2", "\"checkpoint_format\": \"gptq_v2\"", setting);
    EXPECT_TRUE(same_bits(loaded(), expected)) << setting;
  }
  change_config("awq", "\"version\"", "\"format\"");
  EXPECT_FALSE(loaded().empty());
  EXPECT_TRUE(mentions(refused_config("awq", "\"version\": \"gemm\"", "\"format\": \"gemv\""),
                       "version gemv"));
}

// What config_groups say, as compressed-tensors writes them.
TEST_F(QuantisedLayout, HoldsCompressedTensorsToTheirConfiguration) {
  const auto with = [&](const char* name, const std::string& settings) {
    return refused_config(name, "\"ignore\"", settings + ", \"ignore\"");
  };
  const auto accept = [&](const char* name, const std::string& settings) {
    change_config(name, "\"ignore\"", settings + ", \"ignore\"");
    EXPECT_FALSE(loaded().empty());
  };
  const auto weights = [](const std::string& fields) {
    return "\"config_groups\": {\"g\": {\"weights\": {" + fields + "}}}";
  };
  for (const char* name : {"packed_4", "int"}) {
    EXPECT_TRUE(mentions(with(name, weights("\"symmetric\": false")),
                         "symmetric is false, but tensor a.weight_zero_point is missing"));
    EXPECT_TRUE(mentions(with(name, "\"transform_config\": {\"config_groups\": {\"u\": {}}}"),
                         "transform_config"));
    accept(name, "\"transform_config\": {}, " + weights("\"symmetric\": true"));
  }
  EXPECT_TRUE(mentions(with("packed_4", weights("\"actorder\": \"group\"")),
                       "but tensor a.weight_g_idx is missing"));
  EXPECT_TRUE(mentions(with("packed_4", weights("\"group_size\": 64")),
                       "96 columns do not divide into 3 groups of 64"));
  // Three groups of 96 columns are also 40, 40 and 16.
  const auto expect_of_40_not_32 = [&](const std::vector<float>& even) {
    const std::vector<float> uneven = loaded();
    bool differs = false;
    for (size_t i = 0; i < even.size(); ++i) {
      const size_t column = i % 96;
      if (column / 32 == column / 40) {
        EXPECT_EQ(uneven[i], even[i]) << i;
      } else {
        differs = differs || uneven[i] != even[i];
      }
    }
    EXPECT_TRUE(differs);
  };
  accept("packed_4", weights("\"actorder\": \"weight\", \"group_size\": 32"));
  const std::vector<float> even = loaded();
  accept("packed_4", weights("\"group_size\": 40"));
  expect_of_40_not_32(even);
  const auto change_fp8 = [&](int64_t size) {
    change_config("fp8_groups", "\"num_bits\"",
                  fmt::format("\"group_size\": {}, \"num_bits\"", size));
  };
  change_fp8(64);
  EXPECT_TRUE(mentions(load_error(), "96 columns do not divide into 3 groups of 64"));
  change_fp8(32);
  const std::vector<float> even_fp8 = loaded();
  change_fp8(40);
  expect_of_40_not_32(even_fp8);
  // A scale for each row is of no group.
  change_config("fp8_rows", "\"num_bits\"", "\"group_size\": 32, \"num_bits\"");
  EXPECT_FALSE(loaded().empty());
  // A group of layers that are stored otherwise says nothing of blocks.
  const SafetensorsSource blocks(golden("fp8_blocks"));
  change_config("fp8_blocks", "\"group_0\"",
                "\"other\": {\"weights\": {\"group_size\": null}}, \"group_0\"");
  EXPECT_TRUE(same_bits(loaded(), values_of(*blocks.find("a.weight"), *make_test_ops())));
}

// Older writers of pack-quantized leave bits of a word empty rather than divide a code.
TEST_F(QuantisedLayout, CodesMayBeWholeInTheirWords) {
  constexpr int64_t kRows = 32;
  constexpr int64_t kCols = 96;
  constexpr int64_t kGroups = 4;
  const std::vector<Entry> golden_parts = entries("packed_4_order");
  const auto values = [&](int64_t bits, bool is_whole) {
    std::mt19937 random(3);
    // A matrix of codes whose lines are packed along one of its sides.
    const auto packed = [&](const char* name, int64_t lines, int64_t codes, bool across) {
      const int64_t in_word = 32 / bits;
      const int64_t words = is_whole ? (codes + in_word - 1) / in_word : (codes * bits + 31) / 32;
      std::vector<uint32_t> out(static_cast<size_t>(lines * words));
      for (int64_t line = 0; line < lines; ++line) {
        for (int64_t i = 0; i < codes; ++i) {
          const uint64_t code = random() % (1u << bits);
          const int64_t bit = is_whole ? i / in_word * 32 + i % in_word * bits : i * bits;
          const auto put = [&](int64_t word, uint64_t part) {
            if (part == 0) return;
            out[static_cast<size_t>(across ? word * lines + line : line * words + word)] |=
                static_cast<uint32_t>(part);
          };
          put(bit / 32, code << (bit % 32) & 0xFFFFFFFFu);
          put(bit / 32 + 1, code << (bit % 32) >> 32);
        }
      }
      Entry entry{{name, "I32", {lines, words}}, {}};
      if (across) std::swap(entry.spec.shape[0], entry.spec.shape[1]);
      const auto* begin = reinterpret_cast<const uint8_t*>(out.data());
      entry.bytes.assign(begin, begin + out.size() * sizeof(uint32_t));
      return entry;
    };
    std::vector<Entry> all;
    for (const Entry& entry : golden_parts) {
      const bool stays = entry.spec.name == "a.weight_shape" || entry.spec.name == "a.weight_scale";
      if (stays) all.push_back(entry);
    }
    all.push_back(packed("a.weight_packed", kRows, kCols, false));
    all.push_back(packed("a.weight_zero_point", kGroups, kRows, true));
    write(all);
    put("config.json",
        fmt::format(R"({{"quantization_config": {{"quant_method": "compressed-tensors",
            "config_groups": {{"a": {{"weights": {{"num_bits": {}}}}}}}}}}})",
                    bits));
    return loaded();
  };
  for (const int64_t bits : {3, 4, 5, 6}) {
    const std::vector<float> stream = values(bits, false);
    EXPECT_GT(*std::max_element(stream.begin(), stream.end()), 0.0f);
    EXPECT_TRUE(same_bits(values(bits, true), stream)) << bits;
  }
  (void)values(3, true);
  put("config.json", R"({"quantization_config": {"quant_method": "compressed-tensors",
      "config_groups": {"a": {"weights": {"num_bits": 4}}}}})");
  EXPECT_TRUE(mentions(load_error(), "does not hold codes of a matrix [32, 96]"));
}

TEST_F(QuantisedLayout, RefusesFloatsAndBytesItCannotRead) {
  const auto with_scale = [&](const char* name, const char* suffix, auto value) {
    return refused(name, [&](auto& all) { set(part(all, suffix), 0, value); });
  };
  constexpr uint16_t kInfiniteBf16 = 0x7F80;
  constexpr uint16_t kF16Of147 = 0x5898;  // times 448 it is beyond f16
  EXPECT_TRUE(mentions(with_scale("fp8_rows", "weight_scale", kInfiniteBf16),
                       "a.weight_scale: scale 0 is inf: its values are not finite"));
  EXPECT_TRUE(mentions(with_scale("fp8_groups", "weight_scale", kF16Of147), "scale 0 is 147"));
  EXPECT_TRUE(mentions(with_scale("fp8_inverse", "weight_scale_inv", std::nanf("")), "is nan"));
  EXPECT_TRUE(mentions(with_scale("fp4", "weight.absmax", std::nanf("")),
                       "a.weight.absmax: scale 0 is nan"));
  EXPECT_TRUE(mentions(with_scale("llm_int8", "SCB", std::nanf("")), "a.SCB: nan for row 0"));
  EXPECT_TRUE(mentions(with_scale("llm_int8", "weight_format", uint8_t{1}),
                       "a.weight_format: only rows in order"));
  EXPECT_TRUE(mentions(refused_config("fp8_blocks", "24", "8"), "in blocks of [8, 40]"));
  EXPECT_TRUE(mentions(refused_config("fp8_blocks", "24", "0"), "in blocks of [0, 40]"));
  EXPECT_TRUE(mentions(refused_config("fp8_inverse", "64", "32"), "in blocks of [16, 32]"));
  EXPECT_TRUE(
      mentions(refused("fp8_rows", [](auto& all) { part(all, "weight").spec.dtype = "F8_E5M2"; }),
               "a.weight is F8_E5M2 where I8"));
}

TEST_F(QuantisedLayout, RefusesTrellisesThatAreNone) {
  EXPECT_TRUE(
      mentions(refused("exl3_4_mcg", [](auto& all) { set<uint16_t>(part(all, "svh"), 3, 0x7E00); }),
               "a.svh: scale 3 is nan"));
  EXPECT_TRUE(mentions(refused("exl3_4_mcg", [](auto& all) { set(part(all, "mcg"), 0, 7); }),
                       "a.mcg is not the number 0xcbac1fed"));
  EXPECT_TRUE(mentions(refused("exl3_4_mcg",
                               [](auto& all) {
                                 all.push_back(part(all, "mcg"));
                                 all.back().spec.name = "a.mul1";
                               }),
                       "there are both a.mcg and a.mul1"));
  for (const int64_t width : {0, 24, 144}) {
    EXPECT_TRUE(mentions(refused("exl3_4_mcg",
                                 [&](auto& all) {
                                   Entry& trellis = part(all, "trellis");
                                   trellis.spec.shape[2] = width;
                                   trellis.bytes.resize(static_cast<size_t>(8 * 8 * width * 2));
                                 }),
                         width == 24 ? "a.trellis of shape [8, 8, 24]" : "is none of EXL3"));
  }
}

// A file may name its settings itself where config.json has none; and be called what it likes.
TEST_F(QuantisedLayout, ReadsDirectoriesOfOtherPrograms) {
  const std::string config = slurp(golden("gptq_4") / "config.json");
  const size_t begin = config.find('{', 1);
  put("quantize_config.json", config.substr(begin, config.rfind('}') - begin));
  put("config.json", "{}");
  put("gptq_model-4bit-32g.safetensors", slurp(golden("gptq_4") / "model.safetensors"));
  const auto ops = make_test_ops();
  const SafetensorsSource expected(golden("gptq_4"));
  EXPECT_TRUE(same_bits(values_of(*SafetensorsSource(directory_).find("a.weight"), *ops),
                        values_of(*expected.find("a.weight"), *ops)));
  put("output-00002.safetensors", slurp(golden("gptq_4") / "model.safetensors"));
  EXPECT_TRUE(
      mentions(model_error([&] { SafetensorsSource source(directory_); }), "both have tensor a."));
}

// The file that AutoAWQ wrote first, and the form in which compressed-tensors wrote blocks first.
TEST_F(QuantisedLayout, ReadsOlderConfigurations) {
  const auto expect_values_of = [&](const char* name) {
    const SafetensorsSource expected(golden(name));
    EXPECT_TRUE(same_bits(loaded(), values_of(*expected.find("a.weight"), *make_test_ops())));
  };
  const char* blocks = "[\n      24,\n      40\n     ]";
  change_config("fp8_blocks", blocks, "\"24x40\"");
  expect_values_of("fp8_blocks");
  for (const char* bad : {"\"24x\"", "\"24\"", "\"\"", "\"axb\"", "\"24x40x1\""}) {
    EXPECT_TRUE(mentions(refused_config("fp8_blocks", blocks, bad), "block")) << bad;
  }
  write(entries("awq"));
  put("config.json", "{}");
  put("quant_config.json",
      R"({"zero_point": true, "q_group_size": 32, "w_bit": 4, "version": "GEMM"})");
  expect_values_of("awq");
  put("quant_config.json",
      R"({"zero_point": true, "q_group_size": 32, "w_bit": 3, "version": "GEMM"})");
  EXPECT_TRUE(mentions(load_error(), "quant_config.json: AWQ in 3 bits"));
}

TEST_F(QuantisedLayout, DamagedFilesAreErrors) {
  std::mt19937 random(5);
  for (const char* name : {"gptq_4_order", "awq", "exl2", "packed_4_order", "int_shared",
                           "fp8_blocks", "fp8_inverse", "fp4", "llm_int8", "exl3_7_mul1"}) {
    const std::string good = slurp(golden(name) / "model.safetensors");
    put("config.json", slurp(golden(name) / "config.json"));
    for (int i = 0; i < 250; ++i) {
      std::string bad = good;
      bad[random() % bad.size()] = static_cast<char>(random());
      put("model.safetensors", bad);
      try {
        const SafetensorsSource source(directory_);
        if (const StoredTensor* tensor = source.find("a.weight")) {
          values_of(*tensor, *make_test_ops());
        }
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::model) << error.what();
      }
    }
  }
}

TEST_F(QuantisedLayout, LoadingInFewBitsIsBitsandbytes) {
  const auto method = [&](const std::string& fields) {
    put("config.json", R"({"quantization_config": )" + fields + "}");
    return read_quantization_config(directory_).method;
  };
  EXPECT_EQ(method(R"({"load_in_4bit": true})"), "bitsandbytes");
  EXPECT_EQ(method(R"({"load_in_4bit": false, "load_in_8bit": true})"), "bitsandbytes");
  EXPECT_EQ(method(R"({"bits": 4, "group_size": 128})"), "gptq");
  EXPECT_EQ(method(R"({"quant_method": "awq", "load_in_4bit": false})"), "awq");
}

}  // namespace
}  // namespace jackscrew
