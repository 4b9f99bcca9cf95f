// What a model keeps of itself in a GGUF file, and what is not copied into one.
#include <cstring>

#include "formats/gguf_llama.h"
#include "tests/conversion/conversion.h"
#include "tests/conversion/set_largest.h"

namespace jackscrew {
namespace {

using nlohmann::json;

// Of config.json, generation_config.json and the tokenizer; llama.cpp stops at each of the three.
TEST_F(SlowConversion, EveryEndTokenHasAPlaceInAGgufFile) {
  json config = json::parse(tiny_.text("base/config.json"));
  const auto exported = [&](const json& ends, const json& more_ends) {
    config["eos_token_id"] = ends;
    tiny_.file("base/config.json", config.dump());
    tiny_.file("base/generation_config.json", json{{"eos_token_id", more_ends}}.dump());
    const json said = answer(
        fmt::format("export model={} output={} overwrite=true", path("base"), path("m.gguf")));
    return said["notes"].dump();
  };
  const auto ids = [&] {
    const GgufTokenizerMetadata written = gguf_tokenizer(GgufFile(path("m.gguf")));
    return std::vector{written.eos_id, written.eom_id, written.eot_id};
  };
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(exported(257, 257), "[]");
  EXPECT_EQ(ids(), (Ids{257, -1, -1}));
  EXPECT_EQ(exported(65, 257), "[]");
  EXPECT_EQ(ids(), (Ids{257, 65, -1}));
  EXPECT_EQ(exported({257, 65}, {65, 66}), "[]");
  EXPECT_EQ(ids(), (Ids{257, 65, 66}));
  EXPECT_EQ(answer("inspect " + path("m.gguf"))["eos_token_ids"], (json{257, 66, 65}));
  EXPECT_NE(exported({257, 65}, {65, 66, 67}).find("llama.cpp may go on after C"),
            std::string::npos);
  // Those of the model mean nothing in a tokenizer that was given.
  answer(fmt::format("export model={0} tokenizer={0} output={1} overwrite=true", path("base"),
                     path("m.gguf")));
  EXPECT_EQ(ids(), (Ids{257, -1, -1}));
}

TEST_F(SlowConversion, EosBehindPromptsIsKeptAndTold) {
  answer(fmt::format("export model={} output={}", path("base"), path("m.gguf")));
  std::string bytes = read_text(path("m.gguf"));
  const std::string key = "tokenizer.ggml.add_eos_token";
  bytes.at(bytes.find(key) + key.size() + sizeof(uint32_t)) = 1;  // behind the value's type
  tiny_.file("m.gguf", bytes);
  const json said =
      answer(fmt::format("export model={} output={}", path("m.gguf"), path("k.gguf")));
  EXPECT_NE(said["notes"].dump().find("llama.cpp will put EOS behind every prompt"),
            std::string::npos)
      << said["notes"];
  EXPECT_EQ(gguf_tokenizer(GgufFile(path("k.gguf"))).add_eos, true);
}

TEST_F(SlowConversion, BlocksThatAreNotFiniteAreNotCopied) {
  const std::string model = "model=" + path("q.gguf"), to = " output=" + path("k.gguf");
  answer(fmt::format("export model={} output={} storage=q8_0", path("base"), path("q.gguf")));
  std::string bytes = read_text(path("q.gguf"));
  const auto at = static_cast<size_t>(GgufFile(path("q.gguf")).find("blk.1.attn_q.weight")->offset);
  constexpr uint16_t kNan = 0x7E00;  // as the scale of a block
  std::memcpy(bytes.data() + at, &kNan, sizeof kNan);
  tiny_.file("q.gguf", bytes);
  expect_refusal("export storage=keep " + model + to, 6, {"has a value that is not finite"});
  // Values beyond those of f16 are as good as others.
  constexpr uint16_t kLarge = 0x7BFF;
  std::memcpy(bytes.data() + at, &kLarge, sizeof kLarge);
  tiny_.file("q.gguf", bytes);
  answer("export storage=keep " + model + to);
  const GgufFile written(path("k.gguf"));
  EXPECT_EQ(std::memcmp(written.find("blk.1.attn_q.weight")->bytes.data(), bytes.data() + at,
                        written.find("blk.1.attn_q.weight")->bytes.size()),
            0);
}

// Nor are zeros written in their place; what is 0 to the model may be.
TEST_F(SlowConversion, ValuesThatScalesOfF16LoseAreRefused) {
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  const auto command = [&](const std::string& storage) {
    return fmt::format("export overwrite=true model={} storage={} output={}", path("base"), storage,
                       path("m.gguf"));
  };
  set_largest(path("base"), name, 2e-6f);
  for (const char* storage : {"q8_0", "iq4_nl"}) {
    expect_refusal(command(storage), 5,
                   {name + " has values of at most 2e-06, too small for " + storage,
                    "storage=bf16 and storage=f32 can"});
  }
  EXPECT_FALSE(fs::exists(path("m.gguf")));
  for (const char* storage : {"bf16", "f16", "q4_0"}) answer(command(storage));
  for (const float largest : {2e-5f, 1e-20f, 0.0f}) {
    set_largest(path("base"), name, largest);
    answer(command("q8_0"));
  }
}

TEST_F(SlowConversion, ValuesThatF16CannotHoldAreRefused) {
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  set_largest(path("base"), name, 7e4f);
  for (const auto& [storage, holder] :
       {std::pair("q8_0", "f16, in which other programs decode q8_0,"), std::pair("f16", "f16")}) {
    expect_refusal(
        fmt::format("export model={} storage={} output={}", path("base"), storage, path("m.gguf")),
        5,
        {fmt::format("{} has a value of 7e+04, more than {} can hold", name, holder),
         "storage=bf16 and storage=f32 can"});
  }
}

// Embedding and head as well as the blocks' matrices.
TEST_F(SlowConversion, EveryMatrixThatBecomesF32IsCounted) {
  answer(fmt::format("export model={} output={} storage=q8_0", path("base"), path("q.gguf")));
  const json said = answer(fmt::format("export model={} output_dir={}", path("q.gguf"), path("d")));
  EXPECT_EQ(said["notes"],
            json::array({"16 weights are written in f32 instead of q8_0: it is not written to such "
                         "files"}));
}

// Also where an adapter is merged in, and where a run counts the bytes before.
TEST_F(SlowConversion, TheNameOfAGgufFileStays) {
  answer(fmt::format("export model={} output={}", path("base"), path("other.gguf")));
  const auto name = [&](const std::string& file) {
    return GgufFile(path(file)).text("general.name");
  };
  EXPECT_EQ(name("other.gguf"), "base");
  answer(fmt::format("export model={} output={} storage=q8_0", path("other.gguf"), path("q.gguf")));
  EXPECT_EQ(name("q.gguf"), "base");
  train_adapter("adapter", "model=" + path("q.gguf") + " export=gguf:q8_0");
  EXPECT_EQ(name("adapter/exports/model-q8_0.gguf"), "base");
}

}  // namespace
}  // namespace jackscrew
