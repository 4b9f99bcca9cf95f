// A whole run of the trainer within the test.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/command_line.h"
#include "tests/support/golden.h"
#include "train/trainer.h"

namespace jackscrew {

// `text` has the settings of the recipe, "name=value name=value". Nothing is printed.
inline void train_quietly(const std::string& text) {
  std::vector<std::string> settings;
  for (const Assignment& setting : split_settings(text, "")) {
    settings.push_back(setting.name + "=" + setting.text);
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> nowhere(std::fopen("/dev/null", "w"),
                                                                std::fclose);
  TrainConsole console;
  console.out = nowhere.get();
  console.style.quiet = true;
  train(make_recipe(settings), console);
}

}  // namespace jackscrew
