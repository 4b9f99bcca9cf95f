// What training runs plan, log and leave behind, through the program.
#include <cmath>

#include "tests/support/tensorboard_decoder.h"
#include "tests/support/tiny_run.h"
#include "text/chat/builtin_templates.h"

namespace jackscrew {
namespace {

nlohmann::json json_of(const std::string& arguments) {
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  return nlohmann::json::parse(outcome.out, nullptr, false);
}

TEST(SlowTrain, PlanIsThePeakOfTheRun) {
  const TinyRun tiny("plan_peak");
  int number = 0;
  for (const char* method : {"full", "lora"}) {
    for (const char* recompute : {"false", "true"}) {
      for (const char* shape :
           {"sequence_len=64 micro_batch_size=1", "sequence_len=128 micro_batch_size=3",
            "sequence_len=17 micro_batch_size=5 packing=false"}) {
        const std::string settings = std::string("max_steps=2 val_size=4 method=") + method +
                                     " gradient_checkpointing=" + recompute + " " + shape;
        const std::string output = "run" + std::to_string(number++);
        tiny.must_train(output, settings);
        const auto plan = json_of("plan --json " + tiny.settings(settings));
        const auto memory = tiny.events(output, "memory");
        ASSERT_EQ(memory.size(), 1u);
        EXPECT_EQ(memory[0]["device"], plan["device"]) << settings;
        EXPECT_EQ(memory[0]["peak_at"], plan["peak_at"]) << settings;
      }
    }
  }
}

// One file sets both: neither overrides the other.
TEST(TrainWarnings, OfTwoWarmUpsInOneRecipe) {
  const TinyRun tiny("two_warm_ups");
  const std::string warning = "warning: train does not use warmup_ratio beside warmup_steps\n";
  const auto is_warned = [&](const std::string& recipe, const std::string& more) {
    const std::string file = tiny.file("run.yaml", recipe);
    const std::string arguments = "train model=nowhere data=none output_dir=o " + file + more;
    return run(arguments + kErrorsOnly).out.find(warning) != std::string::npos;
  };
  EXPECT_TRUE(is_warned("warmup_steps: 0\nwarmup_ratio: 0.1\n", ""));
  EXPECT_FALSE(is_warned("warmup_steps: auto\nwarmup_ratio: 0.1\n", ""));
  EXPECT_FALSE(is_warned("warmup_ratio: 0.1\n", " warmup_steps=0"));
  EXPECT_FALSE(is_warned("warmup_steps: 3\nwarmup_ratio: 0.030\n", ""));  // as runs leave it
}

void expect_finite(const nlohmann::json& value) {
  if (value.is_number()) {
    EXPECT_TRUE(std::isfinite(value.get<double>()));
  } else {
    EXPECT_FALSE(value.is_null());
    if (value.is_structured()) {
      for (const auto& item : value) expect_finite(item);
    }
  }
}

TEST(SlowTrain, LogsAreWhole) {
  const TinyRun tiny("logs");
  tiny.must_train("out", "max_steps=9 save_steps=4 eval_steps=3 eval_data=" + tiny.eval_data());
  const auto events = tiny.events("out");
  ASSERT_GT(events.size(), 4u);
  EXPECT_EQ(events.front()["event"], "start");
  // Samples are answered when the run is safe.
  size_t end = events.size() - 1;
  while (end > 1 && events[end]["event"] == "sample") --end;
  EXPECT_EQ(events[end - 1]["event"], "memory");
  EXPECT_EQ(events[end]["event"], "end");
  int64_t last = 0;
  for (const auto& event : events) {
    EXPECT_GE(event["step"], last);
    last = event["step"];
    expect_finite(event);
  }
  const auto losses = tiny.losses("out");
  EXPECT_EQ(losses.size(), 9u);
  EXPECT_EQ(losses.begin()->first, 1);
  EXPECT_EQ(tiny.events("out", "eval").size(), 4u);  // 0, 3, 6, 9
  EXPECT_EQ(tiny.events("out", "save").size(), 3u);  // 4, 8, 9
  const auto board = scalars(tiny.path("out"), "train/loss");
  ASSERT_EQ(board.size(), losses.size());
  for (const auto& [step, loss] : losses) EXPECT_EQ(board.at(step), static_cast<float>(loss));
  EXPECT_EQ(scalars(tiny.path("out"), "eval/loss").size(), 4u);
}

// The model from which adapters start: one step from random weights.
std::string make_base(const TinyRun& tiny) {
  tiny.must_train("base", "method=full max_steps=3 learning_rate=1e-2");
  return tiny.path("base").string();
}

double last_eval(const TinyRun& tiny, const std::string& output) {
  return tiny.events(output, "eval").back()["eval_loss"].get<double>();
}

TEST(SlowTrain, WhatIsExportedScoresTheSame) {
  const TinyRun tiny("export");
  const std::string evaluation = " max_steps=8 learning_rate=1e-2 eval_data=" + tiny.eval_data();
  const std::string eval = "eval --json sequence_len=64 data=" + tiny.eval_data() + " model=";
  tiny.must_train("full", "method=full" + evaluation);
  EXPECT_NEAR(json_of(eval + tiny.path("full").string())["loss"], last_eval(tiny, "full"), 1e-6);

  const std::string base = make_base(tiny);
  const std::string pretrained = " init=pretrained tokenizer=auto model=" + base;
  tiny.must_train("lora", "method=lora" + evaluation + pretrained);
  const std::string adapter = " adapter=" + tiny.path("lora").string();
  const double tuned = json_of(eval + base + adapter)["loss"];
  EXPECT_NEAR(tuned, last_eval(tiny, "lora"), 1e-6);
  const double untuned = json_of(eval + base)["loss"];
  EXPECT_GT(std::abs(tuned - untuned), 1e-3);

  // Later layers have no adapter, although the adapted ones count from 0 without a gap.
  tiny.must_train("first", "method=lora lora_target=0.self_attn.q_proj" + evaluation + pretrained);
  EXPECT_NEAR(json_of(eval + base + " adapter=" + tiny.path("first").string())["loss"],
              last_eval(tiny, "first"), 1e-6);

  // The recipe of a run knows which part of the data it has held out.
  tiny.must_train("split", "method=full max_steps=8 learning_rate=1e-2 val_size=5");
  const fs::path split = tiny.path("split");
  EXPECT_NEAR(json_of("eval --json " + (split / "recipe.yaml").string() +
                      " init=pretrained tokenizer=auto model=" + split.string())["loss"],
              last_eval(tiny, "split"), 1e-6);

  // Coarse storage of a trained model is exported as the numbers that were evaluated.
  tiny.must_train("coarse", "method=full storage=nf4_double" + evaluation);
  EXPECT_NEAR(json_of(eval + tiny.path("coarse").string())["loss"], last_eval(tiny, "coarse"),
              1e-6);
  // That of a base is made anew wherever the base is loaded.
  tiny.must_train("qlora", "method=lora storage=nf4" + evaluation + pretrained);
  const std::string over_base = eval + base + " adapter=" + tiny.path("qlora").string();
  EXPECT_NEAR(json_of(over_base + " storage=nf4")["loss"], last_eval(tiny, "qlora"), 1e-6);
  EXPECT_GT(std::abs(json_of(over_base)["loss"].get<double>() - last_eval(tiny, "qlora")), 1e-4);

  // Training goes on from an adapter where it stood.
  const Outcome more =
      run(tiny.train("more", "method=lora" + evaluation + pretrained + adapter) + " 2>&1");
  EXPECT_EQ(more.exit_code, 0) << more.out;
  EXPECT_NE(more.out.find("training continues from it; optimizer states start over"),
            std::string::npos)
      << more.out;
  EXPECT_NEAR(tiny.events("more", "eval").front()["eval_loss"], tuned, 1e-6);
}

// A run's recipe names the model that it began from, which no command takes for its result in
// silence.
TEST(SlowTrain, TheRecipeOfARunIsNotItsResult) {
  const TinyRun tiny("own_recipe");
  const std::string base = make_base(tiny);
  const std::string pretrained = " max_steps=1 init=pretrained tokenizer=auto model=" + base;
  for (const char* method : {"full", "lora"}) {
    tiny.must_train(method, std::string("method=") + method + pretrained);
    const fs::path directory = tiny.path(method);
    const std::string setting =
        (method == std::string("full") ? "model=" : "adapter=") + directory.string();
    const std::string recipe = (directory / "recipe.yaml").string();
    const std::string warning = "warning: " + recipe + " has model=" + base +
                                ", from which its run began; the result is " + setting + "\n";
    const std::string eval = "eval " + recipe + " data=" + tiny.eval_data() + " ";
    for (const std::string& command :
         {eval, "export " + recipe + " output=" + tiny.path(method).string() + ".gguf"}) {
      const Outcome outcome = run(command + kErrorsOnly);
      EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
      EXPECT_NE(outcome.out.find(warning), std::string::npos) << outcome.out;
    }
    for (const std::string& command : {eval + setting, "plan " + recipe}) {
      const Outcome outcome = run(command + kErrorsOnly);
      EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
      EXPECT_EQ(outcome.out.find("from which its run began"), std::string::npos) << outcome.out;
    }
  }
}

// Whoever uses a result need not say again by what template it learned.
TEST(SlowTrain, ResultsKeepTheirChatTemplate) {
  const TinyRun tiny("kept_template");
  const std::string chatml(*builtin_template("chatml"));
  const auto model = [&](const char* output) {
    return " tokenizer=auto init=pretrained model=" + tiny.path(output).string();
  };
  const auto adapter = [&](const char* output) { return " adapter=" + tiny.path(output).string(); };
  const auto preview = [&](const std::string& settings) {
    return run("data preview data=" + tiny.data() + settings + " 2>/dev/null").out;
  };
  tiny.must_train("base", "max_steps=1 method=full");
  const std::string expected = preview(model("base") + " chat_template=chatml");
  EXPECT_NE(expected.find("<|im_start|>user"), std::string::npos) << expected;
  EXPECT_NE(preview(model("base")), expected);
  tiny.must_train("full", "max_steps=1 method=full chat_template=chatml" + model("base"));
  tiny.must_train("lora", "max_steps=1 method=lora chat_template=chatml" + model("base"));
  EXPECT_EQ(preview(model("full")), expected);
  EXPECT_EQ(preview(model("base") + adapter("lora")), expected);
  // It goes on from result to result; another one may be named.
  tiny.must_train("full_again", "max_steps=1 method=full" + model("full"));
  tiny.must_train("lora_again", "max_steps=1 method=lora" + model("base") + adapter("lora"));
  tiny.must_train("plain",
                  "max_steps=1 method=lora chat_template=plain" + model("base") + adapter("lora"));
  const std::string of_file = " chat_template=" + tiny.file("own.jinja", chatml);
  tiny.must_train("of_file", "max_steps=1 method=full" + of_file + model("base"));
  EXPECT_EQ(preview(model("of_file")), expected);
  // It learned by what the file had when the run began, whatever became of it since.
  Child child(tiny.train("gone", "max_steps=100 method=full" + of_file + model("base")));
  const fs::path log = tiny.path("gone/train_log.jsonl");
  ASSERT_TRUE(child.until([&] {
    return fs::exists(log) && read_text(log).find("\"event\": \"step\"") != std::string::npos;
  }));
  fs::remove(tiny.path("own.jinja"));
  EXPECT_EQ(child.wait(), 0);
  for (const char* output : {"full", "lora", "full_again", "lora_again", "of_file", "gone"}) {
    // The tokenizer puts BOS before each text; others who run the template are to do so too.
    EXPECT_EQ(tiny.text(std::string(output) + "/chat_template.jinja"), "{{- bos_token }}" + chatml)
        << output;
  }
  EXPECT_FALSE(fs::exists(tiny.path("base") / "chat_template.jinja"));
  // Plain is no template to keep: the one before stays.
  EXPECT_EQ(tiny.text("plain/chat_template.jinja"), tiny.text("lora/chat_template.jinja"));
}

// What is left of a result would be taken for a part of the next.
TEST(SlowTrain, AResultReplacesTheOneBefore) {
  const TinyRun tiny("replaced");
  const auto files = [&] {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(tiny.path("out"))) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("events.out")) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  using Names = std::vector<std::string>;
  const Names full = {
      "config.json", "generation_config.json", "model.safetensors",     "recipe.yaml",
      "report.html", "tokenizer.json",         "tokenizer_config.json", "train_log.jsonl"};
  tiny.must_train("base", "max_steps=1 method=full");
  const std::string settings = "max_steps=1 overwrite=true tokenizer=auto init=pretrained model=" +
                               tiny.path("base").string();
  tiny.must_train("out", settings + " method=full");
  EXPECT_EQ(files(), full);
  tiny.must_train("out", settings + " method=lora chat_template=chatml");
  EXPECT_EQ(files(), (Names{"adapter_config.json", "adapter_model.safetensors",
                            "chat_template.jinja", "recipe.yaml", "report.html", "tokenizer.json",
                            "tokenizer_config.json", "train_log.jsonl"}));
  tiny.must_train("out", settings + " method=full");
  EXPECT_EQ(files(), full);
}

// Of a directory's files a result has those that say how the model is used.
TEST(SlowTrain, ResultsKeepTheModelsFiles) {
  const TinyRun tiny("kept_files");
  tiny.must_train("first", "max_steps=1 method=full");
  const auto made = nlohmann::json::parse(tiny.text("first/generation_config.json"));
  EXPECT_EQ(made["eos_token_id"], 257);
  const std::string own = R"({"eos_token_id": [257, 258], "temperature": 0.6})";
  tiny.file("first/generation_config.json", own);
  tiny.file("first/special_tokens_map.json", "{}");
  tiny.must_train("second", "max_steps=1 method=full init=pretrained tokenizer=auto model=" +
                                tiny.path("first").string());
  EXPECT_EQ(tiny.text("second/generation_config.json"), own);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}) {
    EXPECT_EQ(tiny.text(std::string("second/") + name), tiny.text(std::string("first/") + name));
  }
  // Those of the tokenizer are the same where the model itself begins anew.
  tiny.must_train("third", "max_steps=1 method=full tokenizer=auto model=" +
                               tiny.path("first/config.json").string());
  EXPECT_EQ(tiny.text("third/special_tokens_map.json"), "{}");
  EXPECT_EQ(tiny.text("third/tokenizer.json"), tiny.text("first/tokenizer.json"));
}

// Whatever becomes of the model's files during the run; exports, too.
TEST(SlowTrain, ResultsHaveTheFilesThatTheRunBeganWith) {
  const TinyRun tiny("begun_with");
  tiny.must_train("base", "max_steps=1 method=full");
  tiny.file("base/generation_config.json", R"({"eos_token_id": [257, 258], "temperature": 0.6})");
  for (const std::string method : {"full", "lora"}) {
    const fs::path model = tiny.path("model_" + method);
    fs::copy(tiny.path("base"), model);
    const auto child = halted_run(tiny.path(method), "\"step\": 3,", [&] {
      fs::remove_all(tiny.path(method));
      return std::make_unique<Child>(
          tiny.train(method,
                     "max_steps=40 gradient_accumulation_steps=8 export=hf:f32 method=" + method +
                         " init=pretrained tokenizer=auto model=" + model.string()),
          tiny.path("said"));
    });
    fs::remove(model / "tokenizer.json");
    fs::create_symlink("tokenizer.json", model / "tokenizer.json");
    fs::remove(model / "tokenizer_config.json");
    fs::remove(model / "generation_config.json");
    child->signal(SIGCONT);
    EXPECT_EQ(child->wait(), 0) << tiny.text("said");
    const std::string exported = method + "/exports/model-f32";
    for (const std::string& result : {method, exported}) {
      for (const char* name : {"/tokenizer.json", "/tokenizer_config.json"}) {
        EXPECT_EQ(tiny.text(result + name), tiny.text(std::string("base") + name)) << method;
      }
    }
    EXPECT_EQ(tiny.text(exported + "/generation_config.json"),
              tiny.text("base/generation_config.json"));
  }
}

// An adapter is used with the tokenizer by which it learned, also where that is not the model's.
TEST(SlowTrain, AdaptersHaveTheirTokenizer) {
  const TinyRun tiny("adapter_tokenizer");
  tiny.must_train("base", "max_steps=1 method=full");
  const std::string base = " init=pretrained model=" + tiny.path("base").string();
  auto other = nlohmann::json::parse(tiny.text("base/tokenizer.json"));
  other["model"]["merges"] = nlohmann::json::parse(R"([["e", "e"]])");
  other["model"]["vocab"]["ee"] = 258;
  tiny.file("base/tokenizer.json", other.dump());
  tiny.must_train("own", "max_steps=1 method=lora tokenizer=auto" + base);
  tiny.must_train("bytes", "max_steps=1 method=lora tokenizer=bytes" + base);
  EXPECT_EQ(tiny.text("own/tokenizer.json"), tiny.text("base/tokenizer.json"));
  const std::string data = tiny.file("text.jsonl", R"({"text": "see"})");
  const auto ids = [&](const std::string& settings) {
    const Outcome done =
        run("data tokenize --json data=" + data + base + " tokenizer=auto" + settings);
    EXPECT_EQ(done.exit_code, 0) << done.out;
    return nlohmann::json::parse(done.out)["ids"];
  };
  const auto adapter = [&](const char* output) { return " adapter=" + tiny.path(output).string(); };
  EXPECT_EQ(ids(""), (std::vector<int32_t>{256, 's', 258, 257}));
  EXPECT_EQ(ids(adapter("own")), (std::vector<int32_t>{256, 's', 258, 257}));
  EXPECT_EQ(ids(adapter("bytes")), (std::vector<int32_t>{256, 's', 'e', 'e', 257}));
  EXPECT_EQ(ids(adapter("bytes") + " tokenizer=bytes"),
            (std::vector<int32_t>{256, 's', 'e', 'e', 257}));
}

// The template for conversations with tools goes where the model goes, but not beside another.
TEST(SlowTrain, ResultsKeepTheTemplateForTools) {
  const TinyRun tiny("kept_tools");
  const std::string tools = "additional_chat_templates/tool_use.jinja";
  tiny.must_train("base", "max_steps=1 method=full");
  tiny.file("base/chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
  fs::create_directories((tiny.path("base") / tools).parent_path());
  tiny.file("base/" + tools, "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}");
  const std::string model = " tokenizer=auto init=pretrained model=" + tiny.path("base").string();
  const std::string data =
      tiny.file("tools.jsonl",
                R"({"tools": [{"name": "look"}], "messages": [{"role": "user", "content": "Q"},)"
                R"( {"role": "assistant", "content": "A"}]})");
  const auto preview = [&](const std::string& settings) {
    const Outcome done = run("data preview data=" + data + model + settings);
    EXPECT_EQ(done.exit_code, 0) << done.out;
    return done.out;
  };
  EXPECT_NE(preview("").find("look"), std::string::npos);
  for (const char* method : {"full", "lora"}) {
    const std::string settings =
        std::string("max_steps=1 overwrite=true method=") + method + model + " chat_template=";
    tiny.must_train("out", settings + "auto");
    EXPECT_EQ(tiny.text("out/" + tools), tiny.text("base/" + tools)) << method;
    const std::string adapter = " adapter=" + tiny.path("out").string();
    const bool lora = method == std::string("lora");
    if (lora) {
      EXPECT_EQ(preview(adapter), preview(""));
    }
    tiny.must_train("out", settings + "chatml");
    EXPECT_FALSE(fs::exists(tiny.path("out") / tools)) << method;
    EXPECT_TRUE(fs::exists(tiny.path("out") / "chat_template.jinja")) << method;
    if (lora) {
      EXPECT_EQ(preview(adapter), preview(" chat_template=chatml"));
    }
  }
}

TEST(SlowTrain, NeedsNobodyWhoReadsItsLines) {
  const TinyRun tiny("no_reader");
  run(tiny.train("out", "max_steps=3 logging_steps=1") + " 2>&1 | true");
  EXPECT_TRUE(fs::exists(tiny.path("out/report.html")));
}

// What ends the answers of a template ends texts wherever the result is used.
TEST(SlowTrain, ResultsEndTheirAnswers) {
  const TinyRun tiny("ends");
  tiny.must_train("first", "max_steps=1 method=full");
  auto tokenizer = nlohmann::json::parse(tiny.text("first/tokenizer.json"));
  tokenizer["added_tokens"].push_back({{"id", 258},
                                       {"content", "<|im_end|>"},
                                       {"single_word", false},
                                       {"lstrip", false},
                                       {"rstrip", false},
                                       {"normalized", false},
                                       {"special", true}});
  tiny.file("first/tokenizer.json", tokenizer.dump());
  tiny.file("first/generation_config.json", R"({"eos_token_id": 257, "temperature": 0.6})");
  const auto ends = [&](const std::string& output, const std::string& settings) {
    tiny.must_train(output, "max_steps=1 method=full init=pretrained model=" +
                                tiny.path("first").string() + " " + settings);
    return nlohmann::json::parse(tiny.text(output + "/generation_config.json"));
  };
  const nlohmann::json both = {{"eos_token_id", {257, 258}}, {"temperature", 0.6}};
  EXPECT_EQ(ends("chatml", "tokenizer=auto chat_template=chatml"), both);
  const nlohmann::json one = {{"eos_token_id", 257}, {"temperature", 0.6}};
  EXPECT_EQ(ends("plain", "tokenizer=auto"), one);
  // The files of another tokenizer are not the result's.
  EXPECT_FALSE(ends("bytes", "tokenizer=bytes").contains("temperature"));
}

// As transformers does, by tokens that config.json does not name.
TEST(SlowTrain, GenerateEndsByTheGenerationConfig) {
  const TinyRun tiny("generation_config");
  tiny.must_train("first", "max_steps=1 method=full");
  auto tokenizer = nlohmann::json::parse(tiny.text("first/tokenizer.json"));
  auto stop = tokenizer["added_tokens"][0];
  stop["id"] = 258;
  stop["content"] = "<stop>";
  tokenizer["added_tokens"].push_back(stop);
  tiny.file("first/tokenizer.json", tokenizer.dump());
  std::string text;
  for (int i = 0; i < 20; ++i) text += "<stop>";
  const std::string data = tiny.file("stop.jsonl", nlohmann::json{{"text", text}}.dump() + "\n");
  tiny.must_train("out",
                  "max_steps=30 learning_rate=1e-2 method=full init=pretrained "
                  "tokenizer=auto model=" +
                      tiny.path("first").string() + " data=" + data);
  const auto tokens = [&](const std::string& generation_config) {
    tiny.file("out/generation_config.json", generation_config);
    return json_of("generate --json --quiet temperature=0 prompt='<stop>' max_new_tokens=8 model=" +
                   tiny.path("out").string())["tokens"];
  };
  EXPECT_EQ(tokens(R"({"eos_token_id": 257})"), 8);
  EXPECT_EQ(tokens(R"({"eos_token_id": [257, 258]})"), 0);
}

TEST(SlowTrain, SmallData) {
  const TinyRun tiny("small");
  const std::string one = tiny.file("one.jsonl", TinyRun::record("Say one", "One."));
  tiny.must_train(
      "out", "micro_batch_size=4 gradient_accumulation_steps=3 num_train_epochs=2 data=" + one);
  EXPECT_EQ(tiny.losses("out").size(), 2u);
  const Outcome lines = run(tiny.train("said", "max_steps=1 data=" + one));
  EXPECT_NE(lines.out.find(" 1 example, "), std::string::npos) << lines.out;
  EXPECT_NE(lines.out.find(" 1 thread, "), std::string::npos);
  EXPECT_EQ(lines.out.find('\x1b'), std::string::npos);
  EXPECT_EQ(run(tiny.train("quiet", "max_steps=1 quiet=true") + " 2>&1").out, "");
}

}  // namespace
}  // namespace jackscrew
