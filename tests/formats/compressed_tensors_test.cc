// compressed-tensors: what its configuration says of its layers, and how its codes lie.
#include <random>

#include "quant/packed_source.h"
#include "tests/formats/quantised_layouts.h"
#include "tests/quant/decode.h"

namespace jackscrew {
namespace {

class CompressedTensors : public QuantisedLayoutTest {
 protected:
  // Of 8 bits, [32, 96], with scales of three groups of columns.
  static std::vector<Entry> bytes_in_groups() {
    std::vector<Entry> bytes = entries("int"), packed = entries("packed_4");
    part(bytes, "weight_scale") = part(packed, "weight_scale");
    return bytes;
  }
};

// Three groups of 96 columns may be of 32 (`even`), or of 40, 40 and 16.
void expect_groups_of_40(const std::vector<float>& uneven, const std::vector<float>& even) {
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
}

// What config_groups say, as compressed-tensors writes them.
TEST_F(CompressedTensors, AreHeldToTheirConfiguration) {
  const auto with = [&](const char* name, const std::string& fields) {
    return refused_config(name, "\"ignore\"", fields + ", \"ignore\"");
  };
  const auto accept = [&](const char* name, const std::string& fields) {
    change_config(name, "\"ignore\"", fields + ", \"ignore\"");
    EXPECT_FALSE(loaded().empty());
  };
  // The bytes are the same: the size of groups is what a fingerprint tells them apart by.
  const auto settings = [&] { return SafetensorsSource(directory_).find("a.weight")->settings; };
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
  accept("packed_4", weights("\"actorder\": \"weight\", \"group_size\": 32"));
  const std::vector<float> even = loaded();
  EXPECT_EQ(settings(), "");
  accept("packed_4", weights("\"group_size\": 40"));
  EXPECT_EQ(settings(), "blocks of 1x40");
  expect_groups_of_40(loaded(), even);
  const auto change_fp8 = [&](int64_t size) {
    change_config("fp8_groups", "\"num_bits\"",
                  fmt::format("\"group_size\": {}, \"num_bits\"", size));
  };
  change_fp8(64);
  EXPECT_TRUE(mentions(load_error(), "96 columns do not divide into 3 groups of 64"));
  change_fp8(32);
  const std::vector<float> even_fp8 = loaded();
  EXPECT_EQ(settings(), "");
  change_fp8(40);
  EXPECT_EQ(settings(), "blocks of 1x40");
  expect_groups_of_40(loaded(), even_fp8);
  // A scale for each row is of no group.
  change_config("fp8_rows", "\"num_bits\"", "\"group_size\": 32, \"num_bits\"");
  EXPECT_FALSE(loaded().empty());
  // A group of layers that are stored otherwise says nothing of blocks.
  const SafetensorsSource blocks(golden("fp8_blocks"));
  change_config("fp8_blocks", "\"group_0\"",
                "\"other\": {\"weights\": {\"group_size\": null}}, \"group_0\"");
  EXPECT_TRUE(same_bits(loaded(), values_of(*blocks.find("a.weight"), *make_test_ops())));
}

// The opposite as well: what the tensors have and config_groups deny.
TEST_F(CompressedTensors, HaveNothingThatTheirConfigurationDenies) {
  const auto put_weights = [&](const std::string& fields, const std::string& more = "") {
    put("config.json", fmt::format(R"({{"quantization_config": {{"quant_method":
        "compressed-tensors", {}"config_groups": {{"g": {{"weights": {{{}}}}}}}}}}})",
                                   more, fields));
  };
  const auto refused_with = [&](const std::string& fields, const std::string& more = "") {
    put_weights(fields, more);
    return load_error();
  };
  const auto expect_read = [&](const std::string& fields, const std::string& more = "") {
    put_weights(fields, more);
    EXPECT_FALSE(loaded().empty()) << fields << more;
  };
  // Four groups, zeros and an order.
  std::vector<Entry> all = entries("packed_4_order");
  write(all);
  const std::vector<float> expected = [&] {
    put_weights(R"("symmetric": false, "actorder": "group")");
    return loaded();
  }();
  EXPECT_TRUE(mentions(refused_with(R"("symmetric": true, "actorder": "group")"),
                       "symmetric is true, but tensor a.weight_zero_point has other zeros"));
  for (const char* order : {"null", "false", "\"weight\"", "\"static\""}) {
    EXPECT_TRUE(mentions(refused_with(fmt::format(R"("actorder": {})", order)),
                         "actorder has columns in their own order, but tensor a.weight_g_idx"))
        << order;
  }
  for (const char* order : {"true", "\"GROUP\"", "\"dynamic\""}) {
    expect_read(fmt::format(R"("actorder": {})", order));
    EXPECT_TRUE(same_bits(loaded(), expected)) << order;
  }
  for (const char* strategy : {"channel", "tensor"}) {
    EXPECT_TRUE(mentions(refused_with(fmt::format(R"("strategy": "{}")", strategy)),
                         fmt::format("strategy is {}, but tensor a.weight_scale", strategy)));
  }
  expect_read(R"("strategy": "group", "group_size": 24)");
  // What says nothing else passes: zeros in the middle, columns in order.
  for (uint8_t& two : part(all, "weight_zero_point").bytes) two = 0x88;
  Entry& order = part(all, "weight_g_idx");
  for (size_t k = 0; k < 96; ++k) set(order, k, static_cast<int32_t>(k / 24));
  write(all);
  expect_read(R"("symmetric": true, "actorder": null, "strategy": "group", "group_size": 24)");
  set<int32_t>(order, 23, 1);
  write(all);
  EXPECT_TRUE(mentions(refused_with(R"("actorder": null)"), "but tensor a.weight_g_idx"));
  for (size_t k = 0; k < 96; ++k) set<int32_t>(order, k, -1);
  write(all);
  expect_read(R"("symmetric": true, "actorder": "weight")");
  // Formats of sparse weights, in both places; what others leave there passes.
  for (const char* format : {"marlin-24", "sparse-24-bitmask", "sparse-bitmask"}) {
    EXPECT_TRUE(mentions(refused_with("", fmt::format(R"("format": "{}", )", format)),
                         fmt::format("format {} is not read", format)));
    EXPECT_TRUE(mentions(
        refused_with("", fmt::format(R"("sparsity_config": {{"format": "{}"}}, )", format)),
        fmt::format("sparsity_config: format {} is not read", format)));
  }
  expect_read("", R"("format": "pack-quantized", "sparsity_config": {"format": "dense"}, )");
  expect_read("", R"("sparsity_config": {"format": "sparse-24-bitmask", "targets": []}, )");
  expect_read("", R"("format": "mixed-precision", "sparsity_config": {}, )");
  // Bytes, whose middle is 0, and FP8.
  std::vector<Entry> bytes = entries("int");
  Entry zero{{"a.weight_zero_point", "I8", {32, 1}}, std::vector<uint8_t>(32)};
  bytes.push_back(zero);
  write(bytes);
  expect_read(R"("symmetric": true, "strategy": "channel")");
  bytes.back().bytes[31] = 1;
  write(bytes);
  expect_read(R"("symmetric": false)");
  EXPECT_TRUE(mentions(refused_with(R"("symmetric": true)"), "has other zeros than the middle"));
  EXPECT_TRUE(
      mentions(refused_with(R"("strategy": "group", "group_size": 32)"),
               "strategy is group, but tensor a.weight_scale of shape [32, 1] has scales of "
               "whole rows"));
  write(entries("fp8_groups"));
  EXPECT_TRUE(mentions(refused_with(R"("strategy": "channel")"), "scales of groups of columns"));
  write(entries("fp8_rows"));
  expect_read(R"("strategy": "channel", "symmetric": true, "actorder": null)");
}

// As compressed-tensors packed before April 2025: codes, but no zeros.
TEST_F(CompressedTensors, HaveZerosAsBytesInOldFiles) {
  constexpr int64_t kAllRows = 32, kGroups = 4, kBits = 4;
  std::vector<Entry> all = entries("packed_4_order");
  const std::string config = slurp(golden("packed_4_order") / "config.json");
  write(all);
  put("config.json", config);
  const std::vector<float> expected = loaded();
  Entry& zeros = part(all, "weight_zero_point");
  Entry bytes{{zeros.spec.name, "I8", {kAllRows, kGroups}}, {}};
  for (int64_t row = 0; row < kAllRows; ++row) {
    for (int64_t group = 0; group < kGroups; ++group) {
      const uint32_t code = bits_at(zeros.bytes.data() + group * 4, kGroups, row, kBits);
      bytes.bytes.push_back(static_cast<uint8_t>(code - 8));
    }
  }
  zeros = bytes;
  write(all);
  EXPECT_TRUE(same_bits(loaded(), expected));
  for (const int8_t wrong : {int8_t{-9}, int8_t{8}}) {
    set(zeros, 1, wrong);
    write(all);
    EXPECT_TRUE(
        mentions(load_error(), fmt::format("a.weight_zero_point: {} for row 0 is no zero of 4 bits",
                                           static_cast<int>(wrong))));
  }
}

// Only what all config_groups say counts: with several sizes, a shorter group has none.
TEST_F(CompressedTensors, UnevenGroupsNeedASizeThatIsKnown) {
  const auto with_sizes = [&](const std::vector<int64_t>& sizes) {
    std::vector<Entry> all = entries("packed_4");
    Entry& scale = part(all, "weight_scale");
    scale.spec.shape[1] = 5;
    scale.bytes.resize(32 * 5 * sizeof(f16));
    write(all);
    std::string groups;
    for (const int64_t size : sizes) {
      groups += fmt::format(R"({}"{}": {{"weights": {{"group_size": {}}}}})",
                            groups.empty() ? "" : ", ", size, size);
    }
    put("config.json", fmt::format(R"({{"quantization_config": {{
        "quant_method": "compressed-tensors", "config_groups": {{{}}}}}}})",
                                   groups));
  };
  with_sizes({20});
  EXPECT_FALSE(loaded().empty());
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{20, 32}, {}}) {
    with_sizes(sizes);
    EXPECT_TRUE(mentions(
        load_error(), "a.weight_scale: 5 groups of 96 columns are of no size that config_groups"));
  }
}

// Older writers of pack-quantized leave bits of a word empty rather than divide a code.
TEST_F(CompressedTensors, CodesMayBeWholeInTheirWords) {
  constexpr int64_t rows = 32;
  constexpr int64_t cols = 96;
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
    all.push_back(packed("a.weight_packed", rows, cols, false));
    all.push_back(packed("a.weight_zero_point", kGroups, rows, true));
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

// Blocks of one row are groups of columns, of which the last may be shorter.
TEST_F(CompressedTensors, BlocksOfOneRowAreGroups) {
  const auto blocks = [](int64_t columns) {
    return fmt::format(
        R"("other": {{"weights": {{"strategy": "block", "block_structure": [1, {}]}}}})", columns);
  };
  const auto change = [&](const std::string& name, int64_t columns) {
    if (name == "int") {
      write(bytes_in_groups());
      put("config.json", R"({"quantization_config": {"quant_method": "compressed-tensors",
          "config_groups": {)" +
                             blocks(columns) + "}}}");
    } else {
      change_config(name, "\"group_0\"", blocks(columns) + ", \"group_0\"");
    }
  };
  for (const std::string name : {"int", "fp8_groups"}) {
    SCOPED_TRACE(name);
    change(name, 32);
    const std::vector<float> even = loaded();
    change(name, 40);
    expect_groups_of_40(loaded(), even);
    change(name, 64);
    EXPECT_TRUE(mentions(load_error(), "96 columns do not divide into 3 groups of 64"));
  }
}

// As older writers stored 8-bit weights, too.
TEST_F(CompressedTensors, BytesMayBeOrderedByGroup) {
  constexpr size_t kColumns = 96;
  const auto with_order = [](const std::vector<int32_t>& groups) {
    Entry entry{{"a.weight_g_idx", "I32", {std::ssize(groups)}}, {}};
    const auto* bytes = reinterpret_cast<const uint8_t*>(groups.data());
    entry.bytes.assign(bytes, bytes + groups.size() * sizeof(int32_t));
    return entry;
  };
  std::vector<int32_t> turning(kColumns);
  for (size_t k = 0; k < kColumns; ++k) turning[k] = static_cast<int32_t>(k % 3);
  std::vector<Entry> all = bytes_in_groups();
  const std::vector<uint8_t> codes = part(all, "weight").bytes;
  const std::vector<uint8_t> scales = part(all, "weight_scale").bytes;
  const auto expect_scales = [&](const auto& group_of) {
    const std::vector<float> values = loaded();
    for (size_t i = 0; i < values.size(); ++i) {
      f16 scale;
      const size_t index = i / kColumns * 3 + group_of(i % kColumns);
      std::memcpy(&scale, scales.data() + index * sizeof scale, sizeof scale);
      const auto code = static_cast<float>(static_cast<int8_t>(codes[i]));
      ASSERT_EQ(values[i], to_float(to_f16(code * to_float(scale)))) << i;  // rounded as a scale is
    }
  };
  write(all);
  put("config.json", slurp(golden("int") / "config.json"));
  expect_scales([](size_t column) { return column / 32; });
  all.push_back(with_order(turning));
  write(all);
  expect_scales([](size_t column) { return column % 3; });
  all.back() = with_order(std::vector<int32_t>(kColumns, -1));  // no order
  write(all);
  expect_scales([](size_t column) { return column / 32; });
  all.back() = with_order(std::vector<int32_t>(kColumns, 3));
  write(all);
  EXPECT_TRUE(mentions(load_error(), "weight_g_idx: group 3"));
  EXPECT_TRUE(mentions(
      refused_config("int", "\"ignore\"",
                     R"("config_groups": {"g": {"weights": {"actorder": "group"}}}, "ignore")"),
      "but tensor a.weight_g_idx is missing"));
  const auto of_fp8 = [&](int32_t group) {
    return refused("fp8_groups", [&](auto& parts) {
      parts.push_back(with_order(std::vector<int32_t>(kColumns, group)));
    });
  };
  EXPECT_TRUE(mentions(of_fp8(0), "a.weight_g_idx: columns of FP8 that are ordered by group"));
}

}  // namespace
}  // namespace jackscrew
