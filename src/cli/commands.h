// The subcommands: each takes the arguments after its name, writes data to stdout and messages to
// stderr, and returns the program's exit code or throws Error.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.h"

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
  std::string summary;                  // one line
  std::string usage;                    // what follows the name
  std::vector<std::string> words = {};  // of the usage, explained; one line each
  std::vector<std::string> examples;    // whole command lines
  // What it reads, and its help shows: titles of option tables, and options of other tables.
  std::vector<std::string> tables = {};
  std::vector<std::string> options = {};
  // Options of those tables that it does not read.
  std::vector<std::string> unused = {};
  // Options that it reads on the command line alone: in a recipe they are for training.
  std::vector<std::string> asked = {};
  // Tables that its help leaves out, by title, but whose options mean something to it.
  struct Accepted {
    std::vector<std::string> tables;
    // Whether they do with such options; null: always.
    bool (*with)(const OptionSet& options) = nullptr;
  };
  std::vector<Accepted> accepted = {};
  int (*run)(Arguments arguments);
  bool writes_recipes = false;  // so that it keeps what it does not read of one
  bool hidden = false;          // not listed: for testing the program
  bool by_ranks = false;        // several processes may share its work

  // Whether its help shows an option of the table `title`.
  bool shows(const OptionSpec& option, const std::string& title) const;
  // Whether the option means something to it, with such options.
  bool uses(const OptionSpec& option, const std::string& title, const OptionSet& given) const;
  // Whether it means that only on the command line.
  bool must_be_asked(const OptionSpec& option) const;
};

const std::vector<Subcommand>& command_table();
// nullptr where there is none of that name.
const Subcommand* find_subcommand(std::string_view name);

}  // namespace jackscrew
