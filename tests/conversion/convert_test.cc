// merge and export as users call them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "tests/conversion/conversion.h"
#include "tests/support/worse.h"
#include "text/tokenizer/tokenizer_files.h"

namespace jackscrew {
namespace {

using nlohmann::json;

TEST_F(SlowConversion, MergedIsBaseAndAdapter) {
  for (const std::string more : {"use_dora=false", "use_dora=true", "use_rslora=true",
                                 "modules_to_save=embed_tokens,lm_head", "lora_init=pissa"}) {
    SCOPED_TRACE(more);
    fs::remove_all(path("adapter"));
    train_adapter("adapter", more);
    const std::string both = fmt::format("model={} adapter={}", path("base"), path("adapter"));
    const json said =
        answer("merge " + both + " overwrite=true storage=f32 output_dir=" + path("merged") + " " +
               eval());
    EXPECT_NEAR(said["loss"], said["reference_loss"], 1e-6);
    EXPECT_LT(said["kl"], 1e-9);
    EXPECT_EQ(said["agreement"], 1.0);
    EXPECT_NEAR(loss("model=" + path("merged")), loss(both), 1e-6);
    EXPECT_GT(std::abs(said["base_loss"].get<double>() - said["loss"].get<double>()), 1e-3);
  }
}

TEST_F(SlowConversion, RepeatedIsTheSameBytes) {
  train_adapter("adapter");
  const std::string both = fmt::format("model={} adapter={}", path("base"), path("adapter"));
  for (const std::string place : {"output_dir=", "output="}) {
    const std::string ending = place == "output=" ? ".gguf" : "";
    for (const int threads : {1, 2}) {
      answer(fmt::format("merge {} storage=bf16 {}{}{} threads={}", both, place,
                         path(fmt::format("again{}", threads)), ending, threads));
    }
    if (ending.empty()) {
      EXPECT_EQ(contents(path("again1")), contents(path("again2")));
    } else {
      EXPECT_EQ(read_text(path("again1.gguf")), read_text(path("again2.gguf")));
    }
  }
}

TEST_F(SlowConversion, SeveralAdaptersAddUp) {
  train_adapter("one", "seed=1");
  train_adapter("two", "seed=2");
  const std::string model = "model=" + path("base");
  const auto merged = [&](const std::string& adapters, const std::string& weights,
                          const std::string& output) {
    answer(fmt::format("merge {} adapter={} adapter_weight={} storage=f32 output_dir={}", model,
                       adapters, weights, path(output)));
    return SafetensorsFile(path(output) + "/model.safetensors");
  };
  const SafetensorsFile first = merged(path("one"), "1", "m1"),
                        second = merged(path("two"), "1", "m2"),
                        sum = merged(path("one") + "," + path("two"), "0.7,-0.3", "m12"),
                        base(path("base") + "/model.safetensors");
  double worst = 0.0, most = 0.0;
  for (const SafetensorsEntry& entry : base.entries()) {
    const auto at = [&](const SafetensorsFile& file, size_t i) {
      float value;
      std::memcpy(&value, file.find(entry.name)->bytes.data() + 4 * i, sizeof value);
      return static_cast<double>(value);
    };
    for (size_t i = 0; i < entry.bytes.size() / 4; ++i) {
      const double w = at(base, i),
                   expected = w + 0.7 * (at(first, i) - w) - 0.3 * (at(second, i) - w);
      worst = worse(worst, std::abs(at(sum, i) - expected));
      most = std::max(most, std::abs(expected - w));
    }
  }
  EXPECT_LT(worst, 1e-6);
  EXPECT_GT(most, 1e-3);
  // And the sum in f32 is what eval_data compares with.
  const json said =
      answer(fmt::format("merge {} adapter={},{} adapter_weight=0.7,-0.3 overwrite=true "
                         "storage=f32 output_dir={} {}",
                         model, path("one"), path("two"), path("m12"), eval()));
  EXPECT_EQ(said["kl"], 0.0);
}

TEST_F(SlowConversion, GgufAndBackAreTheSameWeights) {
  answer(fmt::format("export model={} output={} storage=f32", path("base"), path("x.gguf")));
  EXPECT_EQ(loss("model=" + path("x.gguf") + " chat_template=plain"),
            loss("model=" + path("base") + " chat_template=plain"));
  answer(fmt::format("export model={} output_dir={}", path("x.gguf"), path("back")));
  EXPECT_EQ(read_text(path("back") + "/model.safetensors"),
            read_text(path("base") + "/model.safetensors"));
  const std::string ids = fmt::format("data tokenize data={} --json model=", tiny_.eval_data());
  const std::string of_base = run(ids + path("base")).out;
  EXPECT_FALSE(of_base.empty());
  EXPECT_EQ(run(ids + path("x.gguf")).out, of_base);
  EXPECT_EQ(run(ids + path("back")).out, of_base);
  // Bytes that need not be decoded are not touched.
  answer(fmt::format("export model={} output={} storage=q8_0", path("base"), path("q.gguf")));
  answer(fmt::format("export model={} output={}", path("q.gguf"), path("q2.gguf")));
  const GgufFile once(path("q.gguf")), twice(path("q2.gguf"));
  for (const GgufTensor& tensor : once.tensors()) {
    EXPECT_TRUE(std::ranges::equal(tensor.bytes, twice.find(tensor.name)->bytes)) << tensor.name;
  }
  EXPECT_EQ(once.find("blk.1.attn_q.weight")->format, "q8_0");
  EXPECT_EQ(once.find("blk.1.attn_norm.weight")->format, "f32");
}

// Which matrix has which type: tests/conversion/gguf_mixtures_test.cc.
TEST_F(SlowConversion, AMixtureIsCalledByItsName) {
  const std::string base = "export model=" + path("base");
  const json said = answer(base + " storage=q4_k_m output=" + path("m.gguf"));
  EXPECT_EQ(said["file_type"], "q4_k_m");
  EXPECT_EQ(GgufFile(path("m.gguf")).integer("general.file_type"), 15);
  EXPECT_EQ(answer("inspect " + path("m.gguf"))["file_type"], "q4_k_m");
  EXPECT_GT(loss("model=" + path("m.gguf")), 0.0);
  // Rows of 32 and 64 elements: the notes say what became of them.
  EXPECT_NE(said["notes"].dump().find("32 elements: q5_0 instead of q4_k"), std::string::npos)
      << said["notes"];
  EXPECT_GT(said["storage"]["q5_0"]["tensors"], 0);
  // It keeps the name as long as it is one.
  answer(fmt::format("export model={} output={}", path("m.gguf"), path("k.gguf")));
  EXPECT_EQ(GgufFile(path("k.gguf")).integer("general.file_type"), 15);
  answer(fmt::format("export model={} output={} storage=q5_0", path("m.gguf"), path("p.gguf")));
  EXPECT_EQ(answer("inspect " + path("p.gguf"))["file_type"], "q5_0");
  EXPECT_FALSE(answer("inspect " + path("base")).contains("file_type"));
  expect_refusal(base + " storage=q4_k_m output_dir=" + path("d"), 2,
                 {"storage=q4_k_m cannot be written to a Hugging Face directory"});
  EXPECT_FALSE(fs::exists(path("d")));
}

TEST_F(SlowConversion, ShardsReadBackAsOne) {
  answer(fmt::format("export model={} output_dir={} max_shard_size=20kB", path("base"), path("s")));
  EXPECT_TRUE(fs::exists(path("s") + "/model.safetensors.index.json"));
  EXPECT_EQ(loss("model=" + path("s")), loss("model=" + path("base")));
}

TEST_F(SlowConversion, AQuantisedBaseIsMergedFromItsOwnValues) {
  answer(fmt::format("export model={} output={} storage=q4_0", path("base"), path("q.gguf")));
  train_adapter("adapter");
  const std::string both = fmt::format("model={} adapter={}", path("q.gguf"), path("adapter"));
  const json said = answer("merge " + both + " output_dir=" + path("merged") + " " + eval());
  EXPECT_NEAR(said["loss"], said["reference_loss"], 1e-6);
  EXPECT_NE(said["notes"].dump().find("14 weights are written in f32 instead of q4_0"),
            std::string::npos)
      << said["notes"];
}

// What NF4 in memory computes with is what the directory holds.
TEST_F(SlowConversion, Nf4IsThatOfMemory) {
  const std::string base = "model=" + path("base");
  answer(fmt::format("export {} output_dir={} storage=nf4 max_shard_size=20kB", base, path("n")));
  EXPECT_EQ(loss("model=" + path("n")), loss(base + " storage=nf4"));
  EXPECT_NE(loss("model=" + path("n")), loss(base));
  const json config = json::parse(read_text(path("n") + "/config.json"));
  EXPECT_EQ(config["quantization_config"]["bnb_4bit_quant_type"], "nf4");
  const std::string bnb = fmt::format("export {} output_dir={} format=bnb", base, path("b"));
  answer(bnb + " max_shard_size=20kB");
  EXPECT_EQ(contents(path("b")), contents(path("n")));
  expect_refusal(bnb + " overwrite=true storage=bf16", 2,
                 {"format=bnb has storage=nf4, but", "says storage=bf16", "or format=hf"});
  // A run's recipe has the storage that nobody chose; who asks for that one is told.
  const std::string left = tiny_.file("left.yaml", "storage: keep\n");
  answer(bnb + " max_shard_size=20kB " + left + " output_dir=" + path("kept"));
  EXPECT_EQ(contents(path("kept")), contents(path("n")));
  expect_refusal(bnb + " overwrite=true storage=keep", 2, {"says storage=keep"});
}

// Codes and scales are copied: encoding again would not find the same scales of every code.
TEST_F(SlowConversion, Nf4StaysAsItIs) {
  answer(
      fmt::format("quantize model={} data={} output_dir={} format=hf storage=nf4 "
                  "sequence_len=64 calibration_sequences=8",
                  path("base"), tiny_.data(), path("n")));
  const std::string before = read_text(path("n") + "/model.safetensors");
  for (const std::string how : {"storage=keep", "storage=nf4"}) {
    SCOPED_TRACE(how);
    const json said = answer(
        fmt::format("export model={} {} output_dir={} overwrite=true", path("n"), how, path("k")));
    EXPECT_EQ(said["storage"]["nf4"]["tensors"], 14);
    EXPECT_EQ(said["notes"].size(), 0u) << said["notes"];
    EXPECT_TRUE(read_text(path("k") + "/model.safetensors") == before);
    EXPECT_TRUE(read_text(path("k") + "/config.json") == read_text(path("n") + "/config.json"));
  }
  // What an adapter is merged into becomes f32, and bitsandbytes is told so.
  train_adapter("adapter", "model=" + path("n") + " lora_target_modules=q_proj");
  const json merged = answer(fmt::format("merge model={} adapter={} output_dir={} {}", path("n"),
                                         path("adapter"), path("m"), eval()));
  EXPECT_EQ(merged["storage"]["nf4"]["tensors"], 12);
  EXPECT_NEAR(merged["loss"], merged["reference_loss"], 1e-6);
  const json config = json::parse(read_text(path("m") + "/config.json"))["quantization_config"];
  EXPECT_EQ(config["llm_int8_skip_modules"], (json{"lm_head", "model.layers.0.self_attn.q_proj",
                                                   "model.layers.1.self_attn.q_proj"}));
  expect_only_q_proj_differs("n", "m");
}

TEST_F(SlowConversion, Nf4IsNotWrittenToAGgufFile) {
  answer(fmt::format("export model={} output_dir={} storage=nf4", path("base"), path("n")));
  const json said = answer(fmt::format("export model={} output={}", path("n"), path("n.gguf")));
  EXPECT_NE(said["notes"].dump().find("14 weights are written in f32 instead of nf4: it is not "
                                      "written to such files"),
            std::string::npos)
      << said["notes"];
}

TEST_F(SlowConversion, AMergeThatLosesTooMuchLeavesNothing) {
  // What was learned by heart is what coarse codes lose.
  train_adapter("adapter", "max_steps=60 modules_to_save=embed_tokens,lm_head");
  const std::string merge =
      fmt::format("merge model={} adapter={} eval_data={} sequence_len=64 storage=q4_0 ",
                  path("base"), path("adapter"), tiny_.data());
  expect_refusal(merge + "max_merge_loss=0 output=" + path("m.gguf"), 1,
                 {"more than max_merge_loss", "storage=f32"});
  EXPECT_FALSE(fs::exists(path("m.gguf")));
  EXPECT_FALSE(fs::exists(path("m.gguf.jackscrew-part")));
  answer(merge + "max_merge_loss=0 storage=f32 eval_data=" + tiny_.eval_data() +
         " output_dir=" + path("f32"));
  answer(merge + "max_merge_loss=5 output=" + path("m.gguf"));
  EXPECT_TRUE(fs::exists(path("m.gguf")));
}

TEST_F(SlowConversion, NumbersThatAreNotFiniteAreNotWritten) {
  fs::copy(path("base"), path("nan"));
  std::string bytes = read_text(path("nan") + "/model.safetensors");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(bytes.data() + bytes.size() - sizeof nan, &nan, sizeof nan);
  write_text_atomic(path("nan") + "/model.safetensors", bytes);
  for (const char* to : {"output_dir={}", "output={}.gguf storage=f32", "output={}.gguf"}) {
    expect_refusal("export model=" + path("nan") + " " + fmt::format(fmt::runtime(to), path("x")),
                   6, {"has a value that is not finite"});
  }
  EXPECT_FALSE(fs::exists(path("x")) || fs::exists(path("x.gguf")));
}

TEST_F(SlowConversion, AnAdapterOfAnotherModelIsRefused) {
  train_adapter("adapter");
  const std::string other = tiny_.file("other.json", R"({"architectures": ["LlamaForCausalLM"],
      "model_type": "llama", "vocab_size": 260, "hidden_size": 48, "intermediate_size": 64,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
      "max_position_embeddings": 128, "bos_token_id": 256, "eos_token_id": 257})");
  tiny_.must_train("other", "method=full max_steps=1 model=" + other);
  expect_refusal(fmt::format("merge model={} adapter={} output_dir={}", path("other"),
                             path("adapter"), path("m")),
                 5, {"has shape [4, 32]", "asks for [4, 48]", "made for another model"});
  EXPECT_FALSE(fs::exists(path("m")));
}

// A trainer's copy of the model's tokenizer beside the adapter changes nothing about them.
TEST_F(SlowConversion, KeepsTheModelsEndTokensWhereTheAdapterHasItsTokens) {
  json config = json::parse(tiny_.text("base/config.json"));
  config["eos_token_id"] = {257, 65};
  tiny_.file("base/config.json", config.dump());
  tiny_.file("base/generation_config.json", R"({"eos_token_id": [257, 66], "temperature": 0.6})");
  train_adapter("adapter");
  const std::string merge =
      fmt::format("merge model={} adapter={} output_dir=", path("base"), path("adapter"));
  answer(merge + path("same"));
  EXPECT_EQ(json::parse(tiny_.text("same/config.json"))["eos_token_id"], (json{257, 65}));
  const json generation = json::parse(tiny_.text("same/generation_config.json"));
  EXPECT_EQ(generation["eos_token_id"], (json{257, 66}));
  EXPECT_EQ(generation["temperature"], 0.6);
  for (const std::string name : {"adapter/tokenizer.json", "adapter/tokenizer_config.json"}) {
    std::string text = tiny_.text(name);
    for (size_t at = 0; (at = text.find("</s>", at)) != std::string::npos;) {
      text.replace(at, 4, "</t>");
    }
    tiny_.file(name, text);
  }
  answer(merge + path("other"));
  EXPECT_EQ(json::parse(tiny_.text("other/config.json"))["eos_token_id"], 257);
  EXPECT_FALSE(json::parse(tiny_.text("other/generation_config.json")).contains("temperature"));
}

TEST_F(SlowConversion, ReplacesOnlyModelsAndOnlyWhenAsked) {
  const std::string exported = fmt::format("export model={} output_dir=", path("base"));
  answer(exported + path("x"));
  expect_refusal(exported + path("x"), 2, {"exists already", "overwrite=true"});
  answer(exported + path("x") + " overwrite=true");
  tiny_.file("x/notes.txt", "mine");
  expect_refusal(exported + path("x") + " overwrite=true", 2, {"holds notes.txt", "would be lost"});
  EXPECT_TRUE(fs::exists(path("x") + "/notes.txt"));
  expect_refusal(exported + path("base") + "/", 2, {"is what is read"});
  expect_refusal(exported + path("train.jsonl"), 2, {"is a file, where a directory"});
  expect_refusal(fmt::format("export model={} output={}", path("base"), path("x")), 2,
                 {"holds notes.txt"});
}

TEST_F(SlowConversion, WhatIsReadThroughLinksIsNotReplaced) {
  fs::create_directory(path("links"));
  for (const auto& entry : fs::directory_iterator(path("base"))) {
    fs::create_symlink(entry.path(), fs::path(path("links")) / entry.path().filename());
  }
  const std::string to = "model=" + path("links") + " overwrite=true output_dir=" + path("base");
  const std::string before = read_text(path("base") + "/model.safetensors");
  expect_refusal("export " + to, 2, {"is what is read, and would be replaced"});
  expect_refusal("train " + to + " " + tiny_data(), 2, {"through links"});
  EXPECT_EQ(read_text(path("base") + "/model.safetensors"), before);
}

// What is in the file: tests/formats/gguf_adapter_test.cc; what llama.cpp makes of it:
// script/parity.
TEST_F(SlowConversion, AnAdapterByItselfAsGguf) {
  train_adapter("adapter");
  const std::string both = fmt::format("model={} adapter={} ", path("base"), path("adapter"));
  const std::string write = "export " + both + "format=gguf_adapter output=" + path("a.gguf");
  const json said = answer(write);
  EXPECT_EQ(said["bytes"], fs::file_size(path("a.gguf")));
  EXPECT_EQ(said["storage"]["f32"]["tensors"], 28);  // two for each of seven modules, in two layers
  expect_refusal(write, 2, {"exists already"});
  const std::string bytes = read_text(path("a.gguf"));
  answer(write + " overwrite=true");
  EXPECT_EQ(read_text(path("a.gguf")), bytes);
  const std::string anew = "format=gguf_adapter output=" + path("b.gguf");
  expect_refusal("merge " + both + anew, 2, {"merge writes models", "jackscrew export"});
  expect_refusal("export " + both + anew + " " + eval(), 2, {"eval_data", "jackscrew eval"});
  expect_refusal("export model=" + path("base") + " " + anew, 2, {"adapter"});
  expect_refusal("export " + both + anew + " adapter_weight=0.5", 2, {"one adapter as it is"});
  expect_refusal("export " + both + anew + " lora_alpha=99", 2, {"lora_alpha", "99"});
  train_adapter("dora", "use_dora=true");
  expect_refusal(fmt::format("export model={} adapter={} {}", path("base"), path("dora"), anew), 5,
                 {"lengths of DoRA", "jackscrew merge"});
  EXPECT_FALSE(fs::exists(path("b.gguf")));
  EXPECT_FALSE(fs::exists(path("b.gguf.jackscrew-part")));
}

TEST_F(SlowConversion, AnAdapterThatIsNotFiniteIsNotWritten) {
  train_adapter("adapter");
  const std::string weights = path("adapter") + "/adapter_model.safetensors";
  const std::string good = read_text(weights);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::string bytes = good;
    std::memcpy(bytes.data() + bytes.size() - sizeof bad, &bad, sizeof bad);
    write_text_atomic(weights, bytes);
    for (const char* storage : {"f32", "f16"}) {
      expect_refusal(fmt::format("export model={} adapter={} format=gguf_adapter storage={} "
                                 "output={}",
                                 path("base"), path("adapter"), storage, path("a.gguf")),
                     6, {"lora_", "values that are not finite", "training went wrong"});
    }
  }
  EXPECT_FALSE(fs::exists(path("a.gguf")) || fs::exists(path("a.gguf.jackscrew-part")));
}

TEST_F(SlowConversion, AnAdapterAsGgufInF16) {
  train_adapter("adapter");
  const std::string both =
      fmt::format("export model={} adapter={} format=gguf_adapter ", path("base"), path("adapter"));
  const json said = answer(both + "storage=f16 output=" + path("half.gguf"));
  EXPECT_EQ(said["storage"]["f16"]["tensors"], 28);
  answer(both + "output=" + path("whole.gguf"));
  EXPECT_LT(fs::file_size(path("half.gguf")), fs::file_size(path("whole.gguf")));
  expect_refusal(both + "storage=q8_0 output=" + path("q.gguf"), 2, {"storage=q8_0", "and f16"});
  tiny_.must_train("prompt", "method=prompt init=pretrained max_steps=1 model=" + path("base"));
  expect_refusal(fmt::format("export model={} adapter={} format=gguf_adapter output={}",
                             path("base"), path("prompt"), path("p.gguf")),
                 5, {"adapters of type PROMPT_TUNING", "generate and chat"});
}

// Before anything is written: the output's directory refuses it, but nobody asks that.
TEST_F(SlowConversion, DataThatAreMissingAreToldFirst) {
  expect_refusal(
      fmt::format("export model={} output=/proc/m.gguf eval_data=typo.jsonl", path("base")), 4,
      {"typo.jsonl"});
}

TEST_F(SlowConversion, SaysWhatIsNotWritten) {
  fs::copy(path("base"), path("bare"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::remove(path("bare") + "/" + name);
  }
  const std::string notes = answer("export chat_template=chatml model=" + path("bare") +
                                   " output_dir=" + path("x"))["notes"]
                                .dump();
  EXPECT_NE(notes.find("no tokenizer is written: "), std::string::npos) << notes;
  EXPECT_NE(notes.find("chat_template is not written"), std::string::npos) << notes;
  json config = json::parse(read_text(path("bare") + "/config.json"));
  config["num_hidden_layers"] = 1;
  write_text_atomic(path("bare") + "/config.json", config.dump());
  const std::string model = "model=" + path("bare");
  for (const std::string& command :
       {"export " + model + " output_dir=" + path("fewer"), "eval " + model + " " + tiny_data(),
        "train " + model + " max_steps=1 output_dir=" + path("trained") + " " + tiny_data()}) {
    const Outcome fewer = run(command + " 2>&1");
    EXPECT_EQ(fewer.exit_code, 0) << fewer.out;
    EXPECT_NE(fewer.out.find("9 tensors are not used, since the model of its configuration has no "
                             "place for them: model.layers.1."),
              std::string::npos)
        << fewer.out;
  }
}

TEST_F(SlowConversion, SaysThatAWindowIsIgnored) {
  json config = json::parse(tiny_.text("base/config.json"));
  config["architectures"] = {"MistralForCausalLM"};
  config["model_type"] = "mistral";
  const auto notes = [&](int64_t window) {
    config["sliding_window"] = window;
    tiny_.file("base/config.json", config.dump());
    return answer(fmt::format("export model={} output={} overwrite=true", path("base"),
                              path("m.gguf")))["notes"]
        .dump();
  };
  EXPECT_NE(notes(32).find("llama.cpp ignores the sliding window of 32 tokens"), std::string::npos);
  EXPECT_EQ(notes(128), "[]");
}

// Other trainers write an adapter's tokenizer without the model's chat template.
TEST_F(SlowConversion, AnAdapterWithoutATemplateHasTheModels) {
  train_adapter("adapter");
  const std::string chat = "{% for m in messages %}<{{ m.content }}>{% endfor %}";
  tiny_.file("base/chat_template.jinja", chat);
  const auto preview = [&](const std::string& more) {
    return run(fmt::format("data preview model={} data={} {}", path("base"), tiny_.data(), more))
        .out;
  };
  EXPECT_NE(preview("").find("<Say number 0>"), std::string::npos) << preview("");
  EXPECT_EQ(preview("adapter=" + path("adapter")), preview(""));
  answer(fmt::format("merge model={} adapter={} output_dir={}", path("base"), path("adapter"),
                     path("merged")));
  EXPECT_EQ(tiny_.text("merged/chat_template.jinja"), chat);
  // One that is there goes before the model's.
  tiny_.file("adapter/chat_template.jinja", "{% for m in messages %}[{{ m.content }}]{% endfor %}");
  EXPECT_NE(preview("adapter=" + path("adapter")).find("[Say number 0]"), std::string::npos);
}

// Of several adapters one template is written.
TEST_F(SlowConversion, AnAdapterWithAnotherTemplateIsNamed) {
  const std::string chat = "{% for m in messages %}<{{ m.content }}>{% endfor %}";
  for (const char* name : {"one", "same", "other"}) {
    train_adapter(name);
    tiny_.file(std::string(name) + "/chat_template.jinja",
               name == std::string("other") ? "x" : chat);
  }
  const std::string merge = fmt::format("merge model={} adapter={},{},{} overwrite=true ",
                                        path("base"), path("one"), path("same"), path("other"));
  const std::vector<std::string> note = {path("other") + " has another chat template than " +
                                         path("one") + ", whose is written"};
  EXPECT_EQ(answer(merge + "output_dir=" + path("m"))["notes"], json(note));
  EXPECT_EQ(tiny_.text("m/chat_template.jinja"), chat);
  EXPECT_EQ(answer(merge + "chat_template=chatml output_dir=" + path("m"))["notes"], json::array());
}

// Or conversations with tools would have the one before.
TEST_F(SlowConversion, TheTemplateForToolsGoesWithTheOther) {
  train_adapter("adapter");
  const std::string model = "model=" + path("base") + " overwrite=true ";
  const std::string chat = "{% for m in messages %}<{{ m.content }}>{% endfor %}";
  for (const char* place : {"base", "adapter"}) {
    fs::create_directories(path(place) + "/additional_chat_templates");
    tiny_.file(std::string(place) + "/" + kToolTemplateFile,
               chat + "{{ bos_token }}{{ tools }} of " + place);
  }
  tiny_.file("base/chat_template.jinja", chat);
  const auto for_tools = [&](const std::string& command) {
    answer(command + " output=" + path("m.gguf"));
    answer(command + " output_dir=" + path("m"));
    const std::string file = path("m") + "/" + kToolTemplateFile;
    const std::string in_gguf = gguf_tokenizer(GgufFile(path("m.gguf"))).tool_template;
    EXPECT_EQ(fs::exists(file) ? read_text(file) : "", in_gguf) << command;
    return in_gguf;
  };
  EXPECT_EQ(for_tools("export " + model), tiny_.text(std::string("base/") + kToolTemplateFile));
  EXPECT_EQ(for_tools("export chat_template=chatml " + model), "");
  // One that stands alone beside an adapter goes before the model's.
  fs::remove(path("adapter") + "/tokenizer.json");
  fs::remove(path("adapter") + "/tokenizer_config.json");
  EXPECT_EQ(for_tools("merge adapter=" + path("adapter") + " " + model),
            tiny_.text(std::string("adapter/") + kToolTemplateFile));
  EXPECT_EQ(tiny_.text("m/chat_template.jinja"), chat);
}

TEST_F(SlowConversion, CallsOfToolsEndInGgufFilesToo) {
  json tokenizer = json::parse(tiny_.text("base/tokenizer.json"));
  json token = tokenizer["added_tokens"].back();
  token["id"] = 258;
  token["content"] = kEndOfMessage;
  tokenizer["added_tokens"].push_back(token);
  tiny_.file("base/tokenizer.json", tokenizer.dump());
  answer(fmt::format("export model={} output={}", path("base"), path("m.gguf")));
  EXPECT_EQ(gguf_tokenizer(GgufFile(path("m.gguf"))).eom_id, 258);
}

}  // namespace
}  // namespace jackscrew
