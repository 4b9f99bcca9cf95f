#include "recipe/data_options.h"

#include <algorithm>
#include <iterator>

#include "base/choices.h"
#include "base/error.h"
#include "base/text.h"
#include "data/dataset.h"

namespace jackscrew {

namespace {

using enum OptionType;

constexpr Choices kLongRecords("truncate drop error",
                               std::array{LongRecord::truncate, LongRecord::drop,
                                          LongRecord::error});

constexpr OptionSpec kDataOptions[] = {
    {.name = "data",
     .type = list,
     .default_text = "",
     .help = "training files or directories: .jsonl .json .csv .txt, recognised by their keys",
     .aliases = "dataset datasets",
     .is_path = true},
    {.name = "data_weights",
     .type = list,
     .default_text = "",
     .help =
         "for each data set, how often an epoch sees its examples: 2: twice, 0.5: half of them"},
    {.name = "eval_data",
     .type = list,
     .default_text = "",
     .help = "held-out files or directories, for evaluation",
     .aliases = "eval_dataset",
     .affects_result = false,
     .is_path = true},
    {.name = "val_size",
     .type = number,
     .default_text = "0",
     .help = "fraction (below 1) or number of examples (of a .txt file: windows) held out for "
             "evaluation",
     .aliases = "val_set_size",
     .min = 0,
     .max = 1e15},
    {.name = "max_samples",
     .type = integer,
     .default_text = "0",
     .help = "maximum number of records read from each data set; 0: all",
     .min = 0},
    {.name = "sequence_len",
     .type = integer,
     .default_text = "1024",
     .help = "maximum sequence length, in tokens",
     .aliases = "cutoff_len max_seq_length max_length",
     .min = 2,
     .max = 16777216},
    {.name = "excess_length_strategy",
     .type = text,
     .default_text = "truncate",
     .help = "records longer than sequence_len: truncate (their end is lost), drop, or error",
     .choices = kLongRecords.words},
    {.name = "packing",
     .type = boolean,
     .default_text = "true",
     .help = "pack several records into one sequence; attention stays within each record",
     .aliases = "sample_packing"},
    {.name = "train_on_inputs",
     .type = boolean,
     .default_text = "false",
     .help = "compute the loss on prompts too, not only on answers",
     .aliases = "train_on_prompt"},
};

}  // namespace

std::span<const OptionSpec> data_options() {
  return kDataOptions;
}

void DataSettings::read(const OptionSet& options) {
  data = options.list("data");
  // How often the examples of each data set are seen in an epoch. More than 1000 times is more
  // likely a mistake than intended.
  data_weights = options.numbers("data_weights", 0, 1000,
                                 "2: each example twice in an epoch, 0.5: a half of them");
  eval_data = options.list("eval_data");
  val_size = options.number("val_size");
  max_samples = options.integer("max_samples");
  long_record = kLongRecords[options.text("excess_length_strategy")];
  sequence_len = options.integer("sequence_len");
  packing = options.boolean("packing");
  train_on_inputs = options.boolean("train_on_inputs");
  if (val_size > 0 && !eval_data.empty()) {
    throw Error(ErrorKind::usage, "both eval_data and val_size are set",
                "val_size=0 leaves data whole; eval_data names the held-out files");
  }
  if (!data_weights.empty() && data_weights.size() != data.size()) {
    throw Error(ErrorKind::usage,
                fmt::format("{} for {}", counted(std::ssize(data_weights), "data weight"),
                            counted(std::ssize(data), "data set")),
                "data_weights has one number for each of data, in its order");
  }
  const auto is_zero = [](double weight) { return weight == 0.0; };
  if (!data_weights.empty() && std::ranges::all_of(data_weights, is_zero)) fail_without_weight();
  if (val_size > 1 && val_size != static_cast<double>(static_cast<int64_t>(val_size))) {
    throw Error(
        ErrorKind::usage,
        fmt::format("val_size is {}, neither a fraction nor a number of examples", val_size),
        "use a value below 1 or a whole number");
  }
}

}  // namespace jackscrew
