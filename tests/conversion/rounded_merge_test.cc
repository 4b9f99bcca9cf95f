// Adapters over rounded weights: those that make up for what rounding took, merged into a base that
// is not rounded, and what stays of a base in NF4.
#include <gtest/gtest.h>

#include <algorithm>

#include "formats/peft.h"
#include "formats/safetensors.h"
#include "tests/conversion/conversion.h"
#include "tests/support/worse.h"

namespace jackscrew {
namespace {

using nlohmann::json;

// What was trained is what is written, whatever the base that merge reads.
TEST_F(SlowConversion, RoundedWeightsAreWhatTheAdapterIsMergedInto) {
  for (const std::string how : {"storage=nf4 lora_init=loftq", "storage=nf4_double lora_init=pissa",
                                "storage=int8 lora_init=loftq"}) {
    SCOPED_TRACE(how);
    const std::string storage = how.substr(0, how.find(' '));
    fs::remove_all(path("adapter"));
    train_adapter("adapter", how + " export=hf:f32");
    EXPECT_EQ("storage=" + read_peft_adapter(path("adapter")).base_storage, storage);
    const std::string both = fmt::format("model={} adapter={}", path("base"), path("adapter"));
    const double trained = loss(both + " " + storage);
    EXPECT_NEAR(loss("model=" + path("adapter") + "/exports/model-f32"), trained, 1e-5);
    const json said =
        answer("merge " + both + " overwrite=true storage=f32 output_dir=" + path("merged") + " " +
               eval());
    EXPECT_NEAR(said["loss"], trained, 1e-5);
    EXPECT_NEAR(said["reference_loss"], trained, 1e-5);
    EXPECT_EQ(contents(path("merged"))["model.safetensors"],
              contents(path("adapter") + "/exports/model-f32")["model.safetensors"]);
    // Beside weights that are not rounded it is another model, which is said.
    const Outcome unrounded =
        run(fmt::format("eval {} data={} sequence_len=64 --quiet 2>&1", both, tiny_.eval_data()));
    EXPECT_EQ(unrounded.exit_code, 0);
    EXPECT_NE(unrounded.out.find("warning: " + path("adapter")), std::string::npos)
        << unrounded.out;
    EXPECT_NE(unrounded.out.find("set " + storage), std::string::npos) << unrounded.out;
    EXPECT_EQ(answer("inspect " + path("adapter"))["base_storage"], storage.substr(8));
  }
}

// W + 0.5 (W_a - W) + 0.5 (W_b - W), where W_a stands over rounded weights and W_b does not.
TEST_F(SlowConversion, RoundingCountsAsAPartOfWhatAnAdapterChanges) {
  train_adapter("rounded", "storage=nf4 lora_init=loftq");
  train_adapter("plain");
  const auto merged = [&](const std::string& adapters, const std::string& weights) {
    answer(
        fmt::format("merge model={} adapter={} adapter_weight={} overwrite=true storage=f32 "
                    "output_dir={}",
                    path("base"), adapters, weights, path("m")));
    const SafetensorsFile file(path("m") + "/model.safetensors");
    std::vector<float> values;
    for (const SafetensorsEntry& entry : file.entries()) {
      const auto* first = reinterpret_cast<const float*>(entry.bytes.data());
      values.insert(values.end(), first, first + entry.bytes.size() / sizeof(float));
    }
    return values;
  };
  const auto a = merged(path("rounded"), "1"), b = merged(path("plain"), "1"),
             both = merged(path("rounded") + "," + path("plain"), "0.5,0.5");
  double worst = 0.0;
  for (size_t i = 0; i < both.size(); ++i) {
    worst = worse(worst, std::abs(static_cast<double>(both[i]) -
                                  0.5 * (static_cast<double>(a[i]) + static_cast<double>(b[i]))));
  }
  EXPECT_LT(worst, 1e-6);
}

// llama.cpp has no such weights.
TEST_F(SlowConversion, AnAdapterForRoundedWeightsAsGgufIsNoted) {
  train_adapter("adapter", "storage=nf4 lora_init=loftq");
  const json said = answer(fmt::format("export model={} adapter={} format=gguf_adapter output={}",
                                       path("base"), path("adapter"), path("a.gguf")));
  EXPECT_NE(said["notes"].dump().find("makes up for what storage=nf4 takes"), std::string::npos)
      << said["notes"];
}

// bitsandbytes decodes them to the same values, although what was merged is in f32.
TEST_F(SlowConversion, Nf4BesideWhatWasMergedStaysAsItIs) {
  answer(fmt::format("export model={} output_dir={} storage=bf16", path("base"), path("b")));
  answer(fmt::format("export model={} output_dir={} storage=nf4", path("b"), path("n")));
  const std::string settings = "model=" + path("n") + " lora_target_modules=q_proj export=hf:keep";
  train_adapter("adapter", settings);
  const json said = answer(fmt::format("merge model={} adapter={} output_dir={}", path("n"),
                                       path("adapter"), path("m")));
  EXPECT_EQ(contents(path("adapter") + "/exports/model"), contents(path("m")));
  const json plan =
      answer(fmt::format("plan {} data={} sequence_len=64 max_steps=3 lora_rank=4 output_dir={}",
                         settings, tiny_.data(), path("planned")));
  EXPECT_EQ(plan["disk"]["exports"], said["bytes"]);
  expect_only_q_proj_differs("n", "m");
  const SafetensorsFile to(path("m") + "/model.safetensors");
  const SafetensorsEntry& state =
      *to.find("model.layers.0.mlp.up_proj.weight.quant_state.bitsandbytes__nf4");
  EXPECT_EQ(json::parse(state.bytes)["dtype"], "bfloat16");
  const json config = json::parse(tiny_.text("m/config.json"));
  EXPECT_EQ(config["torch_dtype"], "float32");
  EXPECT_EQ(config["quantization_config"]["bnb_4bit_compute_dtype"], "bfloat16");
  // A type to multiply in that the model's files name stays, too.
  json named = json::parse(tiny_.text("n/config.json"));
  named["quantization_config"]["bnb_4bit_compute_dtype"] = "float16";
  tiny_.file("n/config.json", named.dump());
  answer(fmt::format("export model={} output_dir={}", path("n"), path("k")));
  EXPECT_EQ(json::parse(tiny_.text("k/config.json"))["quantization_config"],
            named["quantization_config"]);
}

TEST_F(SlowConversion, RowsThatBlocksOfNf4DoNotDivideAreNoted) {
  const std::string note = "12 weights with rows of 32 elements in nf4, whose blocks of 64 do not";
  const auto notes = [&](const std::string& model, const std::string& output) {
    return answer(fmt::format("export model={} output_dir={} format=bnb", path(model),
                              path(output)))["notes"]
        .dump();
  };
  EXPECT_NE(notes("base", "n").find(note), std::string::npos) << notes("base", "again");
  EXPECT_EQ(notes("n", "k"), "[]");  // nothing has changed
}

}  // namespace
}  // namespace jackscrew
