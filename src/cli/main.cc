// The program's entry point: selects the subcommand and turns errors into messages and exit codes.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "base/console.h"
#include "base/error.h"
#include "base/file.h"
#include "base/map_guard.h"
#include "base/process_memory.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/foreign_command.h"
#include "cli/help.h"
#include "cli/launch.h"
#include "cli/waiting.h"

namespace jackscrew {
namespace {

const Subcommand& find_command(const std::string& name) {
  if (const Subcommand* known = find_subcommand(name)) return *known;
  std::vector<std::string> names = {"help"};
  for (const Subcommand& command : command_table()) names.push_back(command.name);
  if (const ForeignCommand* known = foreign_command(name)) {
    throw Error(ErrorKind::usage, fmt::format("no command \"{}\": {}", name, known->what),
                known->hint);
  }
  const auto nearest = nearest_name(name, names);
  throw Error(ErrorKind::usage, fmt::format("unknown command \"{}\"", name),
              nearest ? fmt::format("did you mean {}?", *nearest)
                      : std::string("jackscrew --help lists the commands"));
}

// `help train`, `help data preview`: the help of one command, with nothing after its name but what
// its usage has there.
const Subcommand& command_to_explain(Arguments asked) {
  const std::string& name = asked[0];
  const auto with = commands_with(name);
  if (find_subcommand(name) == nullptr && !with.empty()) {
    throw Error(ErrorKind::usage,
                fmt::format("{} is an option, of {}", name, fmt::join(with, ", ")),
                fmt::format("jackscrew help {} explains it", with.front()));
  }
  const Subcommand& command = find_command(name);
  const bool is_usage = asked.size() == 2 && command.usage.find(asked[1]) != std::string::npos;
  if (asked.size() == 1 || is_usage) return command;
  throw Error(ErrorKind::usage, fmt::format("help does not know what to do with \"{}\"", asked[1]),
              fmt::format("jackscrew help {}", command.name));
}

[[noreturn]] void refuse_ranks(const std::string& command) {
  throw Error(ErrorKind::usage,
              fmt::format("{} is the work of one process; {} were started together", command,
                          launched_ranks()),
              "start it without mpirun; train and doctor alone are shared by several ranks");
}

bool asks_for_help(Arguments arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--") return false;
    if (argument == "-h" || argument == "--help") return true;
  }
  return false;
}

int dispatch(Arguments arguments) {
  if (arguments.empty()) {
    write_stderr(program_help(command_table()));
    return static_cast<int>(ErrorKind::usage);
  }
  const std::string& name = arguments[0];
  if (name == "--version" || name == "-V" || name == "version") {
    fmt::print("{}", version_text());
    return 0;
  }
  const bool is_help = name == "help" || name == "--help" || name == "-h";
  if (is_help && (arguments.size() == 1 || arguments[1] == "help")) {
    fmt::print("{}", program_help(command_table()));
    return 0;
  }
  const Subcommand& command =
      is_help ? command_to_explain(arguments.subspan(1)) : find_command(name);
  if (is_help || asks_for_help(arguments.subspan(1))) {
    fmt::print("{}", command_help(command));
    return 0;
  }
  if (!command.by_ranks && launched_ranks() > 1) refuse_ranks(command.name);
  return command.run(arguments.subspan(1));
}

// Whether mpirun started this process as a rank other than 0, which does the talking.
bool is_other_rank() {
  try {
    return launched_ranks() > 1 && launched_rank() > 0;
  } catch (const Error&) {
    return false;
  }
}

int report_bug(const std::exception& error) {
  if (std::ferror(stdout) != 0) return report_error(kOutputLost, "", 1);
  return report_error(error.what(), "this is a bug in jackscrew: please report it", 1);
}

// Under a limit on addresses, threads share one heap. Otherwise each reserves 64 MiB of addresses
// for a heap of its own, at any moment: also between the look at what is left for oneDNN's code
// (kernels/cpu/gemm.cc) and its making, which would then end in an abort. Must come before the
// first thread.
void share_heap_under_limit() {
  if (address_limit()) ::mallopt(M_ARENA_MAX, 1);
}

int guarded_main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
    const int exit_code = dispatch(arguments);
    flush_output();
    return exit_code;
  } catch (const Error& error) {
    // All ranks find the same error in a command line; only rank 0 reports it.
    if (error.kind() == ErrorKind::usage && is_other_rank()) return error.exit_code();
    return report_error(error.what(), error.hint(), error.exit_code());
  } catch (const std::bad_alloc& exception) {
    const Error error = error_of(exception);
    return report_error(error.what(), error.hint(), error.exit_code());
  } catch (const fs::filesystem_error& error) {  // links that lead in a circle, for example
    return report_error(fmt::format("{}: {}", error.path1().string(), error.code().message()), "",
                        1);
  } catch (const std::system_error& error) {
    // A stream that is full and does not wait says the same as a system without threads.
    const bool no_threads = error.code() == std::errc::resource_unavailable_try_again;
    if (!no_threads || std::ferror(stdout) != 0) return report_bug(error);
    return report_error("the system starts no more threads",
                        "raise the limits `ulimit -v` and `ulimit -u`, or set threads=1",
                        static_cast<int>(ErrorKind::does_not_fit));
  } catch (const std::exception& error) {
    return report_bug(error);
  }
}

}  // namespace
}  // namespace jackscrew

int main(int argc, char** argv) {
  jackscrew::open_missing_descriptors();
  jackscrew::set_spinning(argv);
  jackscrew::share_heap_under_limit();
  const jackscrew::BusErrors bus_errors;  // a mapped file cut short is an error with its name
  std::signal(SIGXFSZ, SIG_IGN);          // so is a limit on the size of files (ulimit -f)
  const jackscrew::PoliteWaiting waiting;
  return jackscrew::guarded_main(argc, argv);
}
