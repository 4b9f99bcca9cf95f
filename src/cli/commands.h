// The subcommands: each takes the arguments after its name, writes data to stdout and messages to
// stderr, and returns the program's exit code or throws Error.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace jackscrew {

using Arguments = std::span<const std::string>;

int run_train(Arguments arguments);
int run_eval(Arguments arguments);
int run_generate(Arguments arguments);
int run_plan(Arguments arguments);
int run_inspect(Arguments arguments);
int run_data(Arguments arguments);
int run_chat(Arguments arguments);
int run_report(Arguments arguments);
int run_logits(Arguments arguments);
int run_config(Arguments arguments);
int run_doctor(Arguments arguments);
int run_merge(Arguments arguments);
int run_export(Arguments arguments);
int run_quantise(Arguments arguments);
int run_compare(Arguments arguments);

// A row of the program's table of subcommands.
struct Subcommand {
  std::string name;
  std::string summary;                // one line
  std::string usage;                  // what follows the name
  std::vector<std::string> examples;  // whole command lines
  std::vector<std::string> tables;    // titles of the option tables that its help shows
  int (*run)(Arguments arguments);
  bool hidden = false;    // not listed: for testing the program
  bool by_ranks = false;  // several processes may share its work
};

}  // namespace jackscrew
