#include "recipe/rank_options.h"

#include "kernels/device.h"

namespace jackscrew {

namespace {

using enum OptionType;

constexpr OptionSpec kRankOptions[] = {
    {.name = "data_parallel",
     .type = integer,
     .default_text = "auto",
     .help =
         "lanes of a step; each accumulates gradient_accumulation_steps micro-batches of its own, "
         "and ranks share them out; auto: one for each replica (copy of the model)",
     .choices = "auto",
     .min = 1,
     .max = 4096},
    {.name = "pipeline_stages",
     .type = integer,
     .default_text = "1",
     .help = "ranks that hold the model together, a part of its blocks each",
     .min = 1,
     .max = 1024,
     .affects_result = false},
    {.name = "stage_split",
     .type = list,
     .default_text = "",
     .help = "blocks of each stage, such as 15,17; nothing: as equal in time as can be, the head "
             "counted",
     .affects_result = false},
    {.name = "rank_devices",
     .type = list,
     .default_text = "",
     .help = "the device of each rank, such as cuda,cuda,cpu; cuda: a GPU of its own on that "
             "machine; nothing: as `device` says",
     .affects_result = false},
    {.name = "rank_device_memory",
     .type = list,
     .default_text = "",
     .help = "the device_memory of each rank, such as 24GiB,8GiB; nothing: as `device_memory` says",
     .affects_result = false},
    {.name = "communication_timeout",
     .type = number,
     .default_text = "30",
     .help = "seconds without a sign of life after which another rank is given up",
     .min = 1,
     .max = 86400,
     .affects_result = false},
};

}  // namespace

std::span<const OptionSpec> rank_options() {
  return kRankOptions;
}

void RankSettings::read(const OptionSet& options) {
  data_parallel = options.integer_unless_word("data_parallel").value_or(0);
  pipeline_stages = options.integer("pipeline_stages");
  stage_split = options.whole_numbers("stage_split");
  rank_devices = options.list("rank_devices");
  for (const std::string& device : rank_devices) check_device_name(device);
  rank_device_memory = options.sizes("rank_device_memory");
  communication_timeout = std::chrono::duration<double>(options.number("communication_timeout"));
}

}  // namespace jackscrew
