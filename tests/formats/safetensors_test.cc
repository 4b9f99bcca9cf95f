#include "formats/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "tests/formats/support.h"
#include "tests/support/errors.h"
#include "tests/support/resource_limit.h"
#include "tests/support/sanitizer.h"

namespace jackscrew {
namespace {

using nlohmann::json;

std::vector<uint8_t> pattern(size_t size, uint8_t first = 1) {
  std::vector<uint8_t> out(size);
  for (size_t i = 0; i < size; ++i) out[i] = static_cast<uint8_t>(first + i);
  return out;
}

// A file with this header and `data_bytes` bytes of data.
std::string with_header(const std::string& header, size_t data_bytes) {
  std::string out(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(out.data(), &size, 8);
  return out + header + std::string(data_bytes, 'x');
}

class Safetensors : public FormatsTest {
 protected:
  std::string refused(const std::string& bytes) const {
    const fs::path path = put("bad.safetensors", bytes);
    const std::string text = model_error([&] { SafetensorsFile file(path); });
    EXPECT_TRUE(mentions(text, "bad.safetensors"));
    return text;
  }
  std::string refused_header(const std::string& header, size_t data_bytes = 8) const {
    return refused(with_header(header, data_bytes));
  }
};

TEST_F(Safetensors, RoundTrips) {
  const fs::path path = directory_ / "a.safetensors";
  const std::vector<uint8_t> w = pattern(24), b = pattern(6, 100), s = pattern(8, 200);
  Crc32c crc;
  SafetensorsWriter writer(
      path, {{"w", "F32", {2, 3}}, {"none", "F32", {0, 4}}, {"b", "BF16", {3}}, {"s", "I64", {}}},
      &crc);
  writer.write("w", std::span(w).first(5));
  writer.write("w", std::span(w).subspan(5));
  writer.write("none", {});
  writer.write("b", b);
  writer.write("s", s);
  writer.close();
  EXPECT_EQ(crc.value(), crc32c(slurp(path)));

  const SafetensorsFile file(path);
  ASSERT_EQ(file.entries().size(), 4u);
  EXPECT_TRUE(mentions(slurp(path), R"("__metadata__":{"format":"pt"})"));
  const SafetensorsEntry* entry = file.find("w");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->dtype, "F32");
  EXPECT_EQ(entry->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(std::ranges::equal(entry->bytes, w));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(entry->bytes.data()) % 8, 0u);
  EXPECT_TRUE(file.find("none")->bytes.empty());
  EXPECT_TRUE(std::ranges::equal(file.find("b")->bytes, b));
  EXPECT_TRUE(file.find("s")->shape.empty());
  EXPECT_TRUE(std::ranges::equal(file.find("s")->bytes, s));
  EXPECT_EQ(file.find("x"), nullptr);
  file.release(entry->bytes);
  EXPECT_TRUE(std::ranges::equal(entry->bytes, w));  // pages come back from the file
}

// Files of earlier versions have the same bytes: members by name, escaped as nlohmann's are.
TEST_F(Safetensors, HeaderHasTheBytesOfItsTree) {
  const fs::path path = directory_ / "a.safetensors";
  const std::vector<SafetensorsSpec> specs = {
      {"w\"\\\n", "F32", {2, 3}}, {"\xC3\xA9", "U8", {}}, {"\xFF\x01", "BF16", {1}},
      {"none", "I64", {0, 4}},    {"Z", "F32", {1}},      {"layers.10", "U8", {123456}}};
  for (const SafetensorsMetadata& metadata :
       {SafetensorsMetadata{}, SafetensorsMetadata{{"\xC3\xBC\"", "\x01\xFF"}, {"a", ""}},
        SafetensorsMetadata{{"format", "other"}}}) {
    json header;
    header["__metadata__"]["format"] = "pt";
    for (const auto& [key, text] : metadata) header["__metadata__"][key] = text;
    const std::vector<int64_t> ends = {24, 25, 27, 27, 31, 123487};
    int64_t begin = 0;
    for (size_t i = 0; i < specs.size(); ++i) {
      json& member = header[specs[i].name];
      member["dtype"] = specs[i].dtype;
      member["shape"] = specs[i].shape;
      member["data_offsets"] = {begin, ends[i]};
      begin = ends[i];
    }
    std::string text = header.dump(-1, ' ', false, json::error_handler_t::replace);
    text.resize((text.size() + 7) / 8 * 8, ' ');
    Crc32c crc;
    SafetensorsWriter writer(path, specs, &crc, metadata);
    std::string data;
    for (size_t i = 0; i < specs.size(); ++i) {
      const auto size = static_cast<size_t>(bytes_of({specs[i]}));
      writer.write(specs[i].name, std::vector<uint8_t>(size, 'x'));
      data += std::string(size, 'x');
    }
    writer.close();
    EXPECT_EQ(slurp(path), with_header(text, 0) + data);
    EXPECT_EQ(crc.value(), crc32c(slurp(path)));
    EXPECT_EQ(safetensors_bytes(specs, metadata), static_cast<int64_t>(fs::file_size(path)));
  }
}

TEST_F(Safetensors, WriterRefusesMisuse) {
  const auto message = [](const auto& action) {
    return message_of(error_of(ErrorKind::generic, action));
  };
  const fs::path path = directory_ / "a.safetensors";
  using Specs = std::vector<SafetensorsSpec>;
  const Specs two = {{"a", "U8", {4}}, {"b", "U8", {4}}};
  const std::vector<uint8_t> four = pattern(4), five = pattern(5);
  EXPECT_TRUE(
      mentions(message([&] { SafetensorsWriter(path, two).write("b", four); }), "a is due"));
  EXPECT_TRUE(mentions(message([&] { SafetensorsWriter(path, two).write("a", five); }), "lacks 4"));
  EXPECT_TRUE(mentions(message([&] { SafetensorsWriter(path, two).close(); }), "a lacks 4 bytes"));
  EXPECT_TRUE(mentions(message([&] {
                         SafetensorsWriter writer(path, {{"a", "U8", {4}}});
                         writer.write("a", four);
                         writer.write("a", four);
                       }),
                       "nothing more is due"));
  const auto declare = [&](const Specs& specs) {
    return message([&] { SafetensorsWriter writer(path, specs); });
  };
  EXPECT_TRUE(mentions(declare({{"a", "F12", {4}}}), "F12"));
  EXPECT_TRUE(mentions(declare({{"a", "U8", {-4}}}), "[-4]"));
  EXPECT_TRUE(mentions(declare({{"a", "U8", {4}}, {"a", "U8", {4}}}), "declared twice"));
  EXPECT_TRUE(mentions(declare({{"__metadata__", "U8", {4}}}), "reserved"));
  EXPECT_TRUE(mentions(declare({{"a", "F64", {int64_t{1} << 61}}}), "overflow"));
}

TEST_F(Safetensors, NamesWhatIsWrongWithAHeader) {
  EXPECT_TRUE(mentions(refused(""), "too few"));
  EXPECT_TRUE(mentions(refused("1234567"), "too few"));
  EXPECT_TRUE(mentions(refused(std::string(16, '\xFF')), "more than the 100000000"));
  EXPECT_TRUE(mentions(refused(std::string("\x09\0\0\0\0\0\0\0{}", 10)), "header of 9 bytes"));
  EXPECT_TRUE(mentions(refused(std::string(8, '\0')), "not a JSON object"));
  EXPECT_TRUE(mentions(refused_header("[]"), "not a JSON object"));
  EXPECT_TRUE(mentions(refused_header("{\"a\""), "not valid JSON"));
  EXPECT_TRUE(mentions(refused_header("{}"), "8 bytes after the last tensor"));
  EXPECT_TRUE(mentions(refused_header(R"({"__metadata__":{"a":1}})"), "\"a\" is not a string"));
  EXPECT_TRUE(mentions(refused_header(R"({"__metadata__":[]})"), "not an object"));
  EXPECT_TRUE(mentions(refused_header(R"({"t":5})"), "tensor t: not a JSON object"));
  EXPECT_TRUE(mentions(refused_header(R"({"t":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
                         "t":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})"),
                       "\"t\" appears twice"));

  const auto one = [&](const char* dtype, const char* shape, const char* offsets) {
    return refused_header(fmt::format(R"({{"t":{{"dtype":{},"shape":{},"data_offsets":{}}}}})",
                                      dtype, shape, offsets));
  };
  EXPECT_TRUE(mentions(one("\"F4\"", "[-8]", "[0,8]"), "F4 [-8] does not take"));
  EXPECT_TRUE(mentions(one("\"F4\"", "[18]", "[0,9]"), "outside the file's 8 bytes"));
  EXPECT_TRUE(mentions(one("7", "[8]", "[0,8]"), "\"dtype\" is not a string"));
  EXPECT_TRUE(mentions(one("\"U8\"", "8", "[0,8]"), "must be lists"));
  EXPECT_TRUE(mentions(one("\"U8\"", "[8]", "8"), "must be lists"));
  EXPECT_TRUE(mentions(one("\"U8\"", "[8.0]", "[0,8]"), "\"shape\" is not a list of integers"));
  EXPECT_TRUE(mentions(one("\"U8\"", "[7]", "[0,8]"), "U8 [7] does not take 8 bytes"));
  EXPECT_TRUE(mentions(one("\"F32\"", "[8]", "[0,8]"), "F32 [8] does not take 8 bytes"));
  EXPECT_TRUE(mentions(one("\"U8\"", "[-8]", "[0,8]"), "does not take"));
  EXPECT_TRUE(mentions(one("\"U8\"", "[4294967296,4294967296,0]", "[0,8]"), "does not take"));
  EXPECT_TRUE(mentions(one("\"U8\"", "[4294967296,4294967304]", "[0,8]"), "does not take"));
  EXPECT_TRUE(mentions(one("\"U8\"", "[9]", "[0,9]"), "outside the file's 8 bytes"));
  EXPECT_TRUE(mentions(one("\"U8\"", "[8]", "[-1,7]"), "outside"));
  EXPECT_TRUE(mentions(one("\"U8\"", "[8]", "[8,0]"), "outside"));
  EXPECT_TRUE(mentions(one("\"U8\"", "[8]", "[0,8,8]"), "outside"));
  EXPECT_TRUE(mentions(one("\"U8\"", "[8]", "[18446744073709551608,8]"), "data_offsets"));

  const auto two = [&](const char* first, const char* second) {
    return refused_header(fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":{}}},
                                          "b":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})",
                                      first, second),
                          10);
  };
  EXPECT_TRUE(mentions(two("[0,4]", "[2,6]"), "tensor b overlaps"));
  EXPECT_TRUE(mentions(two("[0,4]", "[6,10]"), "tensor b leaves a hole"));
  EXPECT_TRUE(mentions(two("[4,8]", "[0,4]"), "2 bytes after the last tensor"));
}

// Dtypes of tomorrow are in nobody's way who does not need the tensor.
TEST_F(Safetensors, RefusesAnUnknownDtypeOnlyWhereItIsNeeded) {
  put("model.safetensors", with_header(R"({"new":{"dtype":"F4","shape":[2,4],"data_offsets":[0,4]},
                      "old":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                                       8));
  const SafetensorsSource source(directory_);
  EXPECT_EQ(source.names(), (std::vector<std::string>{"new", "old"}));
  ASSERT_NE(source.find("old"), nullptr);
  EXPECT_EQ(source.find("old")->bytes.size(), 4u);
  EXPECT_TRUE(mentions(model_error([&] { source.find("new"); }),
                       "tensor new is of dtype F4, which weights cannot be read from"));
}

TEST_F(Safetensors, SurvivesDamage) {
  const fs::path path = directory_ / "good.safetensors";
  const std::vector<uint8_t> bytes = pattern(96);
  SafetensorsWriter writer(path, {{"w", "F32", {4, 6}}, {"b", "BF16", {48}}});
  writer.write("w", bytes);
  writer.write("b", bytes);
  writer.close();
  const std::string good = slurp(path);
  damage(directory_ / "bad.safetensors", good, good.size() - 2 * 96, [](const fs::path& bad) {
    const SafetensorsFile file(bad);
    for (const SafetensorsEntry& entry : file.entries()) {
      EXPECT_TRUE(file.holds(entry.bytes));
      file.find(entry.name);
    }
  });
}

TEST_F(Safetensors, WritesOneFileWhenItFits) {
  ShardedSafetensorsWriter writer(directory_, {{"a", "U8", {4}}, {"b", "U8", {4}}}, 8);
  writer.write("a", pattern(4));
  writer.write("b", pattern(4));
  writer.close();
  EXPECT_TRUE(fs::exists(directory_ / "model.safetensors"));
  EXPECT_FALSE(fs::exists(directory_ / "model.safetensors.index.json"));
  EXPECT_EQ(SafetensorsSource(directory_).names(), (std::vector<std::string>{"a", "b"}));
}

class Sharded : public Safetensors {
 protected:
  Sharded() {
    // "big" is larger than a shard; "empty" needs no bytes.
    ShardedSafetensorsWriter writer(directory_, tensors_, 8);
    writer.write("a", pattern(4));
    writer.write("b", pattern(4, 10));
    writer.write("big", std::span<const uint8_t>(pattern(24, 20)).first(20));
    writer.write("big", std::span<const uint8_t>(pattern(24, 20)).last(4));
    writer.write("ids", pattern(4, 60));
    writer.write("last", pattern(8, 80));
    writer.close();
  }
  const std::vector<SafetensorsSpec> tensors_ = {{"a", "F16", {2}},       {"b", "F32", {1}},
                                                 {"big", "BF16", {3, 4}}, {"ids", "I32", {1}},
                                                 {"empty", "F32", {0}},   {"last", "F32", {2}}};
  std::string refused_index(const json& weight_map) const {
    put("model.safetensors.index.json", json{{"weight_map", weight_map}}.dump());
    return model_error([&] { SafetensorsSource source(directory_); });
  }
};

TEST_F(Sharded, WritesShardsWithAnIndex) {
  EXPECT_FALSE(fs::exists(directory_ / "model.safetensors"));
  const json index = json::parse(slurp(directory_ / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 44);
  EXPECT_EQ(index["weight_map"], (json{{"a", "model-00001-of-00004.safetensors"},
                                       {"b", "model-00001-of-00004.safetensors"},
                                       {"big", "model-00002-of-00004.safetensors"},
                                       {"ids", "model-00003-of-00004.safetensors"},
                                       {"empty", "model-00003-of-00004.safetensors"},
                                       {"last", "model-00004-of-00004.safetensors"}}));
  for (int i = 1; i <= 4; ++i) {
    SafetensorsFile(directory_ / fmt::format("model-{:05}-of-00004.safetensors", i));
  }
}

// Codes and what decodes them: readers look for all of a weight in one file.
TEST_F(Sharded, KeepsTensorsOfAWeightTogether) {
  std::vector<SafetensorsSpec> specs = {{"first", "U8", {5}}};
  append_joined({{"w", "U8", {4}}, {"w.absmax", "U8", {2}}}, specs);
  append_joined({{"v", "U8", {9}}, {"v.absmax", "U8", {2}}}, specs);
  fs::create_directory(directory_ / "joined");
  ShardedSafetensorsWriter writer(directory_ / "joined", specs, 8);
  for (const SafetensorsSpec& spec : specs) {
    writer.write(spec.name, pattern(static_cast<size_t>(spec.shape[0])));
  }
  writer.close();
  const json index = json::parse(slurp(directory_ / "joined/model.safetensors.index.json"));
  EXPECT_EQ(index["weight_map"], (json{{"first", "model-00001-of-00003.safetensors"},
                                       {"w", "model-00002-of-00003.safetensors"},
                                       {"w.absmax", "model-00002-of-00003.safetensors"},
                                       {"v", "model-00003-of-00003.safetensors"},
                                       {"v.absmax", "model-00003-of-00003.safetensors"}}));
}

TEST_F(Sharded, BytesAreKnownBefore) {
  uintmax_t bytes = 0, largest = 0;
  for (const auto& entry : fs::directory_iterator(directory_)) {
    bytes += entry.file_size();
    largest = std::max(largest, entry.file_size());
  }
  const FileSizes sizes = ShardedSafetensorsWriter::sizes(tensors_, 8);
  EXPECT_EQ(sizes.all, static_cast<int64_t>(bytes));
  EXPECT_EQ(sizes.largest, static_cast<int64_t>(largest));
  fs::create_directory(directory_ / "whole");
  ShardedSafetensorsWriter whole(directory_ / "whole", {{"a", "U8", {3}}});
  whole.write("a", pattern(3));
  whole.close();
  EXPECT_EQ(ShardedSafetensorsWriter::sizes({{"a", "U8", {3}}}).all,
            static_cast<int64_t>(fs::file_size(directory_ / "whole/model.safetensors")));
}

TEST_F(Sharded, SourceFindsEveryTensor) {
  const SafetensorsSource source(directory_);
  EXPECT_EQ(source.names(), (std::vector<std::string>{"a", "b", "big", "empty", "ids", "last"}));
  const StoredTensor* big = source.find("big");
  ASSERT_NE(big, nullptr);
  EXPECT_EQ(big->name, "big");
  EXPECT_STREQ(big->format->name(), "bf16");
  EXPECT_EQ(big->shape, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(big->interleaved_heads, 0);
  EXPECT_TRUE(std::ranges::equal(big->bytes, pattern(24, 20)));
  EXPECT_STREQ(source.find("a")->format->name(), "f16");
  EXPECT_STREQ(source.find("last")->format->name(), "f32");
  EXPECT_EQ(source.find("missing"), nullptr);
  source.release(*big);
  EXPECT_TRUE(std::ranges::equal(big->bytes, pattern(24, 20)));
  const std::string text = model_error([&] { source.find("ids"); });
  EXPECT_TRUE(mentions(text, "tensor ids is of dtype I32"));
  EXPECT_TRUE(mentions(text, "model-00003-of-00004.safetensors"));
}

// ExLlamaV2 copies the index of the model that it rounds.
TEST_F(Safetensors, ReadsFilesBesideTheIndexOfAnotherModel) {
  const json index = {{"weight_map", {{"a", "model-00001-of-00002.safetensors"}}}};
  put("model.safetensors.index.json", index.dump());
  const auto write = [&](const char* file, const char* tensor) {
    SafetensorsWriter writer(directory_ / file, {{tensor, "F32", {1}}});
    writer.write(tensor, pattern(4));
    writer.close();
  };
  write("output-00001-of-00002.safetensors", "b");
  write("output-00002-of-00002.safetensors", "c");
  EXPECT_EQ(SafetensorsSource(directory_).names(), (std::vector<std::string>{"b", "c"}));
  // Where a shard is there, it is what is meant; where another is, something went wrong.
  write("model-00002-of-00002.safetensors", "d");
  EXPECT_TRUE(mentions(model_error([&] { SafetensorsSource source(directory_); }),
                       "shard model-00001-of-00002.safetensors is missing"));
  write("model-00001-of-00002.safetensors", "a");
  EXPECT_EQ(SafetensorsSource(directory_).names(), std::vector<std::string>{"a"});
}

// Beside shards, Mistral publishes the same weights in files of its own, and PEFT puts an adapter.
TEST_F(Safetensors, OtherWeightsBesideAnIndexMakeNoShardDispensable) {
  const json index = {{"weight_map", {{"a", "model-00001-of-00002.safetensors"}}}};
  put("model.safetensors.index.json", index.dump());
  for (const char* name : {"consolidated.safetensors", "consolidated-00001-of-00002.safetensors",
                           "adapter_model.safetensors"}) {
    SCOPED_TRACE(name);
    SafetensorsWriter writer(directory_ / name, {{"b", "F32", {1}}});
    writer.write("b", pattern(4));
    writer.close();
    EXPECT_TRUE(mentions(model_error([&] { SafetensorsSource source(directory_); }),
                         "shard model-00001-of-00002.safetensors is missing"));
    fs::remove(directory_ / name);
  }
}

TEST_F(Sharded, SourceNamesWhatIsMissing) {
  EXPECT_TRUE(mentions(refused_index({{"a", "model-00009.safetensors"}}),
                       "shard model-00009.safetensors is missing"));
  EXPECT_TRUE(mentions(refused_index({{"zz", "model-00001-of-00004.safetensors"}}),
                       "tensor zz is not in shard model-00001-of-00004.safetensors"));
  EXPECT_TRUE(mentions(refused_index({{"a", "../model.safetensors"}}), "tensor a"));
  EXPECT_TRUE(mentions(refused_index({{"a", ".."}}), "tensor a"));
  EXPECT_TRUE(mentions(refused_index({{"a", std::string("model\0x", 7)}}), "tensor a"));
  EXPECT_TRUE(mentions(refused_index({{"a", 1}}), "tensor a"));
  EXPECT_TRUE(mentions(refused_index("a"), "weight_map"));
  fs::create_directory(directory_ / "empty");
  EXPECT_TRUE(mentions(model_error([&] { SafetensorsSource source(directory_ / "empty"); }),
                       "neither model.safetensors nor"));
}

TEST_F(Safetensors, ADirectoryThatCannotBeListedIsNamed) {
  if (kSanitized) GTEST_SKIP() << "UndefinedBehaviorSanitizer needs a descriptor, too";
  const ResourceLimit none(RLIMIT_NOFILE, 0);
  expect_message(ErrorKind::generic, "cannot list " + directory_.string() + ": ",
                 [&] { SafetensorsSource source(directory_); });
}

}  // namespace
}  // namespace jackscrew
