#include <atomic>
#include <csignal>

#include <fmt/format.h>

#include "cli/arguments.h"
#include "train/trainer.h"

namespace jackscrew {

namespace {

// Signal handlers can reach nothing else.
std::atomic<bool> stop_requested{false};

// The first interrupt asks for a checkpoint, the second ends the program at once.
void request_stop(int) {
  stop_requested.store(true);
  std::signal(SIGINT, SIG_DFL);
}

}  // namespace

int run_train(Arguments arguments) {
  const Recipe recipe = read_arguments(arguments, 0, "train");
  if (recipe.print_config) {
    fmt::print("{}", recipe.to_yaml());
    return 0;
  }
  std::signal(SIGINT, request_stop);
  TrainConsole console;
  console.style = stderr_style(recipe.quiet);
  console.stop = &stop_requested;
  train(recipe, console);
  return 0;
}

}  // namespace jackscrew
