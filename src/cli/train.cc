#include <unistd.h>

#include <atomic>
#include <csignal>

#include <fmt/format.h>

#include "cli/arguments.h"
#include "train/trainer.h"

namespace jackscrew {

namespace {

// Signal handlers can reach nothing else.
std::atomic<bool> stop_requested{false};
std::atomic<bool> save_requested{false};

// The first interrupt asks for a checkpoint, the second ends the program at once.
void request_stop(int signal) {
  stop_requested.store(true);
  std::signal(signal, SIG_DFL);
  constexpr char kSaid[] = "jackscrew: stopping after this step; once more stops at once\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kSaid, sizeof kSaid - 1);
}

void request_save(int) {
  save_requested.store(true);
}

int train_until_stopped(const Recipe& recipe) {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, request_stop);
  // A terminal that is closed, unless `nohup` says that this is no matter.
  if (std::signal(SIGHUP, request_stop) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);
  std::signal(SIGUSR1, request_save);
  std::signal(SIGPIPE, SIG_IGN);  // a reader that is gone, such as `| head`, is no end of the run
  TrainConsole console;
  console.style = stderr_style(recipe.quiet);
  console.colour = stdout_colour();
  console.stop = &stop_requested;
  console.save = &save_requested;
  train(recipe, console);
  return 0;
}

}  // namespace

int run_train(Arguments arguments) {
  return with_recipe(arguments, 0, "train", train_until_stopped);
}

}  // namespace jackscrew
