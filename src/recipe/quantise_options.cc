#include "recipe/quantise_options.h"

namespace jackscrew {

namespace {

using enum OptionType;

constexpr OptionSpec kQuantiseOptions[] = {
    {.name = "bits",
     .type = number,
     .default_text = "4",
     .help =
         "gptq: bits of a code: 2 3 4 8; exl2, gguf: bits of a weight on average over the linear "
         "layers of the blocks, with all that is stored of them: codes, scales, order of columns",
     .min = 2,
     .max = kMostBits,
     .affects_result = false},
    {.name = "head_bits",
     .type = integer,
     .default_text = "6",
     .help = "exl2: bits of the head's codes: 2 3 4 5 6 8; 16: the head stays as it is",
     .min = 2,
     .max = 16,
     .affects_result = false},
    {.name = "group_size",
     .type = integer,
     .default_text = "128",
     .help = "gptq: inputs of a row that share a scale: a power of two from 16 to 1024; -1: all",
     .min = -1,
     .max = 1024,
     .affects_result = false},
    {.name = "rounding",
     .type = text,
     .default_text = "gptq",
     .help =
         "gptq (later columns make up for the errors of earlier ones) or nearest (each number by "
         "itself); any format but exl2",
     .choices = "gptq nearest",
     .affects_result = false},
    {.name = "desc_act",
     .type = boolean,
     .default_text = "false",
     .help = "gptq: round the inputs in the order of their activation: often closer, but slower to "
             "read for some programs",
     .affects_result = false},
    {.name = "sym",
     .type = boolean,
     .default_text = "true",
     .help = "gptq: the middle code is 0; false: every group has a zero of its own",
     .affects_result = false},
    {.name = "damp_percent",
     .type = number,
     .default_text = "0.01",
     .help = "share of the mean of a Hessian's diagonal that is added to it, at most 0.99",
     .min = 1e-6,
     .max = 0.99,  // programs that read GPTQ files refuse 1
     .affects_result = false},
    {.name = "calibration_sequences",
     .type = integer,
     .default_text = "128",
     .help =
         "sequences of text that the rounding is calibrated on; their sequence_len is 512 where "
         "it is not set",
     .min = 1,
     .max = 1048576,
     .affects_result = false},
    {.name = "dry_run",
     .type = boolean,
     .default_text = "false",
     .help = "show what would be written, and write nothing",
     .affects_result = false},
};

}  // namespace

std::span<const OptionSpec> quantise_options() {
  return kQuantiseOptions;
}

void QuantiseSettings::read(const OptionSet& options) {
  bits = options.number("bits");
  head_bits = options.integer("head_bits");
  group_size = options.integer("group_size");
  compensates = options.text("rounding") == "gptq";
  desc_act = options.boolean("desc_act");
  sym = options.boolean("sym");
  damp_percent = options.number("damp_percent");
  calibration_sequences = options.integer("calibration_sequences");
  dry_run = options.boolean("dry_run");
}

}  // namespace jackscrew
