// A small model, its data and its runs, through the built program.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "report/event_log.h"
#include "tests/cli/run_program.h"
#include "tests/support/paths.h"

namespace jackscrew {

// A directory with a configuration of 260 tokens and two files of records that tokenizer=bytes
// reads.
class TinyRun {
 public:
  explicit TinyRun(const std::string& name) : directory_("jackscrew_" + name) {
    // Idle threads of one run must not keep the processor from the next.
    ::setenv("OMP_WAIT_POLICY", "passive", 1);
    config_ = directory_.file("config.json", R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 260,
      "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
      "tie_word_embeddings": false, "bos_token_id": 256, "eos_token_id": 257})");
    std::string train, valid;
    for (int i = 0; i < 40; ++i) {
      train += record(
          "Say number " + std::to_string(i),
          "It is " + std::to_string(i * 7 % 31) + std::string(static_cast<size_t>(i % 9), '.'));
    }
    for (int i = 0; i < 5; ++i) valid += record("Say " + std::to_string(i), std::to_string(i * 5));
    data_ = directory_.file("train.jsonl", train);
    eval_data_ = directory_.file("valid.jsonl", valid);
  }

  static std::string record(const std::string& question, const std::string& answer) {
    return nlohmann::json{{"instruction", question}, {"output", answer}}.dump() + "\n";
  }

  fs::path path(const std::string& name) const { return directory_.path() / name; }
  std::string file(const std::string& name, const std::string& text) const {
    return directory_.file(name, text);
  }
  const std::string& config() const { return config_; }
  const std::string& data() const { return data_; }
  const std::string& eval_data() const { return eval_data_; }

  // Settings of a run on the random model; later ones win.
  std::string settings(const std::string& more = "") const {
    return "model=" + config_ + " init=random tokenizer=bytes data=" + data_ +
           " sequence_len=64 micro_batch_size=2 threads=1 " + more;
  }
  std::string train(const std::string& output, const std::string& more = "") const {
    return "train " + settings("output_dir=" + path(output).string() + " " + more);
  }
  // Trains and expects success.
  void must_train(const std::string& output, const std::string& more = "") const {
    const Outcome outcome = run(train(output, more) + " 2>&1");
    ASSERT_EQ(outcome.exit_code, 0) << outcome.out;
  }

  // As if the run had been killed before its end.
  void lose_result(const std::string& output) const {
    for (const char* name : {"adapter_model.safetensors", "model.safetensors"}) {
      fs::remove(path(output) / name);
    }
  }

  std::string text(const std::string& name) const { return read_text(path(name)); }
  // The events of a run's log, in order.
  std::vector<nlohmann::json> events(const std::string& output,
                                     const std::string& kind = "") const {
    std::vector<nlohmann::json> out;
    std::istringstream lines(text(output + "/train_log.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      auto event = nlohmann::json::parse(line);
      if (kind.empty() || event["event"] == kind) out.push_back(std::move(event));
    }
    return out;
  }
  std::map<int64_t, double> losses(const std::string& output) const {
    std::map<int64_t, double> out;
    for (const auto& event : events(output, "step")) {
      EXPECT_TRUE(out.emplace(event["step"], event["loss"]).second) << event;
    }
    return out;
  }

 private:
  TemporaryDirectory directory_;
  std::string config_, data_, eval_data_;
};

// The events of a log, which may be growing.
inline std::vector<nlohmann::json> read_events(const fs::path& log) {
  std::vector<nlohmann::json> events;
  for_events(log, [&](const nlohmann::json& event) { events.push_back(event); });
  return events;
}

// Every file below a directory with its bytes.
inline std::map<std::string, std::string> contents(const fs::path& root) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.is_regular_file()) {
      out[fs::relative(entry.path(), root).string()] = read_text(entry.path());
    }
  }
  return out;
}

// A run in the background.
class Child {
 public:
  // `said`: a file for what it prints. `launcher`: what starts the program, if not the shell.
  explicit Child(const std::string& arguments, const fs::path& said = "/dev/null",
                 const std::string& launcher = {}) {
    const std::string command = "exec " + launcher + " " + std::string(kProgram) + " " + arguments +
                                " >" + said.string() + " 2>&1";
    pid_ = ::fork();
    if (pid_ == 0) {
      // Which a program ignores that was started so.
      for (const int number : {SIGHUP, SIGINT, SIGTERM}) ::signal(number, SIG_DFL);
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
  }
  ~Child() {
    if (running()) stop(SIGKILL);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  bool running() {
    if (!ended_) ended_ = ::waitpid(pid_, &status_, WNOHANG) == pid_;
    return !ended_;
  }
  // The exit code, or minus the signal that ended it.
  int wait() {
    if (!ended_) ended_ = ::waitpid(pid_, &status_, 0) == pid_;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_);
  }
  pid_t pid() const { return pid_; }
  void signal(int number) { ::kill(pid_, number); }
  // Requests that the program sees one by one: such signals that arrive before the first of them is
  // taken are one signal.
  void signal_repeatedly(int number, int times) {
    for (int i = 0; i < times; ++i) {
      signal(number);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  int stop(int number) {
    signal(number);
    signal(SIGCONT);  // where it is halted
    return wait();
  }
  // Waits until it acts on signals, or ends; whether it does. Until then a signal does what it does
  // to any program that starts.
  bool waits_for_signals() {
    return until([&] {
      std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
      for (std::string line; std::getline(status, line);) {
        if (line.starts_with("SigBlk:"))
          return line.find_first_of("123456789abcdef", 7) != std::string::npos;
      }
      return false;
    });
  }
  // Waits until `condition` holds or the run ends; whether it held.
  template <class Condition>
  bool until(const Condition& condition) {
    while (running()) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return false;
  }
  // Stops it without ending it; false where it has ended. SIGCONT lets it go on.
  bool halt() {
    if (!running()) return false;
    signal(SIGSTOP);
    const bool changed = ::waitpid(pid_, &status_, WUNTRACED) == pid_;
    ended_ = changed && !WIFSTOPPED(status_);
    return !ended_;
  }

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  bool ended_ = false;
};

// A run in `output` that was halted once its log had `words`, with more than a step to go: what is
// left of it takes a fraction of a second, and this process may get its turn later. Then it begins
// again. `start` brings `output` to what it is before the run, and starts it.
inline std::unique_ptr<Child> halted_run(const fs::path& output, const std::string& words,
                                         const std::function<std::unique_ptr<Child>()>& start) {
  const fs::path log = output / "train_log.jsonl";
  for (int attempt = 0; attempt < 10; ++attempt) {
    std::unique_ptr<Child> child = start();
    const bool there = child->until(
        [&] { return fs::exists(log) && read_text(log).find(words) != std::string::npos; });
    if (!there || !child->halt()) continue;
    int64_t total = 0, done = 0;
    for (const auto& event : read_events(log)) {
      if (event["event"] == "start") total = event["total_steps"];
      if (event["event"] == "step") done = event["step"];
    }
    if (done + 1 < total) return child;
  }
  throw std::runtime_error("no run in " + output.string() + " was halted before its end");
}

}  // namespace jackscrew
