// A whole run of the trainer within the test.
#pragma once

#include <memory>
#include <string>

#include "tests/support/golden.h"
#include "train/trainer.h"

namespace jackscrew {

// `text` has the settings of the recipe, "name=value name=value". Nothing is printed.
inline void train_quietly(const std::string& text) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> nowhere(std::fopen("/dev/null", "w"),
                                                                std::fclose);
  TrainConsole console;
  console.out = nowhere.get();
  console.style.quiet = true;
  train(make_recipe(settings_of(text)), console);
}

}  // namespace jackscrew
