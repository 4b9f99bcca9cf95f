#include "recipe/recipe.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/file.h"
#include "base/parallel.h"
#include "base/philox.h"
#include "recipe/recipe_file.h"
#include "tests/support/errors.h"

namespace jackscrew {
namespace {

constexpr OptionSpec kLoraOptions[] = {
    {.name = "rank",
     .type = OptionType::integer,
     .default_text = "16",
     .help = "rank",
     .aliases = "lora_rank r",
     .min = 1},
    {.name = "targets", .type = OptionType::list, .default_text = "all", .help = "layers"},
};
constexpr OptionSpec kProductOptions[] = {
    {.name = "step", .type = OptionType::number, .default_text = "0.335", .help = "step size"},
};
constexpr OptionSpec kGaloreOptions[] = {
    {.name = "projection_dtype", .type = OptionType::text, .default_text = "f32", .help = "dtype"},
};
constexpr OptionSpec kRotaryOptions[] = {
    {.name = "active_params", .type = OptionType::number, .default_text = "0.1", .help = "share"},
};
const MethodTable kMethods[] = {{"learner", "full", {}},
                                {"learner", "lora", kLoraOptions},
                                {"learner", "prompt", {}},
                                {"learner", "rotary", kRotaryOptions},
                                {"learner", "galore", kGaloreOptions},
                                {"product", "f32", {}},
                                {"product", "int8", kProductOptions}};

Recipe read(const std::vector<std::string>& arguments) {
  return read_recipe(arguments, kMethods);
}

template <class Action>
std::string usage_error(const Action& action) {
  return error_of(ErrorKind::usage, action);
}

class RecipeFileTest : public ::testing::Test {
 protected:
  RecipeFileTest()
      : path_(fs::temp_directory_path() /
              ("jackscrew_recipe_" + std::to_string(::getpid()) + ".yaml")) {}
  ~RecipeFileTest() override { fs::remove(path_); }

  std::string write(const std::string& text) const {
    write_text_atomic(path_, text);
    return path_.string();
  }

  fs::path path_;
};

TEST(Recipe, Defaults) {
  const Recipe recipe = read({});
  EXPECT_EQ(recipe.method, "lora");
  EXPECT_EQ(recipe.learner, "lora");
  EXPECT_EQ(recipe.learning_rate, 2e-4);
  EXPECT_EQ(recipe.sequence_len, 1024);
  EXPECT_EQ(recipe.num_train_epochs, 3);
  EXPECT_EQ(recipe.lr_schedule, ScheduleKind::cosine);
  EXPECT_EQ(recipe.seed, 42u);
  EXPECT_EQ(recipe.threads, usable_threads());
  EXPECT_EQ(recipe.save_total_limit, 2);
  EXPECT_FALSE(recipe.gradient_checkpointing);
  EXPECT_FALSE(recipe.device_memory);
  EXPECT_FALSE(recipe.warmup_steps);
  EXPECT_EQ(recipe.options.integer("rank"), 16);
}

TEST(Recipe, ThreadsAreThoseThatOpenMpIsAllowed) {
  const int allowed = omp_get_max_threads();
  omp_set_num_threads(1);  // as OMP_NUM_THREADS=1 does
  EXPECT_EQ(read({}).threads, 1);
  EXPECT_EQ(read({"threads=all"}).threads, 1);
  EXPECT_EQ(read({"threads=3"}).threads, 3);
  omp_set_num_threads(allowed);
}

TEST(Recipe, PresetsFillOnlyWhatIsNotSet) {
  EXPECT_EQ(read({"method=full"}).learning_rate, 1e-5);
  EXPECT_EQ(read({"method=full", "learning_rate=auto"}).learning_rate, 1e-5);
  EXPECT_EQ(read({"method=full", "lr=3e-4"}).learning_rate, 3e-4);
  const Recipe mixed = read({"learner=full"});
  EXPECT_EQ(mixed.learner, "full");
  EXPECT_EQ(mixed.learning_rate, 1e-5);  // the learner's, not the default method's
  EXPECT_EQ(usage_error([] { read({"method=lorra"}); }),
            "command line: unknown method \"lorra\", expected one of full, lora, qlora, prompt, "
            "rotary, galore, qgalore | "
            "did you mean lora?");
  EXPECT_EQ(usage_error([] { read({"learner=fulll"}); }),
            "command line: unknown learner \"fulll\", expected one of full, lora, prompt, "
            "rotary, galore | "
            "did you mean full?");
}

// As the search for what fits does; and what the user has set stays.
TEST(Recipe, AnotherMethodTakesBackWhatThePresetHasSet) {
  const auto changed = [](const std::vector<std::string>& arguments, const std::string& method) {
    OptionSet options = read(arguments).options;
    choose_method(options, method, "plan");
    return resolve_recipe(std::move(options), kMethods);
  };
  for (const char* first : {"full", "rotary", "qgalore"}) {
    const Recipe lora = changed({std::string("method=") + first}, "lora");
    const Recipe other = read({"method=lora"});
    EXPECT_EQ(lora.learner, "lora");
    EXPECT_EQ(lora.learning_rate, 2e-4);
    EXPECT_EQ(lora.storage, other.storage) << first;
    EXPECT_EQ(lora.options.text("optimizer"), other.options.text("optimizer")) << first;
    EXPECT_EQ(lora.options.text("update"), other.options.text("update")) << first;
    EXPECT_EQ(changed({std::string("method=") + first, "lr=3e-4"}, "lora").learning_rate, 3e-4);
  }
}

TEST(Recipe, ResumeTakesTheWordsOfOtherPrograms) {
  EXPECT_EQ(read({"resume_from_checkpoint=true"}).resume, "auto");
  EXPECT_EQ(read({"resume=True"}).options.text("resume"), "auto");
  EXPECT_EQ(read({"resume=false"}).resume, "never");
  EXPECT_EQ(read({"resume=runs/true"}).resume, "runs/true");
}

TEST(Recipe, ASplitNeedsItsStages) {
  EXPECT_NE(usage_error([] { read({"stage_split=1,3"}); }).find("set pipeline_stages=2"),
            std::string::npos);
  EXPECT_EQ(read({"stage_split=1,3", "pipeline_stages=2"}).stage_split.size(), 2u);
}

TEST(Recipe, RatesThatNobodyMeansAreDoubted) {
  const std::string usual = ", and usual ones are 1e-2 at most";
  EXPECT_EQ(doubt_of_rate(2e4), "learning_rate is 2e+04" + usual + ": was 2e-4 meant?");
  EXPECT_EQ(doubt_of_rate(1500), "learning_rate is 1.5e+03" + usual + ": was 1.5e-3 meant?");
  EXPECT_EQ(doubt_of_rate(1), "learning_rate is 1" + usual);
  EXPECT_EQ(doubt_of_rate(0), "learning_rate is 0: nothing learns");
  for (const double rate : {1e-9, 1e-2, 0.3, 1e20}) EXPECT_EQ(doubt_of_rate(rate), "") << rate;
}

TEST(Recipe, WeightDecayIsOfMatricesUnlessToldOtherwise) {
  const Recipe usual = read({"weight_decay=0.1"});
  EXPECT_EQ(usual.weight_decay.matrices, 0.1);
  EXPECT_EQ(usual.weight_decay.vectors, 0.0);
  const Recipe all = read({"weight_decay=0.1", "weight_decay_target=all"});
  EXPECT_EQ(all.weight_decay.matrices, 0.1);
  EXPECT_EQ(all.weight_decay.vectors, 0.1);
}

TEST(Recipe, OptionsOfAnotherLearnerAreRefused) {
  EXPECT_EQ(read({"--lora-rank", "8"}).options.integer("r"), 8);
  EXPECT_EQ(usage_error([] {
              read({"method=full", "r=8"});
            }),
            "command line: rank is an option of learner lora, but this run has learner full | "
            "leave rank out, or set method=lora");
  // With learner=rotary alone the weights would take four times the memory.
  EXPECT_NE(usage_error([] {
              read({"method=full", "active_params=0.1"});
            }).find(", or set method=rotary"),
            std::string::npos);
}

TEST(Recipe, OptionsOfAnotherProductAreRefused) {
  EXPECT_EQ(read({"product=int8", "step=0.5"}).options.number("step"), 0.5);
  EXPECT_EQ(usage_error([] { read({"step=0.5"}); }),
            "command line: step is an option of product int8, but this run has product auto | "
            "leave step out, or set product=int8");
  EXPECT_EQ(read({"product=f32"}).to_yaml().find("step:"), std::string::npos);
  EXPECT_NE(read({"product=int8"}).to_yaml().find("# Product int8\nstep: 0.335"),
            std::string::npos);
}

TEST(Recipe, Contradictions) {
  const auto says = [](const std::vector<std::string>& arguments, const char* part) {
    const std::string message = usage_error([&] { read(arguments); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  says({"eval_data=x", "val_size=0.1"}, "both eval_data and val_size");
  says({"val_size=1.5"}, "val_size is 1.5, neither a fraction nor a number of examples");
  says({"eval_steps=5"}, "nothing to evaluate on");
  says({"num_train_epochs=0"}, "max_steps and num_train_epochs");
  says(
      {"max_steps=5", "warmup_steps=5"},
      "warmup_steps 5 is not less than max_steps 5 | the learning rate would never reach its peak; "
      "set warmup_steps to at most 4");
  says({"adam_beta2=1"}, "adam_beta2 is 1");
  says({"top_p=0"}, "top_p");
  says({"max_grad_norm=1e-50"}, "max_grad_norm is 1e-50");
  says({"learning_rate=1e-50"}, "learning_rate is 1e-50");
  says({"repetition_penalty=0"}, "repetition_penalty");
  says({"stride=2048"}, "stride 2048 is more than sequence_len 1024");
  says({"init=random", "adapter=a"}, "init is random");
}

// A run leaves a recipe of all options; those of its learner would be refused, and its preset's
// values would make another method do the old one's work.
TEST_F(RecipeFileTest, AnotherMethodTakesThePlaceOfTheFiles) {
  const std::string file = write(read({"max_steps=7", "storage=bf16"}).to_yaml());
  const Recipe full = read({file, "method=full"});
  EXPECT_EQ(full.learner, "full");
  EXPECT_EQ(full.learning_rate, 1e-5);
  EXPECT_EQ(full.max_steps, 7);
  EXPECT_EQ(full.storage, "bf16");  // no part of either method
  EXPECT_EQ(full.left_out, "");
  EXPECT_EQ(read({file, "method=full", "learning_rate=3e-4"}).learning_rate, 3e-4);
  EXPECT_EQ(read({file, "method=qlora"}).storage, "nf4");
  EXPECT_EQ(read({file, "method=qlora", "storage=int8"}).storage, "int8");
  EXPECT_EQ(read({file, "method=lora"}).storage, "bf16");
  // What was chosen for the other method is named.
  const std::string chosen = write("method: lora\nr: 32\nlr: 1e-3\nseed: 1\n");
  const Recipe rotary = read({chosen, "method=rotary"});
  EXPECT_EQ(rotary.learner, "rotary");
  EXPECT_EQ(rotary.seed, 1u);
  EXPECT_EQ(rotary.left_out,
            "method=rotary takes the place of the file's lora, and of its learning_rate=1e-3, "
            "rank=32");
  EXPECT_EQ(read({chosen, "method=qlora"}).options.integer("rank"), 32);
  // A file without a method says what holds for any.
  EXPECT_EQ(read({write("lr: 1e-3\n"), "method=full"}).learning_rate, 1e-3);
}

TEST_F(RecipeFileTest, WhatIsHeldOutOnTheCommandLineTakesThePlaceOfTheFiles) {
  const std::string share = write("val_size: 0.05\n");
  const Recipe files = read({share, "eval_data=held.jsonl"});
  EXPECT_EQ(files.eval_data, std::vector<std::string>{"held.jsonl"});
  EXPECT_EQ(files.val_size, 0);
  EXPECT_EQ(read({share, "eval_data="}).val_size, 0.05);
  const std::string held = write("eval_data: held.jsonl\n");
  const Recipe split = read({held, "val_size=0.1"});
  EXPECT_TRUE(split.eval_data.empty());
  EXPECT_EQ(split.val_size, 0.1);
  EXPECT_EQ(read({held, "val_size=0"}).eval_data.size(), 1u);
  const std::string both = write("eval_data: held.jsonl\nval_size: 0.05\n");
  EXPECT_EQ(read({both, "val_size=0.1"}).val_size, 0.1);
  const char* const refusal =
      "both eval_data and val_size are set | "
      "val_size=0 leaves data whole; eval_data names the held-out files";
  EXPECT_EQ(usage_error([&] { read({both}); }), refusal);
  EXPECT_EQ(usage_error([&] { read({"eval_data=x", "val_size=0.1"}); }), refusal);
  // A command that passes val_size over leaves the file's eval_data as it is.
  const auto reads = [](const OptionSet&, const OptionValue& option) {
    return option.spec.name != std::string_view("val_size");
  };
  const std::vector<std::string> arguments = {write("eval_data: held.jsonl\n"), "val_size=0.1"};
  EXPECT_EQ(read_recipe(arguments, kMethods, reads).eval_data.size(), 1u);
}

TEST_F(RecipeFileTest, CommandLineWinsOverFileInOrder) {
  const std::string file = write(
      "# a comment\n"
      "method: full\n"
      "per-device-train-batch-size: 4\n"
      "learning_rate: 3.0e-4\n"
      "device_memory: 16GiB\n"
      "gradient_checkpointing: True\n"
      "eval_data:\n"
      "model: 'my model'\n");
  const Recipe recipe = read({"--learning-rate", "1e-3", file, "learning_rate=2e-3", "operand"});
  EXPECT_EQ(recipe.learner, "full");
  EXPECT_EQ(recipe.micro_batch_size, 4);
  EXPECT_EQ(recipe.learning_rate, 2e-3);
  EXPECT_EQ(recipe.device_memory, int64_t{16} << 30);
  EXPECT_EQ(recipe.gradient_checkpointing, true);
  EXPECT_EQ(recipe.model, "my model");
  EXPECT_EQ(recipe.operands, std::vector<std::string>{"operand"});
  EXPECT_EQ(recipe.options.origin("model"), file + ":8");
}

TEST_F(RecipeFileTest, TheResolvedRecipeReadsBackTheSame) {
  const Recipe first = read({"method=lora", "model=a: #b\n\"", "r=4", "targets=q_proj,\"v: x\"",
                             "warmup_steps=7", "val_size=0.1", "threads=2", "--quiet"});
  const Recipe second = read({write(first.to_yaml())});
  EXPECT_EQ(second.to_yaml(), first.to_yaml());
  EXPECT_EQ(second.model, first.model);
  EXPECT_EQ(second.options.list("targets"), first.options.list("targets"));
  const std::string full = read({"method=full"}).to_yaml();
  EXPECT_EQ(full.find("rank:"), std::string::npos);
  EXPECT_EQ(read({write(full)}).to_yaml(), full);
}

TEST_F(RecipeFileTest, ErrorsNameFileAndLine) {
  const auto says = [&](const std::string& text, const std::string& part) {
    const std::string file = write(text);
    const std::string message = usage_error([&] { read({file}); });
    EXPECT_NE(message.find(file + part), std::string::npos) << message;
  };
  says("model: a\nlearning_rat: 1\n", ":2: unknown option \"learning_rat\"");
  says("max_steps: many\n", ":1: max_steps is \"many\", expected a whole number");
  says("model: a\n\nmodel_name_or_path: b\n", ":3: model is set a second time");
  says("lora:\n  rank: 8\n", ":1: lora holds a nested map");
  says("rank_pattern:\n  a: {b: 1}\n", ":2: rank_pattern holds something nested");
  says("targets: [a, [b]]\n", ":1: targets holds something nested");
  says("seed: 1\ntargets:\n  - a\n  -\nmax_steps: 1\n", ":3: targets has an empty item, number 2");
  says("rank_pattern: {a: }\n", ":1: rank_pattern has no value for a");
  says("seed: 1\n<<: {max_steps: 1}\n", ":2: << is a merge key");
  says("seed: 1\nmodel: !env HOME\n", ":2: the tag !env means nothing here");
  says("targets: !files [a]\n", ":1: the tag !files means nothing here");
  says("? !own seed\n: 1\n", ":1: the tag !own means nothing here");
  says("model: \"a\\0b\"\n", ":1: model has a character that is 0");
  says("model: [a, b]\n", ":1: model is \"[a, b]\", expected text");
  says("- a\n- b\n", ":1: expected one map of options");
  says("model: [a\n", ":2: not YAML");
  says("a: 1\n---\nb: 2\n", ":2: expected one map");
  // The library takes it for the end of the text.
  says("seed: 1\n\x04\nsed: 2\n", ":2: not YAML: a control character (byte 4)");
  const auto is_open = [&](const std::string& text, const std::string& where) {
    const std::string message = usage_error([&] { parse_recipe_text(text, "x.yaml"); });
    const std::string wanted = where + ": a quote is opened here or below, and never closed";
    EXPECT_NE(message.find(wanted), std::string::npos) << message;
  };
  is_open("model: 'a\n", "x.yaml:1");
  is_open("seed: 1\nmodel: \"a\nrank: 1", "x.yaml:2");
  is_open("seed: 1\nmodel:\n  - 'a\n", "x.yaml:2");
  is_open("'seed: 1\n", "x.yaml");
  EXPECT_EQ(parse_recipe_text("prompt: |\n  a\n  # b\n", "x")[0].text, "a\n# b\n");
  EXPECT_EQ(parse_recipe_text("prompt: |+\n  a\n", "x")[0].text, "a\n");
  EXPECT_EQ(parse_recipe_text("prompt: |+\n  a\n\n", "x")[0].text, "a\n\n");
  EXPECT_EQ(parse_recipe_text("seed: !!int 1\nprompt: ! 'a'\n", "x")[1].text, "a");
  const std::string missing = usage_error([] { read({"/nonexistent/x.yaml"}); });
  EXPECT_NE(missing.find("No such file"), std::string::npos) << missing;
}

TEST_F(RecipeFileTest, ListsAreReadInBothStyles) {
  const std::vector<std::string> expected = {"q_proj", "v_proj"};
  for (const char* text : {"targets: [q_proj, v_proj]\n", "targets:\n  - q_proj\n  - v_proj\n",
                           "targets: q_proj,v_proj\n"}) {
    EXPECT_EQ(read({write(text)}).options.list("targets"), expected);
  }
  // As PEFT writes it.
  const std::vector<std::string> pattern = {"down_proj=8", "layers\\.0\\..*=32"};
  for (const char* text : {"rank_pattern: {down_proj: 8, 'layers\\.0\\..*': 32}\n",
                           "rank_pattern:\n  down_proj: 8\n  layers\\.0\\..*: 32\n"}) {
    EXPECT_EQ(parse_recipe_text(text, "x.yaml")[0].items, pattern) << text;
  }
  EXPECT_TRUE(read({write("# nothing\n")}).model.empty());
  EXPECT_TRUE(read({write("")}).model.empty());
}

// Damaged recipes are refused with a usage error, never with anything else.
TEST(RecipeText, SurvivesMutations) {
  const std::string good = read({"targets=a,b"}).to_yaml() + "list:\n  - a\n  - &x {b: *x}\n";
  const auto random = RandomStream::make(1, RandomPurpose::shuffle, 0, 0);
  for (uint64_t round = 0; round < 2000; ++round) {
    std::string text = good.substr(0, random.bits(round * 16) % good.size());
    for (uint64_t edit = 1; edit < 8 && !text.empty(); ++edit) {
      constexpr std::string_view kAlphabet = ":-[]{}&*!|>'\"%@`#,\n \t\0a";
      text[random.bits(round * 16 + edit) % text.size()] =
          kAlphabet[random.bits(round * 16 + edit + 8) % kAlphabet.size()];
    }
    try {
      parse_recipe_text(text, "fuzz");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
    }
  }
  EXPECT_THROW(parse_recipe_text(",", "comma"), Error);
  EXPECT_THROW(parse_recipe_text("a: " + std::string(100000, '['), "deep"), Error);
}

TEST(RunOptions, PresetsOnlyNameOptionsThatExist) {
  for (const Preset& preset : presets()) {
    EXPECT_EQ(read({"method=" + std::string(preset.name)}).method, preset.name);
  }
}

}  // namespace
}  // namespace jackscrew
