// Which options a run differs in from an earlier one.
#include <gtest/gtest.h>

#include "base/file.h"
#include "tests/support/golden.h"
#include "tests/support/tiny_run.h"
#include "train/resume.h"

namespace jackscrew {
namespace {

// The names of what changed_options() finds between a run of the first settings and one of both.
std::vector<std::string> changed_names(const std::vector<std::string>& settings,
                                       const std::vector<std::string>& more) {
  const TemporaryDirectory directory("jackscrew_changed_options");
  directory.file(kRecipeName, make_recipe(settings).to_yaml());
  std::vector<std::string> all = settings;
  all.insert(all.end(), more.begin(), more.end());
  std::vector<std::string> names;
  for (const OptionChange& change : changed_options(directory.path(), make_recipe(all).options)) {
    names.push_back(change.name);
  }
  return names;
}

TEST(ChangedOptions, WhatAnotherOptionLeavesWithoutEffectIsNoChange) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(changed_names({"max_steps=3"}, {"num_train_epochs=5"}), Names());
  EXPECT_EQ(changed_names({"warmup_steps=1", "max_steps=3"}, {"warmup_ratio=0.2"}), Names());
  EXPECT_EQ(changed_names({}, {"weight_decay_target=all"}), Names());
  EXPECT_EQ(changed_names({"method=full", "update=fused", "max_grad_norm=0"},
                          {"max_grad_norm_of=weight"}),
            Names());
  // One of the two runs reads it.
  EXPECT_EQ(changed_names({}, {"warmup_ratio=0.2"}), Names({"warmup_ratio"}));
  EXPECT_EQ(changed_names({"max_steps=3"}, {"warmup_steps=1", "warmup_ratio=0.2"}),
            Names({"warmup_ratio", "warmup_steps"}));
  EXPECT_EQ(changed_names({}, {"weight_decay=0.1", "weight_decay_target=all"}),
            Names({"weight_decay", "weight_decay_target"}));
}

}  // namespace
}  // namespace jackscrew
