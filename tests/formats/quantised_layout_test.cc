#include "formats/quantised_layout.h"

#include <cmath>
#include <random>

#include "tests/formats/quantised_layouts.h"
#include "tests/quant/decode.h"
#include "tests/support/errors.h"

namespace jackscrew {
namespace {

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

TEST_F(QuantisedLayoutTest, RefusesOrdersThatAreNone) {
  EXPECT_TRUE(mentions(refused("exl2",
                               [](auto& all) {
                                 Entry& order = part(all, "q_invperm");
                                 int32_t first = 0;
                                 std::memcpy(&first, order.bytes.data(), sizeof first);
                                 set(order, 1, first);
                               }),
                       "q_invperm is not a permutation of 96 columns"));
  EXPECT_TRUE(
      mentions(refused("exl2", [](auto& all) { set<int32_t>(part(all, "q_invperm"), 0, 96); }),
               "q_invperm is not a permutation of 96 columns: 96"));
  for (const int32_t group : {3, -1}) {
    EXPECT_TRUE(
        mentions(refused("gptq_4_order", [&](auto& all) { set(part(all, "g_idx"), 5, group); }),
                 "g_idx: group"));
  }
  EXPECT_TRUE(mentions(
      refused("packed_4_order", [](auto& all) { set<int32_t>(part(all, "weight_g_idx"), 5, 4); }),
      "weight_g_idx: group 4"));
}

TEST_F(QuantisedLayoutTest, RefusesGroupsThatDoNotFit) {
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

TEST_F(QuantisedLayoutTest, RefusesPartsOfOtherShapes) {
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

// A plain weight beside a quantised one of the same layer.
TEST_F(QuantisedLayoutTest, RefusesALayerOfTwoWeights) {
  const auto refused_beside = [&](const char* name) {
    return refused(name, [](auto& all) {
      all.push_back({{"a.weight", "F32", {32, 96}}, std::vector<uint8_t>(32 * 96 * 4)});
    });
  };
  EXPECT_TRUE(mentions(refused_beside("gptq_4"), "there are both a.weight and a.qweight"));
  EXPECT_TRUE(mentions(refused_beside("exl2"), "there are both a.weight and a.q_weight"));
  EXPECT_TRUE(mentions(refused_beside("packed_4"), "both a.weight and a.weight_packed"));
}

TEST_F(QuantisedLayoutTest, RefusesSettingsItDoesNotRead) {
  EXPECT_TRUE(mentions(refused_config("gptq_4", "\"bits\": 4", "\"bits\": 5"), "GPTQ in 5 bits"));
  EXPECT_TRUE(
      mentions(refused_config("gptq_4", "\"gptq\"\n", "\"marlin\"\n"), "checkpoint_format marlin"));
  EXPECT_TRUE(
      mentions(refused_config("gptq_4", "\"bits\": 4", "\"dynamic\": {\"a\": {}}, \"bits\": 4"),
               "settings of single layers"));
  EXPECT_TRUE(mentions(
      refused_config("gptq_4", "\"bits\": 4",
                     R"("dynamic": {"-:.*lm_head.*": {}, "+:.*": {"bits": 8}}, "bits": 4)"),
      "settings of single layers"));
  EXPECT_TRUE(mentions(refused_config("gptq_4", "\"group_size\": 32", "\"group_size\": 0"),
                       "group_size is 0"));
  EXPECT_TRUE(mentions(refused_config("gptq_4", "\"bits\": 4", "\"bits\": 8"), "scales is F16"));
  EXPECT_TRUE(mentions(refused_config("awq", "gemm", "gemv"), "version gemv"));
  EXPECT_TRUE(mentions(refused_config("awq", "\"bits\": 4", "\"bits\": 3"), "AWQ in 3 bits"));
}

// GPTQModel's "-:" leaves layers plain.
TEST_F(QuantisedLayoutTest, ReadsLayersBesideThoseThatStayPlain) {
  for (const char* dynamic : {"{}", R"({"-:.*lm_head.*": {}})"}) {
    change_config("gptq_4", "\"bits\": 4", fmt::format(R"("dynamic": {}, "bits": 4)", dynamic));
    EXPECT_FALSE(loaded().empty()) << dynamic;
  }
}

// transformers 5 has `format` for GPTQ's checkpoint_format and for AWQ's version.
TEST_F(QuantisedLayoutTest, ReadsTheFormatByEitherName) {
  const SafetensorsSource source(golden("gptq_2_v2"));
  const std::vector<float> expected = values_of(*source.find("a.weight"), *make_test_ops());
  for (const char* setting : {"\"format\": \"gptq_v2\"", "\"format\": \"GPTQ_V2\"",
                              "\"checkpoint_format\": \"gptq_v2\", \"format\": \"GPTQ_V2\""}) {
    change_config("gptq_2_v2", "\"checkpoint_format\": \"gptq_v2\"", setting);
    EXPECT_TRUE(same_bits(loaded(), expected)) << setting;
  }
  change_config("awq", "\"version\"", "\"format\"");
  EXPECT_FALSE(loaded().empty());
  EXPECT_TRUE(mentions(refused_config("awq", "\"version\": \"gemm\"", "\"format\": \"gemv\""),
                       "version gemv"));
}

// GPTQModel takes `format`, transformers the older name: zeros would differ by one.
TEST_F(QuantisedLayoutTest, RefusesTwoFormats) {
  for (const auto& [newer, older] : {std::pair("gptq_v2", "gptq"), {"gptq", "gptq_v2"}}) {
    EXPECT_TRUE(mentions(
        refused_config(
            "gptq_2_v2", "\"checkpoint_format\": \"gptq_v2\"",
            fmt::format("\"checkpoint_format\": \"{}\", \"format\": \"{}\"", older, newer)),
        fmt::format("format is {}, but checkpoint_format is {}", newer, older)));
  }
  EXPECT_TRUE(mentions(
      refused_config("awq", "\"version\": \"gemm\"", "\"version\": \"gemm\", \"format\": \"gemv\""),
      "format is gemv, but version is gemm"));
  change_config("awq", "\"version\": \"gemm\"", "\"version\": \"GEMM\", \"format\": \"gemm\"");
  EXPECT_FALSE(loaded().empty());
}

TEST_F(QuantisedLayoutTest, AsksForTheConfigurationThatIsMissing) {
  for (const auto& [name, marker] : {std::pair("gptq_4", "a.qweight"),
                                     {"awq", "a.qweight"},
                                     {"fp8_inverse", "a.weight_scale_inv"}}) {
    write(entries(name));
    put("config.json", "{}");
    const SafetensorsSource source(directory_);
    EXPECT_EQ(source.names(), std::vector<std::string>{"a.weight"});
    const std::string error = error_of(ErrorKind::model, [&] { source.find("a.weight"); });
    EXPECT_TRUE(mentions(error, fmt::format("tensor {} is of a quantised weight", marker)));
    EXPECT_TRUE(mentions(hint_of(error), "quantization_config is missing from config.json"));
  }
  put("config.json", "{}");
  write(entries("packed_4"));  // whose tensors say it
  EXPECT_FALSE(loaded().empty());
}

TEST_F(QuantisedLayoutTest, RefusesTensorsOfAnotherMethod) {
  const auto with_method = [&](const char* name, const char* method) {
    write(entries(name));
    put("config.json",
        fmt::format(R"({{"quantization_config": {{"quant_method": "{}", "bits": 4}}}})", method));
  };
  const struct {
    const char *name, *method, *message;
  } kCases[] = {
      {"packed_4", "gptq", "quant_method is gptq, but tensor a.weight_packed is of compressed"},
      {"fp4", "gptq", "but tensor a.weight.quant_state.bitsandbytes__fp4 is of bitsandbytes"},
      {"exl2", "awq", "quant_method is awq, but tensor a.q_weight is of exl2"},
      {"int", "bitsandbytes", "but tensor a.weight_scale is of compressed-tensors"}};
  for (const auto& expected : kCases) {
    with_method(expected.name, expected.method);
    EXPECT_TRUE(mentions(load_error(), expected.message)) << expected.name;
  }
  with_method("fp8_rows", "fp8");
  EXPECT_FALSE(loaded().empty());
  put("config.json", R"({"quantization_config": {"bits": 4}})");  // names none
  EXPECT_FALSE(loaded().empty());
}

TEST_F(QuantisedLayoutTest, RefusesFloatsAndBytesItCannotRead) {
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

TEST_F(QuantisedLayoutTest, RefusesTrellisesThatAreNone) {
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
TEST_F(QuantisedLayoutTest, ReadsDirectoriesOfOtherPrograms) {
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
TEST_F(QuantisedLayoutTest, ReadsOlderConfigurations) {
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

TEST_F(QuantisedLayoutTest, DamagedFilesAreErrors) {
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

TEST_F(QuantisedLayoutTest, LoadingInFewBitsIsBitsandbytes) {
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
