// Which options a command shows in its help, uses, warns of and refuses.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>

#include "base/text.h"
#include "cli/arguments.h"
#include "cli/help.h"
#include "tests/cli/expect_refused.h"
#include "tests/cli/run_program.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

// The names of the options in a command line: name=value, --name.
std::vector<std::string> options_in(const std::string& line) {
  std::vector<std::string> names;
  for (const std::string& word : split(line, ' ')) {
    const size_t equals = word.find('=');
    std::string name = word.substr(0, equals);
    if (name.starts_with("--")) {
      name.erase(0, 2);
    } else if (equals == std::string::npos) {
      continue;
    }
    std::ranges::replace(name, '-', '_');
    names.push_back(name);
  }
  return names;
}

TEST(CommandOptions, HelpListsEveryOptionOfTheExamples) {
  for (const Subcommand& command : command_table()) {
    // `mpirun` has options of its own; those of `config` are written in its usage.
    if (command.name == "config" || command.name == "doctor") continue;
    const std::string help = command_help(command);
    for (const std::string& example : command.examples) {
      for (const std::string& name : options_in(example)) {
        EXPECT_NE(help.find("\n  " + name + " "), std::string::npos) << name << " in " << example;
      }
    }
  }
  EXPECT_NE(run("help generate").out.find("\n  seed "), std::string::npos);
  EXPECT_NE(run("help train").out.find("\n  pipeline_stages "), std::string::npos);
  EXPECT_EQ(run("help merge").out.find("\n  learning_rate "), std::string::npos);
}

TEST(CommandOptions, TheTableNamesWhatThereIs) {
  const OptionSet options = program_options();
  for (const Subcommand& command : command_table()) {
    for (const auto* names : {&command.options, &command.unused, &command.asked}) {
      for (const std::string& name : *names) {
        EXPECT_NE(options.find(name), nullptr) << command.name << " " << name;
      }
    }
    std::vector<std::string> titles = command.tables;
    for (const Subcommand::Accepted& also : command.accepted) {
      titles.insert(titles.end(), also.tables.begin(), also.tables.end());
    }
    for (const std::string& title : titles) {
      EXPECT_TRUE(std::ranges::any_of(
          options.tables(), [&](const OptionTable& table) { return table.title == title; }))
          << command.name << " " << title;
    }
  }
}

std::string said_of(const std::string& arguments) {
  return run(arguments + kErrorsOnly).out;
}

TEST(CommandOptions, CommandsWarnOfThoseTheyDoNotUse) {
  const std::string model = golden_model("gqa_tied");
  const auto warns = [&](const std::string& arguments, const std::vector<std::string>& names) {
    const std::string said = said_of(arguments);
    const std::string command = arguments.substr(0, arguments.find(' '));
    for (const std::string& name : names) {
      const std::string line = fmt::format("warning: {} does not use {}\n", command, name);
      const size_t at = said.find(line);
      EXPECT_NE(at, std::string::npos) << line << said;
      EXPECT_EQ(said.find(line, at + 1), std::string::npos) << said;
    }
  };
  warns(
      "train model=nowhere data=none output_dir=o ranks=2 fit=true json=true output=o prompt=p "
      "bits=3 stride=8 format=gguf",
      {"ranks", "fit", "json", "output", "prompt", "bits", "stride", "format"});
  warns("plan model=nowhere output=o prompt=p stride=8", {"output", "prompt", "stride"});
  warns("doctor fit=true storage=nf4", {"fit", "storage"});
  warns("eval model=nowhere data=none adapter=a,b adapter_weight=1,2 ranks=2",
        {"adapter_weight", "ranks"});
  warns("eval model=nowhere data=none lora_rank=3", {"lora_rank"});
  warns("export model=nowhere output=o.gguf bits=4 group_size=64 data_weights=",
        {"bits", "group_size"});
  warns("compare a b eval_data=c model=d adapter=e data=f", {"model", "adapter", "data"});
  warns("generate model=nowhere prompt=p data=d output=o", {"data", "output"});
  EXPECT_EQ(said_of("plan model=" + model + " data=x field_output=y lora_rank=4 save_steps=2"), "");
  EXPECT_EQ(said_of("doctor --quiet method=full"), "");
}

TEST(CommandOptions, CommandsWarnOfThoseThatOthersLeaveWithoutEffect) {
  const TinyRun tiny("no_effect");
  const auto warnings_of = [](const std::string& arguments) {
    std::string warnings;
    for (const std::string& line : split(said_of(arguments), '\n')) {
      if (line.find(" does not use ") != std::string::npos) warnings += line + "\n";
    }
    return warnings;
  };
  const auto said = [](const std::string& command, const std::vector<std::string>& options) {
    std::string lines;
    for (const std::string& option : options) {
      lines += fmt::format("jackscrew: warning: {} does not use {}\n", command, option);
    }
    return lines;
  };
  const std::string idle =
      "max_shard_size=1GB warmup_steps=3 warmup_ratio=0.1 weight_decay_target=all "
      "max_grad_norm=0 update=fused max_grad_norm_of=weight loss_watchdog_patience=2";
  const std::string train = "train model=nowhere data=none output_dir=o ";
  EXPECT_EQ(warnings_of(train + idle),
            said("train", {"max_shard_size without export=hf", "warmup_ratio beside warmup_steps",
                           "weight_decay_target without weight_decay",
                           "max_grad_norm_of without max_grad_norm",
                           "loss_watchdog_patience without loss_watchdog_threshold"}));
  EXPECT_EQ(warnings_of(train + "max_shard_size=1GB export=hf warmup_ratio=0.1 weight_decay=1 "
                                "weight_decay_target=all max_grad_norm_of=model "
                                "loss_watchdog_threshold=9 loss_watchdog_patience=2"),
            "");
  EXPECT_EQ(warnings_of(train + "max_steps=2 num_train_epochs=5"),
            said("train", {"num_train_epochs beside max_steps"}));
  const std::string recipe =
      tiny.file("idle.yaml", "warmup_steps: 3\nwarmup_ratio: 0.03\nmax_shard_size: 5GB\n");
  EXPECT_EQ(warnings_of(train + recipe), "");

  const std::string model = " model=" + golden_model("gqa_tied") + " tokenizer=bytes ";
  const std::string measuring = "field_output=a device=cpu product=f32 sequence_len=16 ";
  EXPECT_EQ(warnings_of("export" + model + measuring +
                        "max_shard_size=1GB output=" + tiny.path("m.gguf").string()),
            said("export", {"field_output without eval_data", "device without eval_data",
                            "product without eval_data", "sequence_len without eval_data",
                            "max_shard_size for a GGUF file"}));
  EXPECT_EQ(warnings_of("export" + model + "max_shard_size=1GB sequence_len=16 eval_data=" +
                        tiny.eval_data() + " output_dir=" + tiny.path("m").string()),
            "");
  // Only where it rounds as quantize does, a run has to fit.
  EXPECT_EQ(warnings_of("export" + model + "learning_rate=1e-3 device_memory=1GiB output=" +
                        tiny.path("fit.gguf").string()),
            said("export", {"learning_rate", "device_memory without eval_data"}));
  EXPECT_EQ(
      warnings_of("export" + model + "adapter=" + golden_model("lora") +
                  " format=gguf_adapter device=cpu max_merge_loss=1 chat_template=plain "
                  "output=" +
                  tiny.path("a.gguf").string()),
      said("export", {"device with format=gguf_adapter", "max_merge_loss with format=gguf_adapter",
                      "chat_template with format=gguf_adapter"}));

  const std::string quantize = "quantize model=nowhere data=none output_dir=o ";
  const std::string of_a_run = "learning_rate=1e-4 max_steps=3 optimizer=adamw lora_rank=4 ";
  EXPECT_EQ(warnings_of(quantize + of_a_run + "attention=own device=cpu"),
            said("quantize", {"optimizer", "max_steps", "learning_rate", "lora_rank",
                              "device without eval_data", "attention without eval_data"}));
  EXPECT_EQ(warnings_of(quantize + "attention=own device=cpu eval_data=none"), "");
  EXPECT_EQ(warnings_of(quantize + of_a_run + "attention=own format=exl2 device_memory=1GiB"), "");

  EXPECT_EQ(warnings_of("eval " + tiny.settings("packing=false stride=8")),
            said("eval", {"packing", "micro_batch_size", "stride without a .txt file"}));
  const std::string book = tiny.file("book.txt", std::string(200, 'a'));
  EXPECT_EQ(warnings_of("eval " + tiny.settings("stride=8 data=" + book)),
            said("eval", {"micro_batch_size"}));
  EXPECT_EQ(warnings_of("data stats " + tiny.settings("learning_rate=1 weight_decay=1")),
            said("data", {"learning_rate", "weight_decay"}));
  const std::string look = tiny.settings("packing=false gradient_accumulation_steps=3 seed=5");
  const std::vector<std::string> of_steps = {"packing", "micro_batch_size",
                                             "gradient_accumulation_steps", "seed"};
  EXPECT_EQ(warnings_of("data stats " + look), "");
  EXPECT_EQ(warnings_of("data preview " + look), said("data preview", of_steps));
  EXPECT_EQ(warnings_of("data tokenize excess_length_strategy=drop " + look),
            said("data tokenize", of_steps) +
                said("data tokenize", {"sequence_len", "excess_length_strategy"}));
  EXPECT_EQ(
      warnings_of("data preview sequence_len=8 threads=1 data=" + tiny.data()),
      said("data preview", {"sequence_len without a tokenizer", "threads without a tokenizer"}));
  EXPECT_NE(run("help data").out.find("\n  micro_batch_size "), std::string::npos);
}

TEST(CommandOptions, ARecipeMayBeForSeveralCommands) {
  const TemporaryDirectory directory("jackscrew_shared");
  const std::string recipe = directory.file("run.yaml", "method: lora\nstride: 8\nprompt: a\n");
  EXPECT_EQ(said_of("plan " + recipe + " model=" + golden_model("gqa_tied")), "");
  EXPECT_EQ(said_of("config validate " + recipe + " bits=3"), "");
  EXPECT_EQ(said_of("config validate " + recipe + " ranks=3"),
            "jackscrew: warning: config validate does not use ranks\n");
}

// Neither do its contradictions matter, nor random weights.
TEST(CommandOptions, WhatIsForTrainingChangesNoOtherCommand) {
  const TinyRun directory("training_recipe");
  directory.must_train("base", "method=full max_steps=1");
  const std::string model = directory.path("base").string();
  const std::string train = directory.file("train.jsonl", "{\"text\": \"what was learned\"}\n");
  const std::string held_out = directory.file("held_out.jsonl", "{\"text\": \"what is asked\"}\n");
  const std::string recipe = directory.file(
      "run.yaml", fmt::format("model: {}\nmethod: full\ninit: random\ndata: {}\n"
                              "eval_data: {}\ndata_weights: [1]\neval_steps: 2\nupdate: fused\n"
                              "max_grad_norm_of: weight\nmicro_batch_size: 100000\n",
                              model, train, held_out));
  const std::string alone = "eval --json model=" + model + " data=";
  const Outcome of_held_out = run("eval --json " + recipe);
  EXPECT_EQ(of_held_out.exit_code, 0);
  EXPECT_EQ(of_held_out.out, run(alone + held_out).out);
  EXPECT_EQ(run("eval --json " + recipe + " data=" + train).out, run(alone + train).out);
  EXPECT_NE(run("eval --json " + recipe + " data=" + train).out, of_held_out.out);
  EXPECT_EQ(run("eval --json model=" + model + " eval_data=" + held_out).out, of_held_out.out);
  const Outcome random = run("eval --json " + recipe + " init=random");
  EXPECT_EQ(random.exit_code, 0);
  EXPECT_NE(random.out, of_held_out.out);
  const auto kl_of = [&](const std::string& more) {
    const std::string output = (directory.path("out.gguf")).string();
    return nlohmann::json::parse(
        run("export --json overwrite=true storage=q4_0 output=" + output + " " + more).out)["kl"];
  };
  EXPECT_EQ(kl_of(recipe), kl_of("model=" + model + " eval_data=" + held_out));
  const auto compared = [&](const std::string& more) {
    const std::string out = run("compare --json " + more + " " + model + " " + model +
                                " eval_data=" + held_out + " 2>/dev/null")
                                .out;
    return nlohmann::json::parse(out.substr(0, out.find('\n')))["loss"];
  };
  EXPECT_EQ(compared(recipe), compared(""));
}

// A soft prompt takes places of a text, whatever the command.
TEST(CommandOptions, TheMethodOfARecipeComesWithItsOptions) {
  const TinyRun tiny("prompt_recipe");
  const std::string recipe = tiny.file(
      "run.yaml", "method: prompt\nprompt_tokens: 4\nsequence_len: 16\ntokenizer: bytes\n");
  const std::string text = tiny.file("text.txt", std::string(400, 'a'));
  const auto longest = [&](const std::string& more) {
    return nlohmann::json::parse(run("data stats --json data=" + text + " " + more + " 2>/dev/null")
                                     .out)["lengths"]["longest"];
  };
  EXPECT_EQ(longest(recipe), 12);
  EXPECT_EQ(longest("method=prompt prompt_tokens=6 sequence_len=16 tokenizer=bytes"), 10);
}

// Of the adapter that is given as well. Each sequence begins with the prompt.
TEST(CommandOptions, DataAreCutAsTrainingCutsThem) {
  const TinyRun tiny("cut_data");
  tiny.must_train("base", "method=full max_steps=1 report_samples=0");
  const std::string model = " tokenizer=bytes model=" + tiny.path("base").string();
  tiny.must_train("prompt",
                  "init=pretrained method=prompt prompt_tokens=4 max_steps=1 "
                  "report_samples=0" +
                      model);
  const std::string text = tiny.file("text.txt", std::string(400, 'a'));
  const auto stats = [&](const std::string& more) {
    return nlohmann::json::parse(
        run("data stats --json packing=false data=" + text + model + more + " 2>/dev/null").out);
  };
  // The model has 128 positions.
  EXPECT_EQ(stats("")["lengths"]["longest"], 128);
  const std::string adapter = " adapter=" + tiny.path("prompt").string();
  const nlohmann::json with_prompt = stats(adapter + " sequence_len=16");
  EXPECT_EQ(with_prompt["lengths"]["longest"], 12);
  // 401 tokens in 34 windows.
  EXPECT_EQ(with_prompt["rows"], 34);
  EXPECT_DOUBLE_EQ(with_prompt["fill_rate"].get<double>(), (401.0 + 34 * 4) / (34 * 16));
  const std::string preview = run("data preview data=" + text + model + adapter).out;
  EXPECT_NE(preview.find("in windows of 124;"), std::string::npos) << preview;
  expect_refused(run("data stats sequence_len=129 data=" + text + model + kErrorsOnly), 2,
                 {"only 128 positions"});
  // Short examples share a row with a prompt for each.
  const std::string records =
      tiny.file("short.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"cd\"}\n{\"text\": \"ef\"}\n");
  EXPECT_EQ(stats(adapter + " packing=true sequence_len=16 data=" + records)["rows"], 2);
  EXPECT_EQ(stats(" packing=true sequence_len=16 data=" + records)["rows"], 1);
}

// Which may be shorter than sequence_len: that of the model, or what a prompt leaves of it.
TEST(CommandOptions, AStrideIsHeldAgainstTheWindow) {
  const TinyRun tiny("stride");
  const std::string book = tiny.file("book.txt", std::string(1000, 'a'));
  const std::string eval = "eval init=random tokenizer=bytes threads=1 model=" + tiny.config();
  expect_refused(run(eval + " stride=512 data=" + book + kErrorsOnly), 2,
                 {"stride 512 is more than the 128 tokens of a window"});
  tiny.must_train("base", "method=full max_steps=1");
  const std::string base = " init=pretrained model=" + tiny.path("base").string();
  tiny.must_train("prompt", "method=prompt max_steps=1" + base);
  const std::string prompt = eval + base + " adapter=" + tiny.path("prompt").string() +
                             " method=prompt sequence_len=64 stride=60 data=";
  expect_refused(run(prompt + book + kErrorsOnly), 2,
                 {"stride 60 is more than the 44 tokens of a window"});
  const Outcome records = run(prompt + tiny.eval_data() + kErrorsOnly);
  EXPECT_EQ(records.exit_code, 0) << records.out;
  EXPECT_NE(records.out.find("eval does not use stride without a .txt file"), std::string::npos)
      << records.out;
}

// plan and train write recipes, which may be for other commands, too.
TEST(CommandOptions, RecipesKeepWhatIsForOtherCommands) {
  const TinyRun tiny("kept_options");
  const std::string recipe = tiny.file("run.yaml", "temperature: 0.75\nbits: 3\n");
  tiny.must_train("out", "max_steps=1 " + recipe);
  const std::string written = tiny.text("out/recipe.yaml");
  EXPECT_NE(written.find("\ntemperature: 0.75 "), std::string::npos) << written;
  EXPECT_NE(written.find("\nbits: 3 "), std::string::npos) << written;
}

TEST(CommandOptions, AnAdapterOfRandomWeightsIsNotMergedIntoOthers) {
  const TinyRun tiny("random_adapter");
  tiny.must_train("base", "method=full max_steps=1");
  expect_refused(
      run(tiny.train("out", "method=lora export=hf:f32 model=" + tiny.path("base").string()) +
          kErrorsOnly),
      2, {"the adapter of random weights has none"});
}

TEST(CommandOptions, NobodyDoesInEarnestWhatHasNoDryRun) {
  const TinyRun tiny("dry");
  tiny.must_train("base", "method=full max_steps=1");
  const std::string recipe = tiny.file("run.yaml", "dry_run: true\n");
  const std::string output = tiny.path("out").string();
  const std::string settings =
      fmt::format(" model={} output_dir={} ", tiny.path("base").string(), output);
  for (const std::string command : {"export", "merge", "train"}) {
    for (const std::string& how : {std::string("--dry-run"), recipe}) {
      expect_refused(run(command + settings + how + kErrorsOnly), 2, {command + " has no dry run"});
    }
  }
  EXPECT_FALSE(fs::exists(output));
  const Outcome dry = run("quantize" + settings + recipe + " 2>&1");
  EXPECT_EQ(dry.exit_code, 0) << dry.out;
  EXPECT_FALSE(fs::exists(output));
}

TEST(CommandOptions, WhatQuantizePrintsItReads) {
  const TinyRun tiny("round_trip");
  // Wide enough for the order of EXL2's columns not to take more than the codes.
  const std::string config = tiny.file("wide.json", R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 260,
    "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128,
    "tie_word_embeddings": true, "bos_token_id": 256, "eos_token_id": 257})");
  tiny.must_train("base", "method=full max_steps=1 report_samples=0 model=" + config);
  const std::string model = tiny.path("base").string();
  const std::string output = tiny.path("out").string();
  const std::string to_directory = "output_dir=" + output;
  for (const std::string& how :
       {to_directory + " bits=3", to_directory + " format=exl2 bits=5",
        to_directory + " format=exl2 device_memory=1GiB", "bits=4 output=" + output + ".gguf"}) {
    const Outcome printed =
        run(fmt::format("quantize model={} dry_run=true {} --print_config", model, how));
    ASSERT_EQ(printed.exit_code, 0);
    const std::string recipe = tiny.file("run.yaml", printed.out);
    EXPECT_EQ(run("quantize --print_config " + recipe).out, printed.out);
    const Outcome dry = run("quantize " + recipe + " 2>&1");
    EXPECT_EQ(dry.exit_code, 0) << how << "\n" << dry.out;
  }
  // So does a recipe of every option.
  const std::string all =
      tiny.file("all.yaml", "method: lora\nbits: 4\nhead_bits: 6\ngroup_size: 128\nsym: true\n");
  for (const char* format : {"gptq", "exl2 device_memory=1GiB"}) {
    const Outcome dry = run(fmt::format("quantize {} model={} output_dir={} format={} dry_run=true",
                                        all, model, output, format) +
                            " 2>&1");
    EXPECT_EQ(dry.exit_code, 0) << dry.out;
  }
}

TEST(CommandOptions, TrainingAnAdapterFurtherDoesNotBeginItAnew) {
  const std::string settings = fmt::format("train model={} adapter={} data=none output_dir=o ",
                                           golden_model("gqa_tied"), golden_model("lora"));
  EXPECT_NE(said_of(settings + "lora_init=pissa")
                .find("warning: lora_init=pissa is not used: it is the adapter's, default\n"),
            std::string::npos);
  EXPECT_EQ(said_of(settings + "lora_rank=4").find("warning"), std::string::npos);
  const TinyRun tiny("soft_prompt");
  tiny.must_train("soft", "method=prompt prompt_tokens=4 max_steps=1");
  const std::string prompt = fmt::format("train model={} adapter={} data=none output_dir=o ",
                                         tiny.config(), tiny.path("soft").string());
  EXPECT_NE(said_of(prompt + "prompt_init_text=Hello")
                .find("warning: prompt_init_text=Hello is not used: it is the adapter's\n"),
            std::string::npos);
}

// Whether a JSON schema, or one of its alternatives, takes values of a type.
bool takes(const nlohmann::json& schema, const std::string& type) {
  if (!schema.contains("anyOf")) {
    const std::string types = schema.value("type", nlohmann::json()).dump();
    return types.find('"' + type + '"') != std::string::npos;
  }
  return std::ranges::any_of(schema["anyOf"].get<std::vector<nlohmann::json>>(),
                             [&](const nlohmann::json& one) { return takes(one, type); });
}

TEST(CommandOptions, TheSchemaTakesWhatRecipesHave) {
  const auto properties = nlohmann::json::parse(run("config schema").out)["properties"];
  for (const char* list : {"data", "eval_data", "lora_target", "data_weights"}) {
    EXPECT_TRUE(takes(properties[list], "string")) << list;
  }
  EXPECT_TRUE(takes(properties["data"], "array"));
  EXPECT_TRUE(takes(properties["data_weights"], "number"));
  EXPECT_EQ(properties["data_weights"]["anyOf"][1]["items"]["type"],
            nlohmann::json({"string", "number", "boolean"}));
  EXPECT_EQ(properties["modules_to_save"]["anyOf"][1]["items"]["enum"].size(), 2u);
  EXPECT_TRUE(takes(properties["active_params"], "number"));
  EXPECT_TRUE(takes(properties["learning_rate"], "number"));
  EXPECT_TRUE(takes(properties["learning_rate"], "string"));  // 1e-5, to readers of YAML 1.1
  EXPECT_TRUE(properties["storage"].contains("enum"));
}

bool is_of_type(const nlohmann::json& value, const std::string& type) {
  if (type == "integer") return value.is_number_integer();
  return type == "number" ? value.is_number() : type == value.type_name();
}

// Whether a JSON schema, of the words that ours has, takes a value.
bool accepts(const nlohmann::json& schema, const nlohmann::json& value) {
  const auto any_of = [](const nlohmann::json& all, const auto& fits) {
    return all.is_array() ? std::ranges::any_of(all, fits) : fits(all);
  };
  if (schema.contains("anyOf") &&
      !any_of(schema["anyOf"], [&](const auto& one) { return accepts(one, value); })) {
    return false;
  }
  if (schema.contains("enum") &&
      !any_of(schema["enum"], [&](const auto& one) { return one == value; })) {
    return false;
  }
  if (schema.contains("type") &&
      !any_of(schema["type"], [&](const auto& type) { return is_of_type(value, type); })) {
    return false;
  }
  if (schema.contains("pattern") && value.is_string() &&
      !std::regex_search(value.get<std::string>(),
                         std::regex(schema["pattern"].get<std::string>()))) {
    return false;
  }
  if (value.is_number() &&
      (value < schema.value("minimum", value) || value > schema.value("maximum", value))) {
    return false;
  }
  return !value.is_array() || !schema.contains("items") ||
         std::ranges::all_of(value,
                             [&](const auto& item) { return accepts(schema["items"], item); });
}

// A value of a recipe, with spaces around it, as an editor reads it.
nlohmann::json yaml_value(const std::string& padded) {
  const size_t begin = padded.find_first_not_of(' ');
  if (begin == std::string::npos) return nullptr;
  const std::string text = padded.substr(begin, padded.find_last_not_of(' ') + 1 - begin);
  if (text.front() == '[') {
    auto items = nlohmann::json::array();
    if (text == "[]") return items;
    for (const std::string& item : split(text.substr(1, text.size() - 2), ',')) {
      items.push_back(yaml_value(item));
    }
    return items;
  }
  const auto value = nlohmann::json::parse(text, nullptr, false);
  return value.is_discarded() ? nlohmann::json(text) : value;
}

TEST(CommandOptions, TheSchemaTakesEveryDefaultAsItIsWritten) {
  const auto properties = nlohmann::json::parse(run("config schema").out)["properties"];
  size_t lines = 0;
  for (const std::string& line : split(program_options().to_yaml(), '\n')) {
    if (line.empty() || line.front() == '#') continue;
    const size_t colon = line.find(": ");
    const std::string name = line.substr(0, colon);
    const std::string text = line.substr(colon + 1, line.find(" # ") - colon - 1);
    ASSERT_TRUE(properties.contains(name)) << line;
    EXPECT_TRUE(accepts(properties[name], yaml_value(text))) << line;
    if (properties[name].contains("default")) {
      EXPECT_TRUE(accepts(properties[name], properties[name]["default"])) << line;
    }
    ++lines;
  }
  EXPECT_GT(lines, 100u);
  EXPECT_TRUE(accepts(properties["int4_bit_split"], "6"));
  EXPECT_FALSE(accepts(properties["int4_bit_split"], 8));
  EXPECT_TRUE(accepts(properties["resume"], true));
  EXPECT_FALSE(accepts(properties["sequence_len"], 0));
  EXPECT_FALSE(accepts(properties["sequence_len"], "long"));
}

}  // namespace
}  // namespace jackscrew
