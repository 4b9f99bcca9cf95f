// Whole runs of several ranks, each a thread of the test.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "tests/support/golden.h"
#include "tests/support/tiny_run.h"
#include "train/trainer.h"
#include "train/worker.h"

namespace jackscrew {

// Calls first(transport) as rank 0 of so many, null where it is alone; the others serve it until it
// dismisses them. What it throws is thrown here.
template <class First>
void on_ranks(int ranks, const LinkModel& link, const First& first) {
  if (ranks == 1) return first(nullptr);
  const auto transports = make_in_process(ranks, link);
  std::vector<std::thread> threads;
  for (int rank = 1; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Transport& transport = *transports[static_cast<size_t>(rank)];
      try {
        serve(transport);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
        try {
          transport.abort(1);
        } catch (const Error&) {
        }
      }
    });
  }
  std::optional<Error> failure;
  try {
    first(transports[0].get());
  } catch (const std::exception& exception) {
    failure = error_of(exception);
    try {
      transports[0]->abort(1);
    } catch (const Error&) {
    }
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) throw Error(*failure);
}

// Trains by `text`, the settings of a recipe, on so many ranks. What rank 0 throws is thrown here.
inline void train_on_ranks(const std::string& text, int ranks, const LinkModel& link = {}) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> nowhere(std::fopen("/dev/null", "w"),
                                                                std::fclose);
  TrainConsole console;
  console.out = nowhere.get();
  console.style.quiet = true;
  const Recipe recipe = make_recipe(settings_of(text));
  on_ranks(ranks, link, [&](Transport* transport) { train(recipe, console, transport); });
}

// What a run leaves that any number of ranks must leave, by name: its files but those that tell of
// time, and its losses.
inline std::map<std::string, std::string> outcome_of(const TinyRun& tiny,
                                                     const std::string& output) {
  std::map<std::string, std::string> out;
  for (const auto& [name, bytes] : contents(tiny.path(output))) {
    const bool by_time = name.ends_with(".jsonl") || name.ends_with(".html") ||
                         name.find("tfevents") != std::string::npos ||
                         name.ends_with("recipe.yaml") || name.ends_with("checkpoint.json");
    if (!by_time) out[name] = bytes;
  }
  for (const auto& event : tiny.events(output)) {
    const std::string at = fmt::format("{} {}", event["event"].dump(), event["step"].dump());
    if (event["event"] == "step") out[at] = event["loss"].dump() + " " + event["grad_norm"].dump();
    if (event["event"] == "eval") out[at] = event["eval_loss"].dump();
  }
  return out;
}

}  // namespace jackscrew
