// jackscrew train: runs a recipe to its end, or until a signal stops it.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <csignal>
#include <optional>
#include <vector>

#include "base/console.h"
#include "base/error.h"
#include "base/file.h"
#include "base/shell_word.h"
#include "base/signals.h"
#include "cli/arguments.h"
#include "cli/interruption.h"
#include "cli/launch.h"
#include "report/event_log.h"
#include "report/progress.h"
#include "session/adapter.h"
#include "train/trainer.h"
#include "train/worker.h"

namespace jackscrew {

namespace {

std::string what_a_stop_does(RunPhase phase) {
  switch (phase) {
    case RunPhase::begins:
      break;
    case RunPhase::steps:
      // mpirun sends SIGTERM where another rank has died, too: then no step ends, nor the last.
      return launched_ranks() > 1
                 ? "stopping after the current step, with a checkpoint if all ranks still answer"
                 : "stopping after the current step, with a checkpoint";
    case RunPhase::writes_result:
      return launched_ranks() > 1 ? "stopping once the result is written, if all ranks still answer"
                                  : "stopping once the result is written";
    case RunPhase::waits_for_room:
      return "stopping without the result; a checkpoint is left";
    case RunPhase::answers:
      return "stopping after the current answer; the result is written";
    case RunPhase::exports:
      return "stopping the export; the result is written";
  }
  return "stopping";
}

// How the same request is made again.
const char* second_of(int signal) {
  switch (signal) {
    case SIGINT:
      return "Ctrl-C again";
    case SIGTERM:
      return "another SIGTERM";
    default:
      return "another SIGHUP";
  }
}

// Signals to a run, received on their own thread (base/signals.h): SIGUSR1 asks for a checkpoint,
// any other for a checkpoint and the end. The second of the same kind ends the process at once.
class Requests {
 public:
  void receive(int signal) {
    if (signal == SIGUSR1) return save_.store(true);
    const int request = requests_.receive(signal);
    if (request == 0) return;
    if (request > 1) end_by(signal);
    stop_.store(true);
    offer_to_stderr(fmt::format("\njackscrew: {}; {} quits at once\n",
                                what_a_stop_does(phase_.load()), second_of(signal)));
  }

  const std::atomic<bool>& stop() const { return stop_; }
  std::atomic<bool>& save() { return save_; }
  std::atomic<RunPhase>& phase() { return phase_; }

 private:
  std::atomic<bool> stop_{false}, save_{false};
  std::atomic<RunPhase> phase_{RunPhase::begins};
  SignalRequests requests_;
};

TransportOptions transport_options(const Recipe& recipe) {
  TransportOptions options{.ranks = launched_ranks()};
  options.communication_timeout =
      std::chrono::duration_cast<std::chrono::milliseconds>(recipe.communication_timeout);
  return options;
}

// What a rank other than 0 says, and whose words they are.
std::string said_by(int rank, const std::string& host, const std::string& what) {
  return fmt::format("rank {} on {}: {}", rank, host, what);
}

// Any failure of this rank ends all ranks, since the others wait for it.
// `given` is the recipe of its arguments, as YAML.
int serve_or_end_all(Transport& transport, const std::optional<Error>& wrong_arguments,
                     const std::string& given) {
  const auto report = [&](const char* what, const std::string& hint, ErrorKind kind) {
    const std::string& host = transport.host(transport.rank());
    return report_error(said_by(transport.rank(), host, what), hint, static_cast<int>(kind));
  };
  try {
    if (wrong_arguments) throw Error(*wrong_arguments);
    serve(transport, {.given = given, .environments = python_environments()});
    // Also where the run has failed: mpirun kills the others once a rank ends with another code,
    // and rank 0 may not have said yet what is wrong.
    return 0;
  } catch (const std::exception& exception) {
    const Error error = error_of(exception);
    const int exit_code = report(error.what(), error.hint(), error.kind());
    // While the exception lives, and with it what messages are sent from.
    transport.abort(exit_code);
    return exit_code;  // not reached; GCC does not see that, as the function is virtual
  }
}

// Whether two values of an option say the same, lists in any order.
bool agree(const OptionValue& a, const OptionValue& b) {
  return same_value(a, b) ||
         (a.spec.type == OptionType::list && std::ranges::is_permutation(a.items, b.items));
}

// Settings that say how an adapter begins leave the choice to one that is there already. In a
// recipe they may be of the run that made it.
void warn_of_settings_of_the_adapter(const Recipe& recipe) {
  if (recipe.adapters.size() != 1) return;
  const Recipe taken = with_adapter_options(recipe);
  for (const OptionValue& given : recipe.options.values()) {
    const OptionValue& now = taken.options.at(given.spec.name, recipe.adapter);
    if (given.origin != kCommandLine || agree(given, now)) continue;
    const std::string theirs = now.text.empty() ? "" : ", " + now.text;
    warn(fmt::format("{}={} is not used: it is the adapter's{}", given.spec.name, given.text,
                     theirs));
  }
}

// Settings that other settings leave without effect.
void warn_of_settings_without_effect(const Recipe& recipe) {
  const auto warn_unless = [&](bool used, const char* name, const char* where) {
    if (!used) warn_of_unused(recipe, "train", {name}, where);
  };
  const bool writes_directory =
      std::ranges::any_of(recipe.exports, [](const RunExport& wanted) { return !wanted.gguf; });
  warn_unless(writes_directory, "max_shard_size", " without export=hf");
  for (const OptionSpec& option : schedule_options()) {
    const std::string name = option.name;
    // With update=after it takes back what a method sets: it is not without use.
    const bool takes_back = name == "max_grad_norm_of" && !recipe.clip_each_weight;
    const char* const where = without_effect(recipe.options, name);
    if (where != nullptr && !takes_back) warn_of_unused(recipe, "train", {name}, where);
  }
  // Of two that stand in one file, neither overrides the other.
  const auto is_in_file = [&](const char* name) {
    return recipe.options.was_set(name) && recipe.options.origin(name) != kCommandLine;
  };
  const char* const where = without_effect(recipe.options, "warmup_ratio");
  if (where != nullptr && is_in_file("warmup_steps") && is_in_file("warmup_ratio") &&
      recipe.options.is_changed("warmup_ratio")) {
    warn(fmt::format("train does not use warmup_ratio{}", where));
  }
  warn_unless(recipe.watch.loss_watchdog_threshold > 0, "loss_watchdog_patience",
              " without loss_watchdog_threshold");
}

// The recipe in the directory of a run names where that was begun: after it has been moved, a run
// would begin anew there.
void warn_of_another_run(const Recipe& recipe) {
  if (recipe.file.empty() || recipe.options.origin("output_dir") == kCommandLine) return;
  const fs::path directory = fs::path(recipe.file).parent_path();
  const fs::path of_run = directory.empty() ? "." : directory;
  std::error_code ignored;
  const bool is_run = fs::exists(of_run / kLogName, ignored);
  if (!is_run || is_same_file(of_run, recipe.output_dir)) return;
  warn(fmt::format("{} is the directory of a run; output_dir={} continues it", of_run.string(),
                   shell_word(of_run.string())));
}

int train_until_stopped(const Recipe& recipe) {
  warn_of_weights(recipe);
  warn_of_another_run(recipe);
  warn_of_settings_of_the_adapter(recipe);
  warn_of_settings_without_effect(recipe);
  Requests requests;
  std::vector<int> signals(kEndingSignals.begin(), kEndingSignals.end());
  signals.push_back(SIGUSR1);
  const SignalThread thread(signals, [&](int signal) { requests.receive(signal); });
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe, such as `| head`, does not end the run
  TrainConsole console;
  console.style = stderr_style(recipe.quiet);
  console.colour = stdout_colour();
  console.width = stdout_width();
  console.stop = &requests.stop();
  console.save = &requests.save();
  console.phase = &requests.phase();
  const std::unique_ptr<Transport> transport = open_transport(transport_options(recipe));
  // A launcher may not say in the environment which rank this is.
  if (transport != nullptr && transport->rank() != 0) {
    return serve_or_end_all(*transport, {}, recipe.to_yaml());
  }
  std::optional<int> exit_code;
  if (transport != nullptr) {
    console.report = [&](const Error& error) {
      if (exit_code) return;
      exit_code = report_error(error.what(), error.hint(), error.exit_code());
    };
  }
  try {
    train(recipe, console, transport.get());
  } catch (const RanksLost& error) {
    console.report(error);
    transport->abort(exit_code.value());
  } catch (const std::exception&) {
    if (!exit_code) throw;
  }
  return exit_code.value_or(0);
}

// If several ranks notice a lost rank, the lowest of them reports it and ends the others within
// this time.
constexpr std::chrono::seconds kReportDelay{2};

// As open_transport(), which names no rank: where MPI is missing, nobody else can tell on which
// machine.
std::unique_ptr<Transport> open_transport_of_rank(int rank, const TransportOptions& options) {
  try {
    return open_transport(options);
  } catch (const Error& error) {
    std::array<char, HOST_NAME_MAX + 1> host{};
    if (::gethostname(host.data(), host.size() - 1) != 0) throw;
    throw Error(error.kind(), said_by(rank, host.data(), error.what()), error.hint());
  }
}

// Serves rank 0. Of its own arguments this rank needs only the options of the transport.
int serve_until_dismissed(Arguments arguments) {
  // Rank 0 decides what happens to the run; mpirun sends signals to all.
  const SignalThread thread(std::array{SIGUSR1, SIGINT, SIGTERM, SIGHUP}, [](int) {});
  std::signal(SIGPIPE, SIG_IGN);
  // Errors in the arguments are usually rank 0's too, which reports them.
  std::optional<Error> wrong_arguments;
  std::string given;
  TransportOptions options{.ranks = launched_ranks()};
  try {
    const Recipe recipe = read_arguments(arguments, 0, "train");
    if (recipe.print_config) return 0;
    options = transport_options(recipe);
    given = recipe.to_yaml();
  } catch (const Error& error) {
    wrong_arguments = error;
  }
  options.patience = std::min(launched_rank(), 2) * kReportDelay;
  const std::unique_ptr<Transport> transport = open_transport_of_rank(launched_rank(), options);
  return serve_or_end_all(*transport, wrong_arguments, given);
}

}  // namespace

int run_train(Arguments arguments) {
  if (launched_ranks() > 1 && launched_rank() > 0) return serve_until_dismissed(arguments);
  return with_recipe(arguments, 0, "train", train_until_stopped);
}

}  // namespace jackscrew
