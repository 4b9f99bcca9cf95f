#include "recipe/foreign_options.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "base/command_line.h"
#include "recipe/recipe.h"
#include "tests/support/errors.h"

namespace jackscrew {
namespace {

// A name that has become an option would hide its own hint, and of two rows the second one is never
// shown.
TEST(ForeignOptions, AreUnknownHereAndExplainedOnce) {
  const OptionSet options = run_options(method_tables());
  std::set<std::string> seen;
  for (const ForeignName& foreign : foreign_options()) {
    for (const std::string& name : split_words(foreign.names)) {
      EXPECT_TRUE(seen.insert(name).second) << name << " stands twice";
      const size_t equals = name.find('=');
      const bool known = options.find(name.substr(0, equals)) != nullptr;
      EXPECT_EQ(known, equals != std::string::npos) << name;
    }
  }
}

// The value of an option is refused with the hint of its row.
TEST(ForeignOptions, ForeignValuesAreRefused) {
  for (const ForeignName& foreign : foreign_options()) {
    for (const std::string& name : split_words(foreign.names)) {
      const size_t equals = name.find('=');
      if (equals == std::string::npos) continue;
      OptionSet options = run_options(method_tables());
      try {
        options.set({name.substr(0, equals), name.substr(equals + 1), kCommandLine, {}});
        ADD_FAILURE() << name << " was taken";
      } catch (const Error& error) {
        EXPECT_EQ(error.hint(), foreign.hint) << name;
      }
    }
  }
}

TEST(ForeignOptions, SayWhatIsLearnedHere) {
  const auto hint = [](std::string_view name) {
    return std::string(find_row(foreign_options(), name)->hint);
  };
  for (const char* name : {"assistant_only_loss", "completion_only_loss", "roles_to_train"}) {
    EXPECT_EQ(hint(name), "answers are learned, or all with train_on_inputs=true") << name;
  }
  EXPECT_TRUE(hint("mask_history").starts_with("all answers are learned")) << hint("mask_history");
}

TEST(ForeignOptions, NamesThatResembleOthersAreExplained) {
  const OptionSet options = run_options(method_tables());
  for (const auto& [name, hint] : {std::pair("use_galore", "method=galore"),
                                   std::pair("total_steps", "max_steps="),
                                   std::pair("checkpoint_steps", "save_steps="),
                                   std::pair("output_field", "field_output="),
                                   std::pair("lora_path", "adapter="),
                                   std::pair("lora", "adapter="),
                                   std::pair("min_lr", "falls to 0"),
                                   std::pair("quant", "storage="),
                                   std::pair("repeat_penalty", "repetition_penalty="),
                                   std::pair("optimizer=galore_adamw_8bit", "method=qgalore"),
                                   std::pair("optimizer=lomo", "update=fused"),
                                   std::pair("optimizer=apollo_adamw", "method=rotary"),
                                   std::pair("lr_scheduler_type=cosine_with_min_lr", "falls to 0"),
                                   std::pair("warmup_steps=0.1", "warmup_ratio="),
                                   std::pair("model_name", "model="),
                                   std::pair("dataset_name", "data="),
                                   std::pair("use_peft", "method=lora"),
                                   std::pair("label_smoothing_factor", "not there"),
                                   std::pair("iters", "max_steps="),
                                   std::pair("save_every", "save_steps="),
                                   std::pair("lora_parameters", "lora_rank="),
                                   std::pair("lr_schedule", "lr_scheduler_type="),
                                   std::pair("log_every_n_steps", "logging_steps="),
                                   std::pair("default_system", "system="),
                                   std::pair("freeze_trainable_layers", "method=rotary"),
                                   std::pair("interleave_probs", "data_weights="),
                                   std::pair("eval_steps=0.05", "a number of steps"),
                                   std::pair("val_size=5%", "val_size="),
                                   std::pair("resume=yes", "resume=auto"),
                                   std::pair("resume=none", "resume=never"),
                                   std::pair("resume=off", "resume=never"),
                                   std::pair("resume=on", "resume=auto"),
                                   std::pair("optimizer=adamw_torch_8bit", "optimizer=adamw_8bit"),
                                   std::pair("optimizer=galore_adafactor", "method=galore"),
                                   std::pair("lora_init=pissa_niter_4", "lora_init=pissa"),
                                   std::pair("lora_init=pissa_niter_16", "lora_init=pissa"),
                                   std::pair("config", "jackscrew train FILE.yaml"),
                                   std::pair("strict", "leave it out"),
                                   std::pair("eval_max_new_tokens", "report_samples="),
                                   std::pair("dataset_prepared_path", "output_dir/tokens"),
                                   std::pair("save_safetensors", "always"),
                                   std::pair("save_first_step", "save_steps="),
                                   std::pair("unfrozen_parameters", "method=rotary"),
                                   std::pair("<<", "merge key")}) {
    const char* const explanation = options.explanation(name);
    ASSERT_NE(explanation, nullptr) << name;
    EXPECT_NE(std::string(explanation).find(hint), std::string::npos) << name;
  }
}

// What a recipe turns off is not turned on by following the hint.
TEST(ForeignOptions, SwitchesThatAreOffAreLeftOut) {
  const OptionSet options = run_options(method_tables());
  for (const char* name : {"load_in_4bit", "load_in_8bit", "bf16", "tf32", "overwrite_output_dir",
                           "use_galore", "do_train"}) {
    EXPECT_STREQ(options.explanation(name, "False"), "leave it out") << name;
    EXPECT_STRNE(options.explanation(name, "true"), "leave it out") << name;
  }
  // There false asks for something else.
  EXPECT_STRNE(options.explanation("assistant_only_loss", "false"), "leave it out");
  OptionSet set = options;
  EXPECT_EQ(error_of(ErrorKind::usage, [&] { set.set("load_in_8bit", "false", "a.yaml:1"); }),
            "a.yaml:1: unknown option \"load_in_8bit\" | leave it out");
  const std::vector<std::string> words = {"--load_in_8bit", "false"};
  EXPECT_EQ(error_of(ErrorKind::usage, [&] { parse_command_line(words, options); }),
            "command line: unknown option \"load_in_8bit\" | leave it out");
}

TEST(ForeignOptions, KeptTokensAreNoReasonToStartOver) {
  const char* hint = find_row(foreign_options(), "overwrite_cache")->hint;
  EXPECT_TRUE(std::string_view(hint).starts_with("leave it out")) << hint;
}

// Where any text is a value, those of other programs are not.
TEST(ForeignOptions, ForeignTextIsRefused) {
  OptionSet options = run_options(method_tables());
  for (const char* const name : {"default", "tokenizer_default"}) {
    EXPECT_EQ(error_of(ErrorKind::usage, [&] { options.set("template", name, "a.yaml:3"); }),
              fmt::format("a.yaml:3: chat_template is \"{}\", a value of other programs | "
                          "chat_template=auto, the default, is the model's own",
                          name));
  }
  options.set("template", "chatml", "a.yaml:3");
  EXPECT_EQ(options.text("chat_template"), "chatml");
}

TEST(ForeignOptions, ForeignMethodsAreKnownInEverySpelling) {
  ASSERT_NE(foreign_method("galore_adamw"), nullptr);
  EXPECT_STREQ(foreign_method("soft-prompt"), "method=prompt");
  EXPECT_STREQ(foreign_method("soft_prompt"), "method=prompt");
  EXPECT_EQ(foreign_method("soft"), nullptr);
}

TEST(ForeignOptions, PreferenceTrainingIsToldHowToReadItsData) {
  const std::string hint = foreign_method("dpo");
  EXPECT_NE(hint.find("field_instruction=prompt field_output=chosen"), std::string::npos) << hint;
  EXPECT_NE(hint.find("are to be called completion"), std::string::npos) << hint;
}

}  // namespace
}  // namespace jackscrew
