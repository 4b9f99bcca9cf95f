#include "formats/gguf.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>

#include "quant/format.h"
#include "tests/formats/gguf_sample.h"
#include "tests/support/resource_limit.h"
#include "tests/support/sanitizer.h"

namespace jackscrew {
namespace {

TEST_F(Gguf, IsNoPipe) {
  const fs::path pipe = directory_ / "pipe.gguf";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  // Whoever reads it finds the beginning of a GGUF file, rather than waiting for it.
  const int end = ::open(pipe.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(end, 0);
  EXPECT_EQ(::write(end, "GGUF", 4), 4);
  EXPECT_FALSE(is_gguf_file(pipe));
  ::close(end);
  EXPECT_FALSE(is_gguf_file(directory_));
  EXPECT_TRUE(is_gguf_file(put("a.gguf", GgufBuilder().build())));
}

TEST_F(Gguf, IsUnknownWhereTheSystemRefuses) {
  const fs::path link = directory_ / "link.gguf";
  fs::create_symlink(link, link);
  expect_message(ErrorKind::generic, "cannot look at " + link.string(),
                 [&] { is_gguf_file(link); });
  EXPECT_FALSE(is_gguf_file(directory_ / "missing"));
  EXPECT_FALSE(is_gguf_file(put("short", "GG")));
}

// However large a file is, it need not fit anywhere.
TEST_F(Gguf, IsToldByItsBeginning) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs address space without end";
  const fs::path large = put("large.gguf", "GGUF");
  fs::resize_file(large, uintmax_t{1} << 40);
  const ResourceLimit limit(RLIMIT_AS, rlim_t{64} << 30);
  EXPECT_TRUE(is_gguf_file(large));
}

TEST_F(Gguf, ReadsEveryTypeOfValue) {
  GgufBuilder builder;
  builder.entry("u8", GgufType::u8, GgufBuilder::raw<uint8_t>(200));
  builder.entry("i8", GgufType::i8, GgufBuilder::raw<int8_t>(-100));
  builder.entry("u16", GgufType::u16, GgufBuilder::raw<uint16_t>(60000));
  builder.entry("i16", GgufType::i16, GgufBuilder::raw<int16_t>(-30000));
  builder.u32("u32", 4000000000u);
  builder.entry("i32", GgufType::i32, GgufBuilder::raw<int32_t>(-2000000000));
  builder.entry("u64", GgufType::u64, GgufBuilder::raw<uint64_t>(uint64_t{1} << 62));
  builder.entry("huge", GgufType::u64, GgufBuilder::raw<uint64_t>(uint64_t{1} << 63));
  builder.entry("i64", GgufType::i64, GgufBuilder::raw<int64_t>(-(int64_t{1} << 62)));
  builder.f32("f32", 1e-5f);
  builder.entry("f64", GgufType::f64, GgufBuilder::raw<double>(0.1));
  builder.boolean("yes", true);
  builder.text("text", "hello");
  builder.text("blank", "");
  builder.texts("texts", {"x", "", "yz"});
  builder.texts("no texts", {});
  builder.array<int16_t>("i16s", GgufType::i16, {-1, 2});
  builder.array<double>("f64s", GgufType::f64, {0.5, 1.5});
  builder.array<uint8_t>("bools", GgufType::boolean, {1, 0});
  for (const uint32_t version : {2u, 3u}) {
    builder.version = version;
    const GgufFile file(put("a.gguf", builder.build()));
    EXPECT_EQ(file.integer("u8"), 200);
    EXPECT_EQ(file.integer("i8"), -100);
    EXPECT_EQ(file.integer("u16"), 60000);
    EXPECT_EQ(file.integer("i16"), -30000);
    EXPECT_EQ(file.integer("u32"), 4000000000);
    EXPECT_EQ(file.integer("i32"), -2000000000);
    EXPECT_EQ(file.integer("u64"), int64_t{1} << 62);
    EXPECT_EQ(file.integer("i64"), -(int64_t{1} << 62));
    EXPECT_EQ(file.number("f32"), 1e-5);
    EXPECT_EQ(file.number("f64"), 0.1);
    EXPECT_EQ(file.number("u8"), 200.0);
    EXPECT_TRUE(file.boolean("yes"));
    EXPECT_EQ(file.text("text"), "hello");
    EXPECT_EQ(file.text("blank"), "");
    EXPECT_EQ(file.texts("texts"), (std::vector<std::string>{"x", "", "yz"}));
    EXPECT_TRUE(file.texts("no texts").empty());
    EXPECT_EQ(file.integers("i16s"), (std::vector<int64_t>{-1, 2}));
    EXPECT_EQ(file.numbers("f64s"), (std::vector<double>{0.5, 1.5}));
    EXPECT_EQ(file.type("bools"), GgufType::array);
    EXPECT_EQ(file.keys().size(), 19u);
    EXPECT_EQ(file.type("i16s"), GgufType::array);
    EXPECT_EQ(file.type("none"), std::nullopt);

    EXPECT_EQ(file.integer("none", 7), 7);
    EXPECT_EQ(file.text("none", "x"), "x");
    EXPECT_TRUE(file.integers("none").empty());
    EXPECT_TRUE(mentions(model_error([&] { file.integer("none"); }), "none is missing"));
    EXPECT_TRUE(mentions(model_error([&] { file.integer("huge"); }), "huge = 9223372036854775808"));
    EXPECT_TRUE(mentions(model_error([&] { file.integer("f32"); }), "f32 is not an integer"));
    EXPECT_TRUE(mentions(model_error([&] { file.integer("text", 1); }), "not an integer"));
    EXPECT_TRUE(mentions(model_error([&] { file.number("text"); }), "text is not a number"));
    EXPECT_TRUE(mentions(model_error([&] { file.number("f64s"); }), "f64s is not a number"));
    EXPECT_TRUE(mentions(model_error([&] { file.boolean("u8"); }), "u8 is not a boolean"));
    EXPECT_TRUE(mentions(model_error([&] { file.text("texts"); }), "texts is not a string"));
    EXPECT_TRUE(mentions(model_error([&] { file.texts("text"); }), "text is not an array"));
    EXPECT_TRUE(mentions(model_error([&] { file.texts("i16s"); }), "not an array of strings"));
    EXPECT_TRUE(mentions(model_error([&] { file.integers("texts"); }), "not an integer"));
  }
}

TEST_F(Gguf, ReadsTensorsAtTheirAlignment) {
  GgufBuilder builder;
  builder.alignment = 256;
  builder.u32("general.alignment", 256);
  builder.tensor("one", kF32, {3}, std::string(12, 'a'));
  builder.tensor("two", kQ8_0, {32, 2, 3}, std::string(6 * 34, 'b'));
  builder.tensor("odd", kQ8_K, {256}, std::string(292, 'c'));
  const GgufFile file(put("a.gguf", builder.build()));
  const GgufTensor* two = file.find("two");
  ASSERT_NE(two, nullptr);
  EXPECT_EQ(two->shape, (std::vector<int64_t>{3, 2, 32}));
  EXPECT_EQ(two->format, "q8_0");
  EXPECT_EQ(two->offset % 256, 0);
  EXPECT_EQ(two->bytes.size(), 6u * 34);
  EXPECT_EQ(two->bytes[0], 'b');
  EXPECT_EQ(file.find("odd")->format, "");
  EXPECT_TRUE(file.find("odd")->bytes.empty());
  EXPECT_EQ(file.find("three"), nullptr);
  EXPECT_EQ(ggml_type_name(kQ8_K), "Q8_K");
  EXPECT_EQ(ggml_type_name(30), "BF16");
  EXPECT_EQ(ggml_type_name(4), "type 4");
  EXPECT_EQ(ggml_type_name(99), "type 99");
}

// Every type that is read has a storage format of its name, and both have the same idea of its
// size.
TEST_F(Gguf, TypesAreStorageFormats) {
  int64_t read = 0;
  for (uint32_t type = 0; type < 64; ++type) {
    GgufBuilder builder;
    builder.tensor("one", type, {256, 3}, std::string(3 * 256 * 4, 'a'));
    const GgufFile file(put("a.gguf", builder.build()));
    const GgufTensor& tensor = *file.find("one");
    if (tensor.format.empty()) continue;
    ++read;
    std::string name = ggml_type_name(type);
    EXPECT_NE(readable_ggml_types().find(name), std::string::npos);
    for (char& letter : name) letter = static_cast<char>(std::tolower(letter));
    EXPECT_EQ(tensor.format, name);
    EXPECT_EQ(static_cast<int64_t>(tensor.bytes.size()), find_format(name).storage_bytes(3, 256))
        << name;
  }
  EXPECT_EQ(read, 26);
}

TEST_F(Gguf, NamesWhatIsWrongWithAFile) {
  EXPECT_TRUE(mentions(refused(""), "file ends inside its magic number"));
  EXPECT_TRUE(mentions(refused("GGML and more"), "is not a GGUF file"));
  const auto version = [](uint32_t number) {
    GgufBuilder builder;
    builder.version = number;
    return builder;
  };
  EXPECT_TRUE(mentions(refused(version(1)), "GGUF version 1 | supported"));
  EXPECT_TRUE(mentions(refused(version(4)), "GGUF version 4"));
  EXPECT_TRUE(mentions(refused(version(0x03000000)), "big-endian"));
  for (const uint64_t extra : {uint64_t{1} << 20, uint64_t{1} << 40, ~uint64_t{0} - 100}) {
    GgufBuilder builder = gguf_llama();
    builder.extra_values = extra;
    EXPECT_TRUE(mentions(refused(builder), "metadata entries in"));
    builder.extra_values = 0;
    builder.extra_tensors = extra;
    EXPECT_TRUE(mentions(refused(builder), "tensors described in"));
  }
  const auto value = [&](GgufType type, const std::string& bytes) {
    GgufBuilder builder;
    builder.entry("key", type, bytes);
    return refused(builder.build() + std::string(64, '\0'));
  };
  using B = GgufBuilder;
  const uint64_t many = uint64_t{1} << 61;
  EXPECT_TRUE(mentions(value(static_cast<GgufType>(13), ""), "key is of unknown type 13"));
  EXPECT_TRUE(mentions(value(GgufType::string, B::raw(many)), "file ends inside key"));
  EXPECT_TRUE(mentions(value(GgufType::string, B::raw(~uint64_t{0})), "file ends inside key"));
  EXPECT_TRUE(mentions(value(GgufType::array, B::number(GgufType::array) + B::raw(uint64_t{1})),
                       "key is an array of type 9"));
  EXPECT_TRUE(mentions(value(GgufType::array, B::number(GgufType::u32) + B::raw(many)),
                       "2305843009213693952 elements"));
  EXPECT_TRUE(mentions(value(GgufType::array, B::number(GgufType::string) + B::raw(many)),
                       "file ends inside key"));
  GgufBuilder twice;
  twice.u32("key", 1);
  twice.u32("key", 2);
  EXPECT_TRUE(mentions(refused(twice), "key appears twice"));
  GgufBuilder nameless;
  nameless.u32("", 1);
  EXPECT_TRUE(mentions(refused(nameless), "a metadata key of 0 bytes"));
}

TEST_F(Gguf, NamesTheTensorThatIsWrong) {
  const auto tensor = [&](const std::vector<uint64_t>& extents, uint32_t type = kF32,
                          uint64_t offset = 0, uint32_t alignment = 32) {
    GgufBuilder builder;
    builder.u32("general.alignment", alignment);
    builder.tensor_at("t", type, extents, offset);
    return refused(builder.build() + std::string(256, '\0'));
  };
  const uint64_t big = uint64_t{1} << 32;
  EXPECT_TRUE(mentions(tensor({}), "tensor t has 0 dimensions"));
  EXPECT_TRUE(mentions(tensor({1, 1, 1, 1, 1}), "tensor t has 5 dimensions"));
  EXPECT_TRUE(mentions(tensor({0}), "extent of 0"));
  EXPECT_TRUE(mentions(tensor({~uint64_t{0}}), "extent of 18446744073709551615"));
  EXPECT_TRUE(mentions(tensor({big, big}), "[4294967296, 4294967296] cannot be stored as F32"));
  EXPECT_TRUE(mentions(tensor({big, big / 4}), "reaches past the end"));
  EXPECT_TRUE(mentions(tensor({65}), "reaches past the end"));
  EXPECT_TRUE(mentions(tensor({33}, kQ8_0), "tensor t of shape [33] cannot be stored as Q8_0"));
  EXPECT_TRUE(mentions(tensor({4}, kF32, 8), "not aligned to 32"));
  EXPECT_TRUE(mentions(tensor({4}, kF32, big), "past the end"));
  EXPECT_TRUE(mentions(tensor({4}, 99, 352), "past the end"));
  EXPECT_TRUE(mentions(tensor({4}, kF32, ~uint64_t{0}), "past the end"));
  EXPECT_TRUE(mentions(tensor({4}, kF32, 0, 0), "general.alignment = 0"));
  EXPECT_TRUE(mentions(tensor({4}, kF32, 0, 48), "general.alignment = 48"));
  EXPECT_TRUE(mentions(tensor({4}, kF32, 0, 1u << 31), "general.alignment = 2147483648"));
  GgufBuilder two;
  two.tensor_at("t", kF32, {16}, 0);
  two.tensor_at("u", kF32, {8}, 32);
  EXPECT_TRUE(mentions(refused(two.build() + std::string(64, '\0')), "tensors t and u overlap"));
  GgufBuilder twice;
  twice.tensor_at("t", kF32, {8}, 0);
  twice.tensor_at("t", kF32, {8}, 32);
  EXPECT_TRUE(mentions(refused(twice.build() + std::string(64, '\0')), "tensor t appears twice"));
}

TEST_F(Gguf, SurvivesDamage) {
  GgufVariant variant;
  variant.rope_factors = llama3_factors(8.0f);
  const GgufBuilder builder = gguf_llama(variant);
  const auto read = [](const fs::path& path) {
    const GgufSource source(path);
    gguf_tokenizer(source.file());
    for (const std::string& name : source.names()) {
      const StoredTensor* tensor = source.find(name);
      source.release(*tensor);
    }
  };
  damage(directory_ / "bad.gguf", builder.build(), builder.header().size(), read);
}

TEST_F(Gguf, ExtractsTheTokenizer) {
  const GgufTokenizerMetadata tokenizer = gguf_tokenizer(GgufFile(good()));
  EXPECT_EQ(tokenizer.model, "gpt2");
  EXPECT_EQ(tokenizer.pre, "llama-bpe");
  ASSERT_EQ(tokenizer.tokens.size(), 7u);
  EXPECT_EQ(tokenizer.tokens[2], "ab");
  EXPECT_EQ(tokenizer.token_types, (std::vector<int64_t>{1, 1, 1, 1, 3, 3, 3}));
  EXPECT_EQ(tokenizer.scores[2], -0.1);
  EXPECT_EQ(tokenizer.merges, std::vector<std::string>{"a b"});
  EXPECT_EQ(tokenizer.bos_id, 4);
  EXPECT_EQ(tokenizer.eos_id, 5);
  EXPECT_EQ(tokenizer.eot_id, 6);
  EXPECT_EQ(tokenizer.unk_id, -1);
  EXPECT_EQ(tokenizer.add_bos, true);
  EXPECT_EQ(tokenizer.add_eos, std::nullopt);
  EXPECT_EQ(tokenizer.chat_template, "{{ x }}");
  GgufBuilder builder;
  builder.texts("tokenizer.ggml.tokens", {"a", "b"});
  builder.array<int32_t>("tokenizer.ggml.token_type", GgufType::i32, {1});
  const GgufFile file(put("bad.gguf", builder.build()));
  EXPECT_TRUE(mentions(model_error([&] { gguf_tokenizer(file); }), "2 tokens but 1 token types"));
}

}  // namespace
}  // namespace jackscrew
