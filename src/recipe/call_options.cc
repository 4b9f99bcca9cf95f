#include "recipe/call_options.h"

#include "base/checked.h"

namespace jackscrew {

namespace {

using enum OptionType;

constexpr OptionSpec kCallOptions[] = {
    {.name = "overwrite",
     .type = boolean,
     .default_text = "false",
     .help = "train: start over and replace what a run left in output_dir; with resume=DIR, "
             "continue from there; merge, export, quantize: replace a model; compare: a page; "
             "logits: a file"},
    {.name = "json", .type = boolean, .default_text = "false", .help = "print JSON"},
    {.name = "quiet",
     .type = boolean,
     .default_text = "false",
     .help = "no progress on stderr, only warnings and errors; of train nothing on stdout either"},
    {.name = "fit",
     .type = boolean,
     .default_text = "false",
     .help = "plan: print the fastest recipe that fits the budget"},
    {.name = "ranks",
     .type = integer,
     .default_text = "1",
     .help = "plan, and quantize with device_memory: for so many ranks, as `mpirun -n` would start "
             "them",
     .min = 1,
     .max = 4096},
    {.name = "verbose",
     .type = boolean,
     .default_text = "false",
     .help = "more detail: inspect lists every tensor"},
    {.name = "print_config",
     .type = boolean,
     .default_text = "false",
     .help = "print the resolved recipe and exit"},
};

}  // namespace

std::span<const OptionSpec> call_options() {
  return kCallOptions;
}

void CallSettings::read(const OptionSet& options) {
  overwrite = options.boolean("overwrite");
  json = options.boolean("json");
  quiet = options.boolean("quiet");
  fit = options.boolean("fit");
  ranks = narrow<int>(options.integer("ranks"));
  verbose = options.boolean("verbose");
  print_config = options.boolean("print_config");
}

}  // namespace jackscrew
