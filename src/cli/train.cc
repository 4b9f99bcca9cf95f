// jackscrew train: a run until its end, or until a signal asks for it.
#include <atomic>
#include <csignal>
#include <set>
#include <vector>

#include "base/console.h"
#include "base/signals.h"
#include "cli/arguments.h"
#include "train/trainer.h"

namespace jackscrew {

namespace {

// What signals ask of a run, on their own thread (base/signals.h): SIGUSR1 for a checkpoint, any
// other for a checkpoint and the end. The second of a kind ends the process at once.
class Requests {
 public:
  void receive(int signal) {
    if (signal == SIGUSR1) return save_.store(true);
    if (!seen_.insert(signal).second) end_by(signal);
    stop_.store(true);
    write_stderr(
        "\njackscrew: stopping after this step; press Ctrl-C again to quit without saving\n");
  }

  const std::atomic<bool>& stop() const { return stop_; }
  std::atomic<bool>& save() { return save_; }

 private:
  std::atomic<bool> stop_{false}, save_{false};
  std::set<int> seen_;
};

int train_until_stopped(const Recipe& recipe) {
  Requests requests;
  std::vector<int> signals = {SIGUSR1, SIGINT, SIGTERM};
  if (!is_ignored(SIGHUP)) signals.push_back(SIGHUP);  // a closed terminal, without `nohup`
  const SignalThread thread(signals, [&](int signal) { requests.receive(signal); });
  std::signal(SIGPIPE, SIG_IGN);  // a reader that is gone, such as `| head`, is no end of the run
  TrainConsole console;
  console.style = stderr_style(recipe.quiet);
  console.colour = stdout_colour();
  console.width = stdout_width();
  console.stop = &requests.stop();
  console.save = &requests.save();
  train(recipe, console);
  return 0;
}

}  // namespace

int run_train(Arguments arguments) {
  return with_recipe(arguments, 0, "train", train_until_stopped);
}

}  // namespace jackscrew
