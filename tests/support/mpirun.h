// Several ranks of the built program, started as users start them.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <thread>

#include "parallel/transport.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {

// Open MPI in a container, as root, on fewer cores than ranks; single copies want a system call
// that containers may not make. Sanitizers count what MPI never gives back. It ends ranks that hang
// after 100 s.
inline std::string mpirun(int ranks, const std::string& options = {}) {
  return fmt::format(
      "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
      "OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_vader_single_copy_mechanism=none "
      "ASAN_OPTIONS=detect_leaks=0 mpirun --timeout 100 --bind-to none {} -n {}",
      options, ranks);
}

// The program on so many ranks to its end; what both streams of all of them said.
inline Outcome run_on_ranks(int ranks, const std::string& arguments) {
  return run_shell(fmt::format("{} {} {} </dev/null 2>&1", mpirun(ranks), kProgram, arguments));
}

// Why no test of several ranks can run here; empty where they can.
inline std::string no_ranks() {
  if (const TransportReport report = transport_report(); !report.found) return report.text;
  return run_shell("mpirun --version 2>&1").exit_code == 0 ? "" : "there is no mpirun";
}

// How often a text has some words.
inline int count_of(const std::string& text, const std::string& words) {
  int count = 0;
  for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1))
    ++count;
  return count;
}

// Ranks in the background.
//
// Open MPI 4.1.4 over PMIx 4.2.2 has a race: when a rank is killed while it connects to mpirun,
// mpirun ends the others and then, one time in seventy, waits for ever in PMIx_server_finalize for
// a lock in memory that it has freed. wait() ends it where all ranks have gone.
class RanksChild : public Child {
 public:
  RanksChild(int ranks, const std::string& arguments, const fs::path& said)
      : Child(arguments, said, mpirun(ranks)) {}

  // Waits until all have been started; their processes by rank.
  std::map<int, pid_t> processes(int ranks) {
    std::map<int, pid_t>& out = processes_;
    until([&] {
      out.clear();
      const std::string mpirun_process = std::to_string(pid());
      std::istringstream children(
          bytes_of("/proc/" + mpirun_process + "/task/" + mpirun_process + "/children"));
      for (pid_t child = 0; children >> child;) {
        const std::string text = bytes_of("/proc/" + std::to_string(child) + "/environ");
        const std::string name = "OMPI_COMM_WORLD_RANK=";
        const size_t at = text.find(name);
        if (at != std::string::npos) out[std::stoi(text.substr(at + name.size()))] = child;
      }
      return std::ssize(out) == ranks;
    });
    return out;
  }

  // As Child::wait().
  int wait() {
    constexpr std::chrono::seconds kLongEnough{20};  // mpirun ends within one second
    auto last_seen = std::chrono::steady_clock::now();
    const bool hangs = until([&] {
      const auto now = std::chrono::steady_clock::now();
      if (processes_.empty() || !none_lives(processes_)) last_seen = now;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return now - last_seen > kLongEnough;
    });
    if (hangs) {
      std::cout << "mpirun hangs after its ranks have ended\n";
      signal(SIGKILL);
    }
    return Child::wait();
  }

  // mpirun may end a moment before those that it ends.
  static bool all_gone(const std::map<int, pid_t>& processes) {
    for (int tries = 0; tries < 500; ++tries) {
      if (none_lives(processes)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

 private:
  // Whether none is more than an exit code that its parent has not asked for.
  static bool none_lives(const std::map<int, pid_t>& processes) {
    return std::all_of(processes.begin(), processes.end(), [](const auto& of_rank) {
      const std::string stat = bytes_of("/proc/" + std::to_string(of_rank.second) + "/stat");
      const size_t name_end = stat.rfind(") ");
      return name_end == std::string::npos || stat[name_end + 2] == 'Z';
    });
  }

  // Of a file of the kernel's, which may be gone.
  static std::string bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream bytes;
    bytes << file.rdbuf();  // nothing where reading fails
    return bytes.str();
  }

  std::map<int, pid_t> processes_;  // by rank, once processes() has found them
};

}  // namespace jackscrew
