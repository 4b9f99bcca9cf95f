// quantize as users call it.
#include <cmath>
#include <cstring>
#include <limits>

#include "conversion/calibration.h"
#include "conversion/compare.h"
#include "conversion/gptq_rounder.h"
#include "conversion/quantise.h"
#include "data/dataset.h"
#include "session/adapter.h"
#include "tests/conversion/quantise_rig.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace jackscrew {
namespace {

using nlohmann::json;

class SlowQuantise : public QuantiseRig {
 protected:
  SlowQuantise() : QuantiseRig("quantise", "group_size=32") { train_base(); }
};

// The written model and its calibration have the template that the adapter has learned with.
TEST_F(SlowQuantise, UsesTheTemplateBesideTheAdapter) {
  tiny_.must_train("adapter", "init=pretrained method=lora max_steps=1 model=" + path("base"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}) {
    fs::remove(path("adapter") + "/" + name);
  }
  tiny_.file("adapter/chat_template.jinja",
             "{% for m in messages %}{{ m.role }} says {{ m.content }}{{ eos_token }}{% endfor %}");
  const std::string model = fmt::format("model={} adapter={}", path("base"), path("adapter"));
  EXPECT_EQ(run(fmt::format("merge {} output_dir={} storage=f32", model, path("merged"))).exit_code,
            0);
  const std::string how = "bits=4 storage=f16 eval_data=" + tiny_.eval_data() + " ";
  const json apart = answer(quantise("apart", how + "model=" + path("merged")));
  const json at_once = answer(quantise("at_once", how + model));
  EXPECT_EQ(contents(path("apart")), contents(path("at_once")));
  EXPECT_TRUE(fs::exists(path("at_once") + "/chat_template.jinja"));
  EXPECT_EQ(apart["loss"], at_once["loss"]);
}

TEST_F(SlowQuantise, WritesWhatItSays) {
  for (const std::string more : {"bits=4", "bits=4 desc_act=true sym=false group_size=32",
                                 "bits=2 group_size=16", "bits=8 group_size=-1 desc_act=true"}) {
    SCOPED_TRACE(more);
    const json said =
        answer(quantise("q", more + " overwrite=true eval_data=" + tiny_.eval_data()));
    EXPECT_EQ(said["matrices"].size(), 14u);
    for (const json& matrix : said["matrices"]) EXPECT_LT(matrix["error"], 0.3) << matrix;
    EXPECT_EQ(said["calibration_tokens"], 512);
    EXPECT_NEAR(said["reference_loss"], loss("base"), 1e-6);
    expect_as_said("q", said);
    const json config = json::parse(tiny_.text("q/config.json"));
    EXPECT_EQ(config["quantization_config"]["quant_method"], "gptq");
  }
  // Eight bits are almost exact.
  EXPECT_NEAR(loss("q"), loss("base"), 1e-2);
}

// What stands in for codes before they are written is larger than they are.
TEST_F(SlowQuantise, NeedsNoMoreRoomThanItsModelsTake) {
  answer(quantise("q", "bits=4"));
  const Recipe recipe = without_training(
      make_recipe({"threads=2", "sequence_len=64", "storage=keep", "weights=memory"}));
  const Dataset data({{{'a', 'b'}, {1, 1}}}, 64);
  int64_t both = 0;
  for (const char* model : {"base", "q"}) {
    both +=
        Session::rehearse(recipe, open_model(path(model)), comparison_use(data, 64)).ledger.peak;
  }
  answer(quantise("late", fmt::format("bits=4 weights=memory eval_data={} device_memory={}B "
                                      "--dry-run",
                                      tiny_.eval_data(), both + both / 100)));
}

// With less text than a batch and with more.
TEST_F(SlowQuantise, MemoryAsPlanned) {
  expect_memory_as_planned("bits=4");
  expect_memory_as_planned("bits=2 desc_act=true calibration_sequences=40");
  expect_memory_as_planned("bits=8 rounding=nearest");
  expect_memory_as_planned("bits=4 product=bf16");
}

// Without data the program's own text calibrates, and the result says so.
TEST_F(SlowQuantise, HasATextOfItsOwn) {
  const std::string command = fmt::format(
      "quantize model={} output_dir={} bits=4 group_size=32 "
      "sequence_len=64 calibration_sequences=16 ",
      path("base"), path("own"));
  const std::string note = "the text is the program's own";
  EXPECT_NE(run(command + "--dry-run").out.find(note), std::string::npos);
  // What is rounded to nearest does not depend on it.
  EXPECT_EQ(answer(command + "rounding=nearest --dry-run")["notes"].dump().find(note),
            std::string::npos);
  const json said = answer(command);
  EXPECT_EQ(said["calibration_tokens"], 16 * 64);
  EXPECT_NE(said["notes"].dump().find(note), std::string::npos);
  // Enough for 128 sequences of 512 tokens, of five letters each.
  size_t letters = 0;
  for (const EmbeddedText& text : embedded_calibration_texts()) {
    letters += std::string_view(text.text).size();
  }
  EXPECT_GT(letters, 128u * 512 * 5);
}

// export and merge with a layout that is rounded to are quantize by another name.
TEST_F(SlowQuantise, ExportAndMergeRoundAsQuantizeDoes) {
  const std::string calibration = fmt::format(" data={} sequence_len=64", tiny_.data());
  for (const std::string format : {"gptq bits=2 group_size=32", "exl2 bits=4"}) {
    const std::string how = fmt::format("model={} format={}{}", path("base"), format, calibration);
    answer(fmt::format("quantize output_dir={} {}", path("apart"), how));
    answer(fmt::format("export output_dir={} {}", path("exported"), how));
    EXPECT_EQ(contents(path("apart")), contents(path("exported")));
    for (const char* name : {"apart", "exported"}) fs::remove_all(path(name));
  }
  tiny_.must_train("adapter", "init=pretrained method=lora learning_rate=1e-1 max_steps=4 model=" +
                                  path("base"));
  const std::string merge = fmt::format(
      "merge model={} adapter={} output_dir={} format=gptq bits=2 group_size=32 eval_data={}{}",
      path("base"), path("adapter"), path("q"), tiny_.eval_data(), calibration);
  const json merged = answer(merge);
  EXPECT_NEAR(merged["base_loss"], loss("base"), 1e-6);
  EXPECT_GT(std::abs(merged["reference_loss"].get<double>() - loss("base")), 1e-3);
  fs::remove_all(path("q"));
  // Nothing stays of what loses too much, not even what a repeated command would go on from.
  expect_refused(run(merge + " max_merge_loss=0" + kErrorsOnly), 1, {"more than max_merge_loss"});
  EXPECT_FALSE(fs::exists(path("q")));
  EXPECT_FALSE(fs::exists(path("q.unfinished")));
  expect_refused(run(fmt::format("export format=hf dry_run=true model={} output_dir={}",
                                 path("base"), path("q")) +
                     kErrorsOnly),
                 2, {"export has no dry run"});
}

TEST_F(SlowQuantise, SameBytesWithAnyThreads) {
  expect_same_bytes_with_any_threads("bits=4 desc_act=true sym=false");
}

TEST_F(SlowQuantise, LosesLessThanTheNearest) {
  const json rounded = answer(quantise("g", "bits=2")),
             nearest = answer(quantise("n", "bits=2 rounding=nearest"));
  double with = 0.0, without = 0.0;
  for (size_t i = 0; i < rounded["matrices"].size(); ++i) {
    with += rounded["matrices"][i]["error"].get<double>();
    without += nearest["matrices"][i]["error"].get<double>();
  }
  EXPECT_LT(with, 0.8 * without);
}

TEST_F(SlowQuantise, ReadsWhatItWrote) {
  answer(quantise("g", "bits=4"));
  tiny_.must_train("tuned", "init=pretrained method=lora max_steps=1 model=" + path("g"));
  // Quantised models can be quantised again.
  const Outcome outcome = run(fmt::format(
      "quantize model={} data={} output_dir={} sequence_len=64 group_size=32 bits=8 --quiet",
      path("g"), tiny_.data(), path("again")));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  EXPECT_NE(outcome.out.find("bits a weight"), std::string::npos) << outcome.out;
}

// A text is calibrated on whole, whoever speaks in it and however long a prompt is.
TEST_F(SlowQuantise, CalibratesOnTextsWithoutAnswers) {
  std::string questions;
  for (int i = 0; i < 40; ++i) {
    questions += fmt::format(
        "{{\"messages\": [{{\"role\": \"user\", \"content\": \"{} is the number {}\"}}]}}\n",
        std::string(60, 'q'), i);
  }
  const json made =
      answer(quantise("g", "bits=4 data=" + tiny_.file("questions.jsonl", questions)));
  EXPECT_GT(made["calibration_tokens"].get<int64_t>(), 0);
}

// What is rounded with adapters is the merged model, over plain weights or codes.
TEST_F(SlowQuantise, RoundsAMergedModel) {
  answer(quantise("g", "bits=8"));
  for (const std::string base : {"base", "g"}) {
    SCOPED_TRACE(base);
    const std::string train =
        "init=pretrained method=lora max_steps=2 learning_rate=1e-2 model=" + path(base);
    tiny_.must_train(base + "_one", train);
    tiny_.must_train(base + "_two", train + " seed=2");
    const std::string model = fmt::format("model={} adapter={},{} adapter_weight=1,0.5", path(base),
                                          path(base + "_one"), path(base + "_two"));
    const std::string merged = path(base + "_merged");
    EXPECT_EQ(run(fmt::format("merge {} output_dir={} storage=f32", model, merged)).exit_code, 0);
    const std::string how =
        "bits=4 storage=f16 overwrite=true eval_data=" + tiny_.eval_data() + " ";
    const json apart = answer(quantise("apart", how + "model=" + merged));
    const json at_once = answer(quantise("at_once", how + model));
    EXPECT_EQ(contents(path("apart")), contents(path("at_once")));
    EXPECT_EQ(apart["loss"], at_once["loss"]);
    EXPECT_NEAR(apart["reference_loss"], at_once["reference_loss"], 1e-6);
    EXPECT_GT(std::abs(at_once["reference_loss"].get<double>() - loss(base)), 1e-3);
  }
}

// What an unfinished quantisation is known by. To read all of the model can take minutes: whoever
// stops the command then need not wait for them.
TEST_F(SlowQuantise, SettingsTellInputsApart) {
  tiny_.must_train("adapter", "init=pretrained method=lora max_steps=1 model=" + path("base"));
  const auto settings = [&](const std::string& weight, const ProgressStyle& style = {}) {
    const Recipe recipe = make_recipe({"model=" + path("base"), "adapter=" + path("adapter"),
                                       "adapter_weight=" + weight, "bits=4"});
    return quantisation_settings(recipe, ConvertedModel(recipe), *make_gptq_rounder(recipe), {},
                                 style);
  };
  EXPECT_EQ(settings("0.1234567"), settings("0.1234567"));
  EXPECT_NE(settings("0.1234567"), settings("0.1234568"));
  ProgressStyle style;
  style.check = [] { throw Error(ErrorKind::interrupted, "stopped"); };
  expect_message(ErrorKind::interrupted, "stopped", [&] { settings("1", style); });
}

TEST_F(SlowQuantise, Refusals) {
  refused("bits=5", 2, {"5 bits", "bits=2, 3, 4 or 8"});
  refused("bits=4.5", 2, {"4.5 bits", "format=exl2"});
  refused("head_bits=4", 2, {"head_bits", "format=exl2"});
  refused("group_size=48", 2, {"group_size=48", "power of two"});
  refused("format=gguf_adapter", 2, {"does not write format=gguf_adapter"});
  refused("product=int8", 2, {"product=int8", "product=f32"});
  refused("storage=q4_k", 2, {"storage=q4_k"});
  refused("data= ", 2, {"data"});
  refused("data=" + tiny_.file("short.jsonl", TinyRun::record("a", "b")), 4,
          {"too few", "at least 64"});
  refused("model=llama-9m tokenizer=bytes", 2, {"without weights"});
  fs::create_directories(path("q"));
  write_text_atomic(path("q") + "/notes.txt", "mine");
  expect_refused(run(quantise("q", "--quiet") + kErrorsOnly), 2, {"holds notes.txt"});
  refused(fmt::format("data={} eval_data=typo.jsonl", path("short.jsonl")), 4, {"typo.jsonl"});
  refused("data=typo.jsonl --dry-run", 4, {"typo.jsonl"});
  // Before the data are read.
  for (const std::string format : {"auto", "gptq"}) {
    const Outcome outcome =
        run(quantise("m.gguf", "data=typo.jsonl format=" + format) + " --quiet" + kErrorsOnly);
    if (format == "auto") {
      expect_refused(outcome, 2, {"group_size is set", "storage determines it"});
    } else {
      expect_refused(outcome, 2, {"format is gptq, but", "has the name of a GGUF file"});
    }
  }
  expect_dry_run("", "14 matrices");
}

TEST_F(SlowQuantise, ADryRunSaysWhatItKnows) {
  const json dry = answer(quantise("q", "--dry-run")), real = answer(quantise("q"));
  for (const char* same : {"output", "bytes", "bits", "calibration_tokens"}) {
    EXPECT_EQ(dry[same], real[same]) << same;
  }
  for (const json& matrix : dry["matrices"]) {
    EXPECT_TRUE(matrix["error"].is_null()) << matrix;
    EXPECT_TRUE(matrix["bits"].is_number()) << matrix;
  }
}

// It is told, and nobody is kept from going on with another.
TEST_F(SlowQuantise, RoundsToTheNearestWithoutDamping) {
  const Outcome dry = run(quantise("q", "rounding=nearest damp_percent=0.02 --dry-run") + " 2>&1");
  EXPECT_NE(dry.out.find("quantize does not use damp_percent with rounding=nearest"),
            std::string::npos)
      << dry.out;
  for (const std::string how : {"gptq", "nearest"}) {
    const Recipe recipe = make_recipe({"model=" + path("base"), "rounding=" + how});
    const QuantisationSettings settings =
        quantisation_settings(recipe, ConvertedModel(recipe), *make_gptq_rounder(recipe), {}, {});
    EXPECT_EQ(settings.contains("damp_percent"), how == "gptq");
  }
  // No Hessian is inverted, so that fewer tokens than a layer has inputs do.
  const std::string few = "sequence_len=16 calibration_sequences=1 ";
  refused(few, 4, {"too few for layers of"});
  EXPECT_EQ(answer(quantise("few", few + "rounding=nearest"))["calibration_tokens"], 16);
  answer(quantise("many", "rounding=nearest"));
  EXPECT_EQ(tiny_.text("few/model.safetensors"), tiny_.text("many/model.safetensors"));
}

TEST_F(SlowQuantise, NamesTheWeightThatIsNotFinite) {
  fs::copy(path("base"), path("nan"));
  const auto spoil = [&](const std::string& name) {
    std::string bytes = read_text(path("nan") + "/model.safetensors");
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    const json tensors = json::parse(bytes.substr(sizeof header, header));
    const size_t at = sizeof header + header + tensors[name]["data_offsets"][0].get<size_t>();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(bytes.data() + at, &nan, sizeof nan);
    write_text_atomic(path("nan") + "/model.safetensors", bytes);
  };
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  spoil(name);
  refused("model=" + path("nan"), 6, {name + " has values that are not finite"});
  // What is not rounded is looked at before any block is.
  spoil("lm_head.weight");
  refused("model=" + path("nan"), 6, {"lm_head.weight has a value that is not finite"});
}

TEST(CalibrationText, IsSpreadOverTheData) {
  std::vector<Example> examples;
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 25; ++i) {
    examples.push_back({{4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3}, {1, 1, 1, 1}});
    tokens.insert(tokens.end(), examples.back().ids.begin(), examples.back().ids.end());
  }
  const Dataset data(std::move(examples), 4);
  const CalibrationText text = calibration_text(data, {3, 10}, 30);
  ASSERT_EQ(text.tokens(), 30);
  std::vector<int32_t> expected;  // [0, 10), [30, 40), [60, 70)
  for (const int32_t begin : {0, 30, 60}) {
    for (int32_t i = 0; i < 10; ++i) expected.push_back(begin + i);
  }
  EXPECT_EQ(text.ids, expected);
  // Examples end within a sequence, where one begins, and hold several of them.
  for (const int64_t sequence_len : {1, 2, 3, 4, 7, 8, 33, 100}) {
    for (const int64_t sequences : {1, 2, 3, 5, 13, 100}) {
      EXPECT_EQ(calibration_text(data, {sequences, sequence_len}, 1).ids,
                calibration_text(tokens, {sequences, sequence_len}, 1).ids)
          << sequences << " of " << sequence_len;
    }
  }
  EXPECT_EQ(calibration_text(data, {50, 10}, 100).ids, tokens);
  // The text has enough, but calibration_sequences takes less of it.
  expect_message(ErrorKind::data, "100 tokens, 10 whole sequences of 10 each; 3 of them", [&] {
    calibration_text(data, {3, 10}, 31);
  });
  expect_error(ErrorKind::data, "set calibration_sequences to 4 or more", [&] {
    calibration_text(data, {3, 10}, 31);
  });
  expect_error(ErrorKind::data, "at least 101 are needed", [&] {
    calibration_text(data, {30, 10}, 101);
  });
  // Or sequences are too long for it: one of 100 tokens or two of 50 would do.
  expect_error(ErrorKind::data, "sequence_len=100", [&] { calibration_text(data, {3, 512}, 80); });
  expect_error(ErrorKind::data, "sequence_len=50", [&] { calibration_text(data, {3, 60}, 80); });
  expect_error(ErrorKind::data, "0 tokens: too few | shorter sequences give enough", [&] {
    calibration_text(data, {3, 512}, 1);
  });
}

}  // namespace
}  // namespace jackscrew
