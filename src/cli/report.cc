// jackscrew report: writes the report page of a run, from its log.
#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "report/report.h"

namespace jackscrew {

namespace {

int report(const Recipe& recipe) {
  const std::string path = recipe.operands.empty() ? recipe.output_dir : recipe.operands[0];
  if (path.empty()) {
    throw Error(ErrorKind::usage, "report needs the directory of a run",
                "give the output_dir of a training run");
  }
  if (!recipe.operands.empty()) {
    warn_of_unused(recipe, "report", {"output_dir"}, " beside a directory");
  }
  fmt::print("{}\n", one_line(write_report(path).string()));
  return 0;
}

}  // namespace

int run_report(Arguments arguments) {
  return with_recipe(arguments, 1, "report", report);
}

}  // namespace jackscrew
