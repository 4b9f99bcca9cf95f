#include "train/resume.h"

#include <fmt/format.h>

#include "train/recipe_file.h"

namespace jackscrew {

namespace {

// The options of the run that wrote the checkpoint.
OptionSet saved_options(const fs::path& checkpoint, const OptionSet& options) {
  OptionSet saved;
  for (const OptionTable& table : options.tables()) saved.add(table);
  for (const Assignment& assignment : read_recipe_file(checkpoint / "recipe.yaml")) {
    // Another version may have had others; that it was another is said anyway.
    if (saved.find(assignment.name) != nullptr) saved.set(assignment);
  }
  return saved;
}

std::string shown(const OptionValue& value) {
  return value.text.empty() ? "not set" : value.text;
}

}  // namespace

std::vector<std::string> resume_warnings(const fs::path& checkpoint, const CheckpointInfo& now,
                                         const OptionSet& options) {
  std::vector<std::string> warnings;
  const CheckpointInfo then = read_checkpoint_info(checkpoint);
  if (then.version != now.version || then.isa != now.isa || then.product != now.product) {
    warnings.push_back(
        fmt::format("{} was written by version {} on {} with product {}; the run goes on, but not "
                    "with the same bits",
                    checkpoint.string(), then.version, then.isa, then.product));
  }
  if (!then.data.empty() && then.data != now.data) {
    warnings.push_back(
        fmt::format("the data were {} when the checkpoint was written and are {} now; the run goes "
                    "on with the present data",
                    then.data, now.data));
  }
  const OptionSet saved = saved_options(checkpoint, options);
  for (const OptionValue& value : options.values()) {
    if (!value.spec.affects_result || !options.tables()[value.table].saved) continue;
    const OptionValue& before = *saved.find(value.spec.name);
    if (same_value(before, value)) continue;
    warnings.push_back(
        fmt::format("{} was {} when the checkpoint was written and is {} now; the run goes on with "
                    "the present value",
                    value.spec.name, shown(before), shown(value)));
  }
  return warnings;
}

}  // namespace jackscrew
