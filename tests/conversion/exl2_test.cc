// quantize format=exl2 as users call it.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "tests/cli/expect_refused.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

using nlohmann::json;

class SlowExl2 : public ::testing::Test {
 protected:
  SlowExl2() : tiny_("exl2") {
    // Wide enough that the order of columns does not take more than the codes.
    const std::string config = tiny_.file("wide.json", R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 260,
      "hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 2,
      "num_attention_heads": 3, "num_key_value_heads": 3, "max_position_embeddings": 128,
      "tie_word_embeddings": true, "bos_token_id": 256, "eos_token_id": 257})");
    tiny_.must_train("base", "method=full max_steps=4 learning_rate=1e-2 model=" + config);
  }

  std::string path(const std::string& name) const { return tiny_.path(name).string(); }
  std::string exl2(const std::string& output, const std::string& more) const {
    return fmt::format(
        "quantize format=exl2 model={} data={} output_dir={} sequence_len=64 "
        "calibration_sequences=8 threads=2 {}",
        path("base"), tiny_.data(), path(output), more);
  }
  json answer(const std::string& arguments) const {
    const Outcome outcome = run(arguments + " --quiet --json");
    EXPECT_EQ(outcome.exit_code, 0) << arguments << "\n" << outcome.out;
    return outcome.exit_code == 0 ? json::parse(outcome.out) : json();
  }
  double loss(const std::string& model) const {
    return answer(fmt::format("eval model={} data={} sequence_len=64", path(model),
                              tiny_.eval_data()))["loss"];
  }

  TinyRun tiny_;
};

TEST_F(SlowExl2, KeepsToItsRate) {
  double before = 0.0;
  for (const double bits : {3.0, 4.25, 6.0}) {
    SCOPED_TRACE(bits);
    const json said = answer(
        exl2("e", fmt::format("bits={} overwrite=true eval_data={}", bits, tiny_.eval_data())));
    EXPECT_EQ(said["matrices"].size(), 15u);  // the head too
    EXPECT_LE(said["bits"].get<double>(), bits);
    EXPECT_GT(said["bits"].get<double>(), bits - 0.25);
    double all = 0.0;
    for (const json& matrix : said["matrices"]) all += matrix["error"].get<double>();
    if (before > 0.0) {
      EXPECT_LT(all, before);
    }
    before = all;
    EXPECT_NEAR(said["loss"], loss("e"), 1e-6);
    int64_t bytes = 0;
    for (const auto& [name, text] : contents(path("e"))) bytes += std::ssize(text);
    EXPECT_EQ(said["bytes"], bytes);
    const json config = json::parse(tiny_.text("e/config.json"));
    EXPECT_EQ(config["quantization_config"]["quant_method"], "exl2");
    EXPECT_EQ(config["quantization_config"]["bits"], said["bits"]);
    EXPECT_EQ(config["tie_word_embeddings"], false);
  }
  EXPECT_NEAR(loss("e"), loss("base"), 5e-2);
  // A head that stays.
  EXPECT_EQ(answer(exl2("plain", "bits=4 head_bits=16"))["matrices"].size(), 14u);
  tiny_.must_train("tuned", "init=pretrained method=lora max_steps=1 model=" + path("e"));
}

TEST_F(SlowExl2, HasTheSameBytesWithAnyThreads) {
  answer(exl2("one", "bits=4 threads=1"));
  answer(exl2("two", "bits=4 threads=2"));
  answer(exl2("again", "bits=4 threads=2"));
  EXPECT_EQ(contents(path("one")), contents(path("two")));
  EXPECT_EQ(contents(path("one")), contents(path("again")));
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
  answer(exl2("least", "bits=2.6"));
  answer(exl2("most", "bits=8"));
  const int64_t least = peak("least"), most = peak("most");
  ASSERT_LT(least, most);
  const int64_t budget = (least + most) / 2;
  const std::string run =
      fmt::format("method=lora gradient_checkpointing=true device_memory={}B ", budget);
  const json said = answer(exl2("fit", run));
  EXPECT_LE(peak("fit"), budget);
  EXPECT_GT(peak("fit"), budget - (most - least) / 8);
  EXPECT_GT(said["bits"].get<double>(), 3.5);
  // Eight bits, and what is stored beside them.
  EXPECT_GT(answer(exl2("all", "method=lora device_memory=1GiB"))["bits"].get<double>(), 8.0);
  const auto refused = [&](const std::string& more, int code,
                           const std::vector<std::string>& says) {
    expect_refused(jackscrew::run(exl2("no", more) + " --quiet" + kErrorsOnly), code, says);
    EXPECT_FALSE(fs::exists(path("no")));
  };
  refused("method=lora device_memory=100KB", 3, {"in the fewest bits", "device_memory"});
  refused("method=full device_memory=1MB", 2, {"does not hold", "method=lora"});
  refused(run + "bits=4", 2, {"bits and device_memory"});
}

TEST_F(SlowExl2, Refusals) {
  const auto refused = [&](const std::string& more, int code,
                           const std::vector<std::string>& says) {
    expect_refused(run(exl2("q", more) + " --quiet" + kErrorsOnly), code, says);
    EXPECT_FALSE(fs::exists(path("q")));
  };
  refused("bits=2", 2, {"bits=2", "the least is bits="});
  refused("head_bits=7", 2, {"head of 7 bits"});
  refused("group_size=32", 2, {"group_size", "format=gptq"});
  refused("rounding=nearest", 2, {"rounding", "format=gptq"});
  refused("data=" + tiny_.file("short.jsonl", TinyRun::record("a", "b")), 4, {"too few"});
  const Outcome dry = run(exl2("d", "bits=4 --dry-run"));
  EXPECT_EQ(dry.exit_code, 0);
  EXPECT_NE(dry.out.find("15 matrices"), std::string::npos) << dry.out;
  EXPECT_FALSE(fs::exists(path("d")));
}

}  // namespace
}  // namespace jackscrew
