// quantize format=exl2 as users call it.
#include "tests/conversion/quantise_rig.h"

namespace jackscrew {
namespace {

using nlohmann::json;

class SlowExl2 : public QuantiseRig {
 protected:
  SlowExl2() : QuantiseRig("exl2", "format=exl2") {
    // Wide enough that the order of columns does not take more than the codes; gate_proj and
    // up_proj have more rows than are measured.
    const std::string config = tiny_.file("wide.json", R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 260,
      "hidden_size": 96, "intermediate_size": 320, "num_hidden_layers": 2,
      "num_attention_heads": 3, "num_key_value_heads": 3, "max_position_embeddings": 128,
      "tie_word_embeddings": true, "bos_token_id": 256, "eos_token_id": 257})");
    train_base("model=" + config);
  }
};

TEST_F(SlowExl2, KeepsToItsRate) {
  double before = 0.0;
  for (const double bits : {3.0, 4.25, 6.0}) {
    SCOPED_TRACE(bits);
    const json said = answer(
        quantise("e", fmt::format("bits={} overwrite=true eval_data={}", bits, tiny_.eval_data())));
    EXPECT_EQ(said["matrices"].size(), 15u);  // the head too
    EXPECT_LE(said["bits"].get<double>(), bits);
    EXPECT_GT(said["bits"].get<double>(), bits - 0.25);
    double all = 0.0;
    for (const json& matrix : said["matrices"]) all += matrix["error"].get<double>();
    if (before > 0.0) {
      EXPECT_LT(all, before);
    }
    before = all;
    expect_as_said("e", said);
    const json config = json::parse(tiny_.text("e/config.json"));
    EXPECT_EQ(config["quantization_config"]["quant_method"], "exl2");
    EXPECT_EQ(config["quantization_config"]["bits"], said["bits"]);
    EXPECT_EQ(config["tie_word_embeddings"], false);
  }
  EXPECT_NEAR(loss("e"), loss("base"), 5e-2);
  // A head that stays.
  EXPECT_EQ(answer(quantise("plain", "bits=4 head_bits=16"))["matrices"].size(), 14u);
  tiny_.must_train("tuned", "init=pretrained method=lora max_steps=1 model=" + path("e"));
}

TEST_F(SlowExl2, HasTheSameBytesWithAnyThreads) {
  expect_same_bytes_with_any_threads("bits=4");
}

TEST_F(SlowExl2, RoundsAMergedModel) {
  tiny_.must_train(
      "lora", "init=pretrained method=lora max_steps=2 learning_rate=1e-2 model=" + path("base"));
  const std::string model = fmt::format("model={} adapter={}", path("base"), path("lora"));
  EXPECT_EQ(run(fmt::format("merge {} output_dir={} storage=f32", model, path("merged"))).exit_code,
            0);
  const json apart = answer(quantise("apart", "bits=4 storage=f16 model=" + path("merged")));
  const json at_once = answer(quantise("at_once", "bits=4 storage=f16 " + model));
  EXPECT_EQ(contents(path("apart")), contents(path("at_once")));
  // The adapter's values, and what a weight needs to be merged.
  const auto adapter =
      static_cast<int64_t>(fs::file_size(path("lora") + "/adapter_model.safetensors"));
  EXPECT_GT(at_once["memory"].get<int64_t>(), apart["memory"].get<int64_t>() + adapter / 2);
  expect_memory_as_planned("bits=4 storage=f16 " + model);
}

TEST_F(SlowExl2, MemoryAsPlanned) {
  expect_memory_as_planned("bits=4");
  expect_memory_as_planned("bits=3 head_bits=16 calibration_sequences=40");
}

// The rate is the highest: what the run then needs is all but what a step further up would take.
TEST_F(SlowExl2, FitsARun) {
  const auto peak = [&](const std::string& model) {
    return answer(
               fmt::format("plan model={} method=lora sequence_len=64 init=pretrained "
                           "gradient_checkpointing=true",
                           path(model)))["device"]["peak"]
        .get<int64_t>();
  };
  answer(quantise("least", "bits=2.6"));
  answer(quantise("most", "bits=8"));
  const int64_t least = peak("least"), most = peak("most");
  ASSERT_LT(least, most);
  const int64_t budget = (least + most) / 2;
  const std::string run =
      fmt::format("method=lora gradient_checkpointing=true device_memory={}B ", budget);
  const json said = answer(quantise("fit", run));
  EXPECT_LE(peak("fit"), budget);
  EXPECT_GT(peak("fit"), budget - (most - least) / 8);
  EXPECT_GT(said["bits"].get<double>(), 3.5);
  const double most_bits = answer(quantise("dry", run + "--dry-run"))["bits"];
  EXPECT_LE(said["bits"], most_bits);
  EXPECT_LT(most_bits, 1.15 * said["bits"].get<double>());
  // So it is where activations are recomputed only if they must be, whatever the files' storage.
  const json automatic =
      answer(quantise("auto", fmt::format("method=lora storage=bf16 device_memory={}B", budget)));
  EXPECT_GT(automatic["bits"].get<double>(), 3.5);
  // Eight bits, and what is stored beside them.
  EXPECT_GT(answer(quantise("all", "method=lora device_memory=1GiB"))["bits"].get<double>(), 8.0);
  // The product is the run's, not calibration's, and not that of the comparison.
  answer(quantise("int8",
                  "method=lora device_memory=1GiB product=int8 product_exclude=down_proj "
                  "eval_data=" +
                      tiny_.eval_data()));
  EXPECT_EQ(contents(path("int8")), contents(path("all")));
  refused("method=lora device_memory=100KB", 3, {"in the fewest bits", "device_memory"});
  // A budget that is just too small reads like what is needed.
  const std::string little =
      jackscrew::run(quantise("x", "method=lora device_memory=100KB") + kErrorsOnly).out;
  const size_t at = little.find("needs ") + 6;
  const std::string needs = little.substr(at, little.find(" (", at) - at);  // "629.6 KiB"
  const double unit = needs.ends_with("KiB") ? 1024.0 : 1048576.0;
  const auto least_like_it = static_cast<int64_t>((std::stod(needs) - 0.05) * unit) + 2;
  refused(fmt::format("method=lora device_memory={}B", least_like_it), 3,
          {"needs " + needs + " (", ", budget " + needs + " (", " B) (device_memory)"});
  refused("method=full device_memory=1MB", 2, {"does not hold", "method=lora"});
  refused(run + "bits=4", 2, {"bits and device_memory"});
}

TEST_F(SlowExl2, Refusals) {
  refused("bits=2", 2, {"bits=2", "the least is bits="});
  refused("head_bits=7", 2, {"head of 7 bits"});
  refused("group_size=32", 2, {"format=exl2 has no group_size"});
  refused("rounding=nearest", 2, {"format=exl2 has no rounding"});
  refused("data=" + tiny_.file("short.jsonl", TinyRun::record("a", "b")), 4, {"too few"});
  expect_dry_run("bits=4", "15 matrices in at most 4.00 bits");
  const int64_t most = answer(quantise("dry", "bits=4 --dry-run"))["bytes"];
  const int64_t bytes = answer(quantise("real", "bits=4"))["bytes"];
  EXPECT_LE(bytes, most);
  EXPECT_GT(bytes, most - most / 20);
}

}  // namespace
}  // namespace jackscrew
