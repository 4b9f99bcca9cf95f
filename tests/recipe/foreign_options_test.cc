#include "recipe/foreign_options.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "recipe/recipe.h"

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

TEST(ForeignOptions, ForeignMethodsAreKnownInEverySpelling) {
  EXPECT_STREQ(foreign_method("soft-prompt"), "method=prompt");
  EXPECT_STREQ(foreign_method("soft_prompt"), "method=prompt");
  EXPECT_EQ(foreign_method("soft"), nullptr);
}

}  // namespace
}  // namespace jackscrew
