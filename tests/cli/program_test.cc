// Runs the built program as a user would.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "cli/help.h"
#include "recipe/run_options.h"
#include "tests/cli/expect_refused.h"
#include "tests/cli/run_program.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

TEST(Program, HelpBeginsWithExamples) {
  const Outcome help = run("--help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_LT(help.out.find("Examples"), help.out.find("Commands"));
  EXPECT_EQ(run("help").out, help.out);
  EXPECT_EQ(run("help help").out, help.out);
  EXPECT_EQ(run("-h").out, help.out);
  EXPECT_NE(run("help config").out.find("jackscrew config init lora"), std::string::npos);
  EXPECT_EQ(run("help config").out, run("config init --help").out);
  for (const char* word : {"\n  METHOD: ", "\n  --all: "}) {
    EXPECT_NE(run("help config").out.find(word), std::string::npos) << word;
  }
}

TEST(Program, NoCommandIsAUsageError) {
  const Outcome nothing = run(std::string(kErrorsOnly));
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_NE(nothing.out.find("Commands"), std::string::npos);
}

TEST(Program, UnknownCommandsNameTheNearest) {
  const Outcome typo = run(std::string("confg") + kErrorsOnly);
  EXPECT_EQ(typo.exit_code, 2);
  EXPECT_EQ(typo.out, "jackscrew: error: unknown command \"confg\"\nhint: did you mean config?\n");
  EXPECT_EQ(run(std::string("help confg") + kErrorsOnly).exit_code, 2);
}

// A model's directory may hold files of any name.
TEST(Program, LoadsNoLibraryFromTheWorkingDirectory) {
  const TemporaryDirectory directory("jackscrew_no_library");
  for (const char* name :
       {"libstdc++.so.6", "libgomp.so.1", "libpcre2-8.so.0", "libdnnl.so.2", "libdnnl.so.3"}) {
    directory.file(name, "not a library");
  }
  const Outcome version =
      run_shell("cd " + directory.path().string() + " && " + kProgram + " --version 2>&1");
  EXPECT_EQ(version.exit_code, 0) << version.out;
}

// What other programs have: what to do instead.
TEST(Program, SaysWhatIsNotThereYet) {
  const auto refused = [](const std::string& arguments, int code, const std::string& what,
                          const std::string& hint) {
    expect_refused(run(arguments + kErrorsOnly), code, {what, "hint: ", hint});
  };
  refused("fuse", 2, "that is done by merge", "jackscrew merge model=MODEL");
  refused("convert model=x", 2, "that is done by export", "jackscrew export model=MODEL");
  refused("quantise", 2, "that is done by quantize", "jackscrew quantize model=MODEL");
  refused("finetune", 2, "that is done by train", "jackscrew train model=MODEL");
  refused("help serve", 2, "a server is not supported yet", "jackscrew chat");
  refused("train method=dpo", 2, "there is no method \"dpo\"", "field_output=chosen");
  refused("dpo", 2, "not supported yet", "beside a list called prompt are to be called completion");
  refused("train load_in_4bit=true", 2, "unknown option \"load_in_4bit\"", "method=qlora");
  refused("train --bf16 true", 2, "unknown option \"bf16\"", "product=bf16");
  refused("plan model=HuggingFaceTB/SmolLM2-135M", 5,
          "model HuggingFaceTB/SmolLM2-135M does not exist here",
          "`hf download HuggingFaceTB/SmolLM2-135M --local-dir SmolLM2-135M` gets it from the hub, "
          "then model=SmolLM2-135M");
  refused("data preview data=tatsu-lab/alpaca", 4, "tatsu-lab/alpaca does not exist",
          "load_dataset(\"tatsu-lab/alpaca\"");
}

// What a first hour brings forth.
TEST(Program, WhatIsNearlyRightIsExplained) {
  const auto refused = [](const std::string& arguments, int code, const std::string& what,
                          const std::string& hint) {
    expect_refused(run(arguments + kErrorsOnly), code, {what, "hint: ", hint});
  };
  refused("-v", 2, "the version is shown by --version", "jackscrew --version");
  refused("help lora_rank", 2, "lora_rank is an option, of train, ", "jackscrew help train");
  refused("help train extra", 2, "does not know what to do with \"extra\"", "jackscrew help train");
  refused("train learning_rate=0,0001", 2, "learning_rate is \"0,0001\"",
          "hint: write a decimal point: learning_rate=0.0001");
  const std::string model = golden_model("gqa_tied"), adapter = golden_model("lora");
  refused("chat " + model, 2, "chat does not know what to do with", "model=" + model);
  refused("merge output=x.gguf model=" + adapter, 5, adapter + " is an adapter, not a model",
          "give the model that it belongs to as well");
  const std::string here = "a path counts from the current directory, /";
  refused("plan model=nowhere.gguf", 5, "model nowhere.gguf does not exist", here);
  refused("data preview data=nowhere.jsonl", 4, "nowhere.jsonl does not exist", here);
  refused("data preview data=identity,alpaca_en_demo", 4, "identity does not exist",
          "names in a dataset_info.json are not known here; " + here);
  // An adapter that was trained in another directory, over a model beside it.
  const TemporaryDirectory directory("jackscrew_moved_adapter");
  const std::string data = directory.file("a.jsonl", "{\"text\": \"a\"}\n");
  refused("data preview " + data, 2, "data does not know what to do with",
          "data are given as data=" + data);
  nlohmann::json config =
      nlohmann::json::parse(read_text(fs::path(adapter) / "adapter_config.json"));
  config["base_model_name_or_path"] = "base.gguf";
  directory.file("adapter_config.json", config.dump());
  refused("plan model=" + directory.path().string(), 5, "is an adapter, not a model",
          "its path is as it was where the adapter was trained: model=base.gguf");
}

TEST(Program, QloraIsLoraOverFourBits) {
  const std::string recipe = run("train --print_config method=qlora").out;
  for (const char* line : {"learner: lora ", "storage: nf4 ", "learning_rate: 2e-4 "}) {
    EXPECT_NE(recipe.find(line), std::string::npos) << recipe;
  }
  EXPECT_NE(run("train --print_config method=qlora storage=nf4_double").out.find("nf4_double "),
            std::string::npos);
}

TEST(Program, Version) {
  for (const char* command : {"--version", "version"}) {
    const Outcome version = run(command);
    EXPECT_EQ(version.exit_code, 0);
    EXPECT_EQ(version.out.find("jackscrew 0."), 0u);
  }
}

TEST(Program, WordsThatNoCommandTakesAreExplained) {
  EXPECT_NE(run("train help" + std::string(kErrorsOnly)).out.find("jackscrew help train shows"),
            std::string::npos);
  const std::string recipes = (source_root() / "recipes").string();
  EXPECT_NE(run("train " + recipes + "/lora.yaml " + recipes + "/full.yaml" + kErrorsOnly)
                .out.find("there can be one recipe"),
            std::string::npos);
  EXPECT_NE(run("train " + recipes + "/lora.yaml more.yml" + kErrorsOnly)
                .out.find("there can be one recipe"),
            std::string::npos);
}

TEST(Program, AFullDiskIsNotSuccess) {
  for (const char* command : {"config schema", "config init lora", "--help", "doctor",
                              "generate model=llama-60m init=random tokenizer=bytes threads=1 "
                              "prompt=a max_new_tokens=2 --quiet",
                              "generate model=llama-60m init=random tokenizer=bytes threads=1 "
                              "prompt=a max_new_tokens=2 --quiet --json"}) {
    const Outcome full = run(std::string(command) + " 2>&1 >/dev/full");
    EXPECT_EQ(full.exit_code, 1) << command;
    EXPECT_EQ(full.out, "jackscrew: error: cannot write to the standard output\n") << command;
  }
}

TEST(Program, LinksInACircleAreNoFault) {
  const fs::path link =
      fs::temp_directory_path() / ("jackscrew_circle_" + std::to_string(::getpid()));
  fs::create_symlink(link, link);
  const std::string convert = "export output=" + link.string() + ".gguf model=";
  for (const std::string& command : {std::string("inspect "), convert}) {
    expect_refused(run(command + link.string() + kErrorsOnly), 5,
                   {"cannot look at " + link.string(), kSeeThatItCanBeRead});
  }
  fs::remove(link);
}

TEST(Program, AModelsNameMayBeTooLong) {
  const std::string name(300, 'a');  // of 255 bytes that file systems have
  const fs::path output = fs::temp_directory_path() / "jackscrew_too_long.gguf";
  const std::string convert = "export output=" + output.string() + " model=";
  for (const std::string& command : {std::string("inspect "), convert}) {
    expect_refused(run(command + name + kErrorsOnly), 5, {"cannot look at " + name});
  }
}

TEST(Program, ConfigInitGivesAValidRecipe) {
  const fs::path file =
      fs::temp_directory_path() / ("jackscrew_cli_" + std::to_string(::getpid()) + ".yaml");
  for (const Preset& preset : presets()) {
    // As it lies in recipes/, with its comments.
    const Outcome brief = run(std::string("config init ") + preset.name);
    EXPECT_EQ(brief.exit_code, 0);
    EXPECT_NE(brief.out.find(fmt::format("\nmethod: {}\n", preset.name)), std::string::npos);
    EXPECT_NE(brief.out.find("#   jackscrew train run.yaml\n"), std::string::npos) << brief.out;
    EXPECT_NE(brief.out.find(fmt::format("\n# Every option that this method and product have: "
                                         "jackscrew config init {} --all\n",
                                         preset.name)),
              std::string::npos)
        << brief.out;
    EXPECT_LT(std::count(brief.out.begin(), brief.out.end(), '\n'), 60) << brief.out;
    write_text_atomic(file, brief.out);
    EXPECT_EQ(run("config validate " + file.string()).exit_code, 0);
    const Outcome recipe = run(fmt::format("config init {} --all", preset.name));
    EXPECT_EQ(recipe.exit_code, 0);
    EXPECT_EQ(run(fmt::format("config init --all {}", preset.name)).out, recipe.out);
    write_text_atomic(file, recipe.out);
    // Left open, so that another method in the edited file brings its own.
    EXPECT_NE(recipe.out.find("\n# learning_rate: "), std::string::npos);
    const Outcome valid = run("config validate " + file.string() + " max_steps=3");
    EXPECT_EQ(valid.exit_code, 0);
    EXPECT_EQ(valid.out, file.string() + ": valid\n");
  }
  // A recipe that is no method's.
  EXPECT_NE(run("config init int4").out.find("#   jackscrew train run.yaml\n"), std::string::npos);
  write_text_atomic(file, run("config init int4 --all").out);
  EXPECT_EQ(run("config validate " + file.string()).exit_code, 0);
  EXPECT_NE(read_text(file).find("\nproduct: int4 "), std::string::npos);
  for (const char* setting : {"chat_template=foo", "chat_date=2024-02-30", "packing=perhaps"}) {
    EXPECT_EQ(run("config validate " + file.string() + " " + setting + kErrorsOnly).exit_code, 2)
        << setting;
  }
  const Outcome bad = run("config validate " + file.string() + " max_step=3" + kErrorsOnly);
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_NE(bad.out.find("hint: did you mean max_steps?"), std::string::npos);
  fs::remove(file);
  EXPECT_EQ(run(std::string("config init lorra") + kErrorsOnly).exit_code, 2);
  EXPECT_EQ(run(std::string("config") + kErrorsOnly).exit_code, 2);
}

TEST(Program, PrintedRecipesSayWhereOutputGoesAndWhatAdaptersHave) {
  EXPECT_NE(run("export model=m output=m.gguf --print_config").out.find("\noutput: m.gguf "),
            std::string::npos);
  const TemporaryDirectory directory("jackscrew_adapter");
  const std::string adapter = golden_model("lora");
  const Outcome printed = run("train model=m adapter=" + adapter + " --print_config");
  EXPECT_NE(printed.out.find("\nlora_rank: 4 "), std::string::npos) << printed.out;
  const std::string recipe = directory.file("run.yaml", printed.out);
  EXPECT_EQ(run("train --print_config " + recipe).out, printed.out);
}

TEST(Program, ARecipeThatSetsNothingIsNotValid) {
  const TemporaryDirectory directory("jackscrew_empty");
  for (const char* text : {"", "# method: lora\n", "model:\n"}) {
    const std::string file = directory.file("run.yaml", text);
    expect_refused(run("config validate " + file + kErrorsOnly), 2, {"run.yaml sets no option"});
  }
  expect_refused(run("config validate method=lora" + std::string(kErrorsOnly)), 2,
                 {"needs a recipe"});
}

TEST(Program, ARecipeThatNoRunCouldHaveIsNotValid) {
  const TemporaryDirectory directory("jackscrew_no_run");
  const auto refuse = [&](const std::string& text, const std::string& words) {
    const std::string file = directory.file("run.yaml", text);
    expect_refused(run("config validate " + file + kErrorsOnly), 2, {words});
  };
  refuse("method: galore\ngalore_rank: abc\n", "galore_rank=abc is not a valid rank");
  refuse("method: rotary\nactive_params: abc\n", "active_params=abc is not a number");
  refuse("method: rotary\nrotation_groups: [block, matrix]\n", "groups that overlap");
  refuse("method: lora\nlora_alpha: 0\n", "lora_alpha is 0");
  refuse("method: lora\nlora_init: loftq\n", "nothing is rounded with storage=keep");
  refuse("method: full\nproduct: int4\nint4_steps: dynamic\n", "int4_mode=paper alone");
  refuse("method: full\nexport: [hf:q4_k]\n",
         "export=hf:q4_k: storage=q4_k cannot be written to a Hugging Face directory");
  refuse("method: qgalore\ndata_parallel: 2\n", "no gradient is left that 2 lanes");
  // What an adapter's own settings replace, and what another machine may have.
  const std::string file = directory.file(
      "run.yaml", "adapter: runs/lora\nlora_init: loftq\nproduct: bf16\ndevice: cuda:7\n");
  EXPECT_EQ(run("config validate " + file + " 2>&1").out, file + ": valid\n");
}

TEST(Program, RecipesOfOtherTrainersAreExplained) {
  const TemporaryDirectory directory("jackscrew_foreign");
  const auto check = [&](const std::string& text, const std::string& program,
                         const std::string& not_understood, const std::string& understood,
                         const std::vector<std::string>& lines) {
    const std::string file = directory.file("run.yaml", text);
    expect_refused(
        run("train " + file + kErrorsOnly), 2,
        {fmt::format("{}: not understood: {}; understood: {}\n", file, not_understood, understood),
         "hint: it looks like a recipe of " + program});
    const Outcome table = run("config validate " + file + " 2>/dev/null");
    EXPECT_EQ(table.exit_code, 2);
    // Not the command that has just been run.
    const Outcome refused = run("config validate " + file + kErrorsOnly);
    expect_refused(refused, 2, {"hint: it looks like a recipe of " + program + "\n"});
    for (const std::string& line : lines) {
      EXPECT_NE(table.out.find(line), std::string::npos)
          << "no \"" << line << "\" in " << table.out;
    }
  };
  check(R"(base_model: NousResearch/Llama-3.2-1B
datasets:
  - path: teknium/GPT4-LLM-Cleaned
    type: alpaca
val_set_size: 0.1
adapter: qlora
wandb_project:
sequence_len: 2048
load_in_4bit: true
micro_batch_size: 2
optimizer: adamw_bnb_8bit
flash_attention: true
something_new: 1
)",
        "axolotl", "datasets, adapter, load_in_4bit, optimizer, flash_attention, something_new",
        "base_model, val_set_size, sequence_len, micro_batch_size",
        {"  base_model                     model\n", "data: [FILE, FILE]", "method: qlora;",
         "storage=nf4", "optimizer is \"adamw_bnb_8bit\", expected one of adamw",
         "  something_new                  there is no such option\n"});
  check(R"(model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
dataset: identity,alpaca_en_demo
template: llama3
cutoff_len: 2048
overwrite_cache: true
bf16: true
ddp_timeout: 180000000
)",
        "LLaMA-Factory", "stage, do_train, overwrite_cache, bf16, ddp_timeout",
        "model_name_or_path, finetuning_type, lora_rank, dataset, template, cutoff_len",
        {"  finetuning_type                method\n", "the command says what is done",
         "ddp_timeout                    communication_timeout=SECONDS"});
}

TEST(Program, SizesNeedAUnit) {
  const TemporaryDirectory directory("jackscrew_unit");
  const std::string validate =
      "config validate " + directory.file("run.yaml", "method: lora\n") + " ";
  expect_refused(run(validate + "device_memory=16" + kErrorsOnly), 2,
                 {"device_memory is \"16\", expected a size such as 16GiB, or auto\n",
                  "hint: write the unit: device_memory=16GiB\n"});
  expect_refused(run(validate + "host_memory=17179869184" + kErrorsOnly), 2,
                 {"hint: write the unit: host_memory=17179869184B\n"});
  EXPECT_EQ(run(validate + "device_memory=16GiB host_memory=auto").exit_code, 0);
  const auto schema = nlohmann::json::parse(run("config schema").out);
  EXPECT_EQ(schema["properties"]["device_memory"]["type"], "string");
}

TEST(Program, AnAdapterIsNoModel) {
  const std::string adapter = golden_model("lora");
  for (const char* command : {"plan", "generate prompt=a", "data stats data=x.jsonl",
                              "train data=x.jsonl output_dir=o"}) {
    expect_refused(run(std::string(command) + " model=" + adapter + kErrorsOnly), 5,
                   {adapter + " is an adapter, not a model",
                    "model=tests/golden/gqa_tied adapter=" + adapter + "\n"});
  }
}

// Nothing is opened: neither model nor data is there.
TEST(Program, PrintConfigIsAllThatACommandThenDoes) {
  const std::string settings = " method=full model=nowhere data=nothing output_dir=none seed=7";
  const Outcome resolved = run("train --print_config" + settings);
  EXPECT_EQ(resolved.exit_code, 0);
  EXPECT_NE(resolved.out.find("learning_rate: 1e-5 "), std::string::npos) << resolved.out;
  EXPECT_NE(resolved.out.find("seed: 7 "), std::string::npos);
  for (const char* command : {"eval", "plan", "generate", "inspect", "data stats", "logits",
                              "doctor", "config validate"}) {
    const Outcome outcome = run(command + settings + " --print_config");
    EXPECT_EQ(outcome.exit_code, 0) << command;
    EXPECT_EQ(outcome.out, resolved.out) << command;
  }
}

TEST(Program, SchemaIsJson) {
  const auto schema = nlohmann::json::parse(run("config schema").out);
  EXPECT_EQ(schema["properties"]["sequence_len"]["default"], 1024);
  EXPECT_EQ(schema["properties"]["lr_scheduler_type"]["enum"].size(), 3u);
  EXPECT_TRUE(schema["properties"].contains("max_seq_length"));
  EXPECT_FALSE(schema["properties"].contains("json"));
}

TEST(Help, OptionTablesAreShownWithDefaultsAndAliases) {
  const Subcommand command = {.name = "train",
                              .summary = "train",
                              .usage = "[RECIPE.yaml]",
                              .examples = {"jackscrew train run.yaml"},
                              .tables = {option_titles::kMethod, option_titles::kSchedule},
                              .run = run_config};
  const std::string help = command_help(command);
  EXPECT_NE(help.find("lr_scheduler_type"), std::string::npos);
  EXPECT_NE(help.find("[cosine]"), std::string::npos);
  EXPECT_NE(help.find("epochs)"), std::string::npos);
  EXPECT_NE(help.find("\nMethods\n"), std::string::npos);
  EXPECT_EQ(help.find("top_k"), std::string::npos);
  for (size_t begin = 0; begin < help.size();) {
    const size_t end = help.find('\n', begin);
    EXPECT_LE(end - begin, 100u) << help.substr(begin, end - begin);
    begin = end + 1;
  }
}

TEST(Program, OpenMpsVariablesSayHowManyThreadsThereAre) {
  for (const char* variable : {"OMP_NUM_THREADS", "OMP_THREAD_LIMIT"}) {
    const Outcome doctor = run_shell(std::string(variable) + "=1 " + kProgram + " doctor");
    EXPECT_NE(doctor.out.find("\nthreads: 1\n"), std::string::npos) << variable << doctor.out;
  }
}

TEST(Program, AReportsPathIsOneLine) {
  const TinyRun tiny("report_path");
  tiny.must_train("out", "max_steps=1 report_samples=0");
  const fs::path named = tiny.path("two\nlines");
  fs::rename(tiny.path("out"), named);
  EXPECT_EQ(run("report '" + named.string() + "'").out,
            tiny.path("two\\nlines").string() + "/report.html\n");
}

TEST(Program, ACopyWithoutItsLibraryNamesIt) {
  const TemporaryDirectory alone("jackscrew_alone");
  const fs::path copy = alone.path() / "jackscrew";
  fs::copy_file(kProgram, copy);
  const Outcome doctor = run_shell(copy.string() + " doctor");
  EXPECT_EQ(doctor.exit_code, 0);
  EXPECT_NE(doctor.out.find("MPI: missing: MPI cannot be loaded: libjackscrew_mpi.so: "),
            std::string::npos)
      << doctor.out;
  EXPECT_NE(doctor.out.find("it belongs beside the program: copy it, too"), std::string::npos)
      << doctor.out;
}

}  // namespace
}  // namespace jackscrew
